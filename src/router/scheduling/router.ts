import { type Clock, type Random, stringifyJson } from "../../core/index.ts";
import { workerNumber } from "../../events/index.ts";
import type { Native } from "../../native/index.ts";
import type { KeySpace, ResidencyTier } from "../../observability/activity/index.ts";
import type { ActiveLoad, EndReason } from "../active-load.ts";
import { PredictedPrefixes } from "../predicted-prefixes.ts";
import type { HeldRun, PrefixIndex } from "../prefix-index.ts";
import type {
  BusyThresholds,
  Explanation,
  PolicyAction,
  PotentialLoad,
  RouteDecision,
  RouteOutcome,
  RouteOverrides,
  RouteRequest,
  Router,
  RouterObserver,
} from "../route.ts";
import type { RouterSettings } from "../settings.ts";
import type { Target, WorkerEvent, WorkerTable } from "../workers.ts";
import type { Choice } from "./chooser.ts";
import { uncachedTokens } from "./cost.ts";
import { Decider, type Pending, type Pool, poolOf } from "./decider.ts";
import { Explanations } from "./explanations.ts";
import { createPromptHasher, distinctSpaces, type PromptHasher, promptOf } from "./prompt.ts";
import { type Selection, Thresholds } from "./selection.ts";
import { WaitQueue } from "./wait-queue.ts";

export interface RouterParts {
  readonly clock: Clock;
  readonly random: Random;
  readonly native: Native;
  readonly settings: RouterSettings;
  readonly table: WorkerTable;
  readonly index: PrefixIndex;
  readonly load: ActiveLoad;
}

const SWEEP_MS = 1_000;
const NO_HASHES = new BigUint64Array(0);

/**
 * Creates a router over parts that the caller owns. Targets that leave the table are removed from
 * load, index and predictions before their id is reused.
 */
export function createRouter(parts: RouterParts): Router & Disposable {
  return new CoreRouter(parts);
}

/** Load id of a request's prefill if another worker decodes it. */
export function prefillId(requestId: string): string {
  return `${requestId}\u0000prefill`;
}

class CoreRouter implements Router, Disposable {
  readonly #parts: RouterParts;
  readonly #hasher: PromptHasher;
  readonly #spaces: ModelSpaces;
  readonly #predicted: PredictedPrefixes | null;
  readonly #decider: Decider;
  readonly #thresholds: Thresholds;
  readonly #explanations: Explanations;
  readonly #queue: WaitQueue<Pending, RouteOutcome>;
  readonly #observers = new Set<RouterObserver>();
  readonly #ends: Disposable[];
  #isServing = false;
  #isQueueDue = false;

  constructor(parts: RouterParts) {
    const { clock, native, settings, table } = parts;
    this.#parts = parts;
    this.#hasher = createPromptHasher(native);
    this.#spaces = new ModelSpaces(table, settings.blockTokens);
    this.#predicted = predictedFor(parts);
    this.#thresholds = new Thresholds(settings);
    const [predicted, thresholds] = [this.#predicted, this.#thresholds];
    this.#decider = new Decider({ ...parts, predicted, thresholds });
    this.#explanations = new Explanations(settings.explanationsMax);
    this.#queue = new WaitQueue(clock, settings.queue, (pending, waitedMs) => {
      return this.#giveUp(pending, waitedMs);
    });
    this.#ends = [
      table.listen((news) => this.#onNews(news)),
      clock.every(SWEEP_MS, () => this.#sweep()),
      this.#spaces,
      this.#queue,
    ];
  }

  async bestWorker(request: RouteRequest, signal?: AbortSignal): Promise<RouteOutcome> {
    const pending = this.#prepare(request);
    const attempt = this.#attempt(pending, 0);
    if (attempt.kind !== "wait") return attempt;
    // Queries are not queued.
    if (request.requestId === undefined) return busy("all workers are busy");
    const wait = this.#queue.wait(pending, request.priority ?? 0, signal);
    return (
      wait ??
      this.#refuse(pending, attempt.selection, 0, "all workers are busy and the queue is full")
    );
  }

  bestWorkerNow(request: RouteRequest): RouteOutcome {
    const pending = this.#prepare(request);
    const attempt = this.#attempt(pending, 0);
    if (attempt.kind !== "wait") return attempt;
    return this.#refuse(pending, attempt.selection, 0, "all workers are busy");
  }

  getPotentialLoads(request: RouteRequest): readonly PotentialLoad[] {
    return this.#decider.potentialLoads(this.#prepare(request));
  }

  markPrefillComplete(requestId: string): boolean {
    const { load } = this.#parts;
    const wasPrefilling = load.isPrefilling(requestId);
    if (wasPrefilling === null) return false;
    load.markPrefillComplete(requestId);
    load.free(prefillId(requestId));
    if (wasPrefilling) {
      for (const observer of this.#observers) observer.prefillComplete?.(requestId);
      this.#serveQueue();
    }
    return true;
  }

  output(requestId: string, tokens: number): boolean {
    if (tokens > 0) this.markPrefillComplete(requestId);
    return this.#parts.load.output(requestId, tokens) === "done";
  }

  free(requestId: string): boolean {
    const { load } = this.#parts;
    load.free(prefillId(requestId));
    if (load.free(requestId) === "unknown") return false;
    this.#reportFreed([requestId], "free");
    this.#serveQueue();
    return true;
  }

  dumpEvents(): Iterable<string> {
    const { index, table } = this.#parts;
    return dumpEvents(runsByTarget(index, table), table);
  }

  explain(requestId: string): Explanation | null {
    return this.#explanations.explain(requestId);
  }

  noteAction(requestId: string, action: PolicyAction): boolean {
    return this.#explanations.noteAction(requestId, action);
  }

  thresholds(model: string): BusyThresholds {
    return this.#thresholds.of(model);
  }

  setThresholds(model: string, thresholds: Partial<BusyThresholds>): boolean {
    if (!this.#parts.table.targets.some((target) => target.model === model)) return false;
    this.#thresholds.set(model, thresholds);
    this.#serveQueue();
    return true;
  }

  listen(observer: RouterObserver): Disposable {
    this.#observers.add(observer);
    return { [Symbol.dispose]: () => this.#observers.delete(observer) };
  }

  /** Waiting requests end with `busy`. */
  [Symbol.dispose](): void {
    for (const end of this.#ends.splice(0)) end[Symbol.dispose]();
  }

  #prepare(request: RouteRequest): Pending {
    this.#expire();
    // A request id that is routed again must not compete with its own earlier load.
    if (request.requestId !== undefined) this.free(request.requestId);
    const { blockTokens } = this.#parts.settings;
    const spaces = this.#spaces.of(request.model);
    return { request, prompt: promptOf(this.#hasher, request, spaces, blockTokens) };
  }

  /** Decides now, or reports that all workers are busy. */
  #attempt(
    pending: Pending,
    queuedMs: number,
  ): RouteOutcome | { readonly kind: "wait"; readonly selection: Selection } {
    const { request, prompt } = pending;
    const { mode = this.#parts.settings.mode, worker } = request.overrides ?? {};
    if (mode === "direct" && worker === undefined) {
      return { kind: "unknown_worker", why: "mode direct requires a worker name" };
    }
    const verdict = this.#decider.decide(pending);
    if (verdict.kind === "busy") return { kind: "wait", selection: verdict.selection };
    if (verdict.kind === "nobody") {
      this.#keep(pending, verdict.selection, null, queuedMs, prompt.tokens);
      return verdict.outcome;
    }
    const { selection, choice, prefill, exactTokens } = verdict;
    const decision: RouteDecision = {
      kind: "routed",
      target: choice.target,
      terms: choice.terms,
      promptTokens: prompt.tokens,
      queuedMs,
      prefill: prefill?.target ?? null,
      decidedBy: choice.decidedBy,
      reasons: selection.reasons,
    };
    const { requestId } = request;
    if (requestId === undefined) return decision;
    this.#keep(pending, selection, choice, queuedMs, exactTokens);
    if (prefill !== null) this.#track(pending, prefill, "prefill", prefillId(requestId));
    this.#track(pending, choice, poolOf(request), requestId);
    for (const each of this.#observers) each.routed?.(request, decision, prompt.own.hashes);
    return decision;
  }

  #track({ request, prompt }: Pending, choice: Choice, pool: Pool, id: string): void {
    const { rules, target, terms } = choice;
    this.#parts.load.add({
      id,
      target: target.id,
      hashes: rules.trackActiveBlocks ? prompt.own.hashes : NO_HASHES,
      promptTokens: prompt.tokens,
      prefillTokens: rules.trackPrefillTokens ? uncachedTokens(terms, prompt.tokens) : 0,
      expectedOutputTokens: request.expectedOutputTokens ?? null,
    });
    this.#predicted?.routed(prompt.own.hashes, target.id);
    this.#decider.commit(request, pool, choice);
  }

  #keep(
    { request, prompt }: Pending,
    selection: Selection,
    choice: Choice | null,
    queuedMs: number,
    exactTokens: number,
  ): void {
    const { requestId, model, overrides } = request;
    if (requestId === undefined) return;
    const { clock, settings } = this.#parts;
    const mode = overrides?.mode ?? settings.mode;
    this.#explanations.keep({
      ...{ requestId, wallMs: clock.wallMs(), model, mode, queuedMs, selection, choice },
      ...{ promptTokens: prompt.tokens, blockTokens: settings.blockTokens, exactTokens },
    });
  }

  #refuse(pending: Pending, selection: Selection, queuedMs: number, why: string): RouteOutcome {
    this.#keep(pending, selection, null, queuedMs, pending.prompt.tokens);
    return busy(why);
  }

  #giveUp(pending: Pending, waitedMs: number): RouteOutcome {
    const selection = this.#decider.select(pending.request, poolOf(pending.request));
    const why = `all workers were busy for ${Math.round(waitedMs)} ms`;
    return this.#refuse(pending, selection, waitedMs, why);
  }

  /** Retries waiting requests after load was freed. Not reentrant. */
  #serveQueue(): void {
    this.#isQueueDue = true;
    if (this.#isServing) return;
    this.#isServing = true;
    while (this.#isQueueDue && this.#queue.length > 0) {
      this.#isQueueDue = false;
      this.#serveOnce();
    }
    this.#isServing = false;
  }

  #serveOnce(): void {
    const now = this.#parts.clock.monotonicMs();
    /** Pools found full in this pass: skip later requests for the same pool. */
    const full = new Set<string>();
    this.#queue.serve(({ item, sinceMs }) => {
      const { request } = item;
      const pool = `${poolOf(request)} ${request.model}`;
      if (full.has(pool)) return null;
      const attempt = this.#attempt(item, now - sinceMs);
      if (attempt.kind !== "wait") return attempt;
      if (isAnyone(request.overrides)) full.add(pool);
      return null;
    });
  }

  #sweep(): void {
    this.#predicted?.expire();
    this.#expire();
  }

  #expire(): void {
    const ended = this.#parts.load.expire();
    if (ended.length === 0) return;
    this.#reportFreed(ended, "expired");
    this.#serveQueue();
  }

  #onNews(news: WorkerEvent): void {
    if (news.kind === "left") this.#forget(news.target);
    this.#serveQueue();
  }

  #forget({ id, model }: Target): void {
    const { load, index, table } = this.#parts;
    const ended = load.dropTarget(id);
    index.drop(id);
    this.#predicted?.dropTarget(id);
    if (!table.targets.some((target) => target.model === model)) this.#thresholds.forget(model);
    this.#reportFreed(ended, "worker_left");
  }

  /** Prefill entries are reported as part of their request. */
  #reportFreed(ids: readonly string[], why: EndReason): void {
    for (const id of ids) {
      if (id.endsWith(prefillId(""))) continue;
      for (const observer of this.#observers) observer.freed?.(id, why);
    }
  }
}

function predictedFor({ clock, random, settings }: RouterParts): PredictedPrefixes | null {
  const { blocksMax, pruneRatio, besideEventsMs } = settings.prediction;
  const ttlMs = settings.useKvEvents ? besideEventsMs : settings.prediction.ttlMs;
  if (ttlMs <= 0) return null;
  return new PredictedPrefixes({ clock, ttlMs, blocksMax, pruneRatio, seed: random.u32() });
}

/** True if the overrides do not restrict the workers. */
function isAnyone({ worker, rank, allowed, excluded }: RouteOverrides = {}): boolean {
  return [worker, rank, allowed, excluded].every((wish) => wish === undefined);
}

function busy(why: string): RouteOutcome {
  return { kind: "busy", why };
}

/** Key spaces of each model's workers, recomputed when workers change. */
class ModelSpaces implements Disposable {
  readonly #table: WorkerTable;
  readonly #blockTokens: number;
  readonly #byModel = new Map<string, readonly KeySpace[]>();
  readonly #end: Disposable;

  constructor(table: WorkerTable, blockTokens: number) {
    this.#table = table;
    this.#blockTokens = blockTokens;
    this.#end = table.listen(() => this.#byModel.clear());
  }

  of(model: string): readonly KeySpace[] {
    const known = this.#byModel.get(model);
    if (known !== undefined) return known;
    const targets = this.#table.targets.filter((target) => target.model === model);
    const all = targets.flatMap(({ spaces }) => spaces);
    const spaces = distinctSpaces(all, model, this.#blockTokens);
    // Names of unknown models are client input and are not cached.
    if (targets.length > 0) this.#byModel.set(model, spaces);
    return spaces;
  }

  [Symbol.dispose](): void {
    this.#end[Symbol.dispose]();
  }
}

const STORAGE_TIERS: Readonly<Record<ResidencyTier, string>> = {
  device: "device",
  host: "host_pinned",
  disk: "disk",
};

/**
 * Yields all runs, one target at a time. Each target is read at once, so the consumer may be slow
 * while the index changes.
 */
function* runsByTarget(index: PrefixIndex, table: WorkerTable): Generator<HeldRun> {
  for (const { id } of table.targets) yield* [...index.dump(id)];
}

/**
 * Encodes runs as Dynamo RouterEvents, one JSON document each, with exact 64-bit integers. The
 * index does not keep a block's own hash (`tokens_hash`): it is null except for a prompt's first
 * block, where both hashes are equal.
 */
function* dumpEvents(runs: Iterable<HeldRun>, table: WorkerTable): Generator<string> {
  const nextId = new Map<number, number>();
  for (const { target: id, tier, parent, hashes } of runs) {
    const target = table.get(id);
    if (target === null) continue;
    const eventId = nextId.get(id) ?? 1;
    nextId.set(id, eventId + 1);
    const blocks = Array.from(hashes, (hash, at) => ({
      block_hash: hash,
      tokens_hash: at === 0 && parent === null ? hash : null,
    }));
    const stored = { parent_hash: parent, start_position: null, blocks };
    yield stringifyJson({
      worker_id: workerNumber(target.worker),
      storage_tier: STORAGE_TIERS[tier],
      event: { event_id: eventId, data: { stored }, dp_rank: target.rank },
    });
  }
}
