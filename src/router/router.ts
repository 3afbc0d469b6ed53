import { type Clock, type Random, stringifyJson } from "../core/index.ts";
import { workerNumber } from "../events/index.ts";
import type { Native } from "../native/index.ts";
import type { KeySpace, ResidencyTier } from "../observability/activity/index.ts";
import type { ActiveLoad, EndReason } from "./active-load.ts";
import { uncachedTokens } from "./cost.ts";
import { Explanations } from "./explanations.ts";
import type { HeldRun, PrefixIndex } from "./prefix-index.ts";
import { PredictedPrefixes } from "./prefix-runs.ts";
import { distinctSpaces, type Prompt, PromptHasher, promptOf } from "./prompt.ts";
import type {
  BusyThresholds,
  Explanation,
  PolicyAction,
  PotentialLoad,
  RouteDecision,
  RouteOutcome,
  RouteRequest,
  RouterObserver,
} from "./route.ts";
import type { RouteCounts } from "./route-counts.ts";
import {
  type Choice,
  type Eligibility,
  isForAll,
  type Pool,
  poolOf,
  Scheduler,
  Thresholds,
} from "./scheduler.ts";
import type { RouterSettings } from "./settings.ts";
import { WaitQueue } from "./wait-queue.ts";
import type { Target, WorkerEvent, WorkerTable } from "./workers.ts";

export interface RouterParts {
  readonly clock: Clock;
  readonly random: Random;
  readonly native: Native;
  readonly settings: RouterSettings;
  readonly table: WorkerTable;
  readonly index: PrefixIndex;
  readonly load: ActiveLoad;
  /** Counts outcomes, waiting requests and their prompts. */
  readonly metrics?: RouteCounts;
}

const SWEEP_MS = 1_000;
const NO_HASHES = new BigUint64Array(0);

/** Load id of a request's prefill if another worker decodes it. */
export function prefillId(requestId: string): string {
  return `${requestId}\u0000prefill`;
}

/**
 * A router over parts that the caller owns. The HTTP API and the proxy translate to it. Targets that
 * leave the table are removed from load, index and predictions before their id is reused.
 */
export class Router implements Disposable {
  readonly #parts: RouterParts;
  readonly #hasher: PromptHasher;
  /** Key spaces of each model's workers, found again when workers change. */
  readonly #spaces = new Map<string, readonly KeySpace[]>();
  readonly #predicted: PredictedPrefixes | null;
  readonly #scheduler: Scheduler;
  readonly #thresholds: Thresholds;
  readonly #explanations: Explanations;
  readonly #queue: WaitQueue<Prompt, RouteOutcome>;
  readonly #observers = new Set<RouterObserver>();
  readonly #ends: Disposable[];
  #waiting = 0;
  #isServing = false;
  #isQueueDue = false;

  constructor(parts: RouterParts) {
    const { clock, native, settings, table } = parts;
    this.#parts = parts;
    this.#hasher = new PromptHasher(native);
    this.#predicted = predictedFor(parts);
    this.#thresholds = new Thresholds(settings);
    const [predicted, thresholds] = [this.#predicted, this.#thresholds];
    this.#scheduler = new Scheduler({ ...parts, predicted, thresholds });
    this.#explanations = new Explanations(settings.explanationsMax);
    this.#queue = new WaitQueue(clock, settings.queue, (prompt, waitedMs) => {
      return this.#giveUp(prompt, waitedMs);
    });
    this.#ends = [
      table.listen((news) => this.#onNews(news)),
      clock.every(SWEEP_MS, () => this.#sweep()),
      this.#queue,
    ];
  }

  /**
   * Routes the request. If all workers are busy, waits until one is not. Rejects with ABORTED only.
   */
  async bestWorker(request: RouteRequest, signal?: AbortSignal): Promise<RouteOutcome> {
    const { metrics, clock } = this.#parts;
    const startMs = clock.monotonicMs();
    metrics?.waiting(++this.#waiting);
    let kind: RouteOutcome["kind"] | "aborted" = "aborted";
    try {
      const outcome = await this.#routeOrWait(request, signal);
      kind = outcome.kind;
      return outcome;
    } finally {
      metrics?.answered(kind, (clock.monotonicMs() - startMs) / 1_000);
      metrics?.waiting(--this.#waiting);
    }
  }

  /** Routes without waiting: returns `busy` if `bestWorker` would wait. */
  bestWorkerNow(request: RouteRequest): RouteOutcome {
    const { metrics, clock } = this.#parts;
    const startMs = clock.monotonicMs();
    const prompt = this.#prepare(request);
    const attempt = this.#attempt(prompt, 0);
    const outcome =
      attempt.kind === "wait"
        ? this.#refuse(prompt, attempt.eligibility, 0, "all workers are busy")
        : attempt;
    metrics?.answered(outcome.kind, (clock.monotonicMs() - startMs) / 1_000);
    return outcome;
  }

  getPotentialLoads(request: RouteRequest): readonly PotentialLoad[] {
    return this.#scheduler.potentialLoads(this.#prepare(request, false));
  }

  /** Returns false if no such request is active. */
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

  /** Dumps the index as Dynamo RouterEvents in JSON with exact integers, parents first. */
  dumpEvents(): Iterable<string> {
    const { index, table } = this.#parts;
    return dumpEvents(runsByTarget(index, table), table);
  }

  explain(requestId: string): Explanation | null {
    return this.#explanations.explain(requestId);
  }

  /**
   * Appends a policy action to the explanation of a request. The object is kept by reference, so
   * its outcome can be filled in when the receipt arrives. Returns false if no explanation is kept
   * or it is full.
   */
  noteAction(requestId: string, action: PolicyAction): boolean {
    return this.#explanations.noteAction(requestId, action);
  }

  thresholds(model: string): BusyThresholds {
    return this.#thresholds.of(model);
  }

  /** Sets thresholds and reports them to observers. Returns false if no worker of that model is known. */
  setThresholds(model: string, thresholds: Partial<BusyThresholds>): boolean {
    if (!this.applyThresholds(model, thresholds)) return false;
    const all = this.#thresholds.of(model);
    for (const observer of this.#observers) observer.thresholdsSet?.(model, all);
    return true;
  }

  /** Sets thresholds that were set at another router. Returns false as `setThresholds` does. */
  applyThresholds(model: string, thresholds: Partial<BusyThresholds>): boolean {
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

  async #routeOrWait(request: RouteRequest, signal?: AbortSignal): Promise<RouteOutcome> {
    const prompt = this.#prepare(request);
    const attempt = this.#attempt(prompt, 0);
    if (attempt.kind !== "wait") return attempt;
    // Queries are not queued.
    if (request.requestId === undefined) return { kind: "busy", why: "all workers are busy" };
    const wait = this.#queue.wait(prompt, request.priority ?? 0, signal);
    const why = "all workers are busy and the queue is full";
    return wait ?? this.#refuse(prompt, attempt.eligibility, 0, why);
  }

  #prepare(request: RouteRequest, isRouted = true): Prompt {
    if (isRouted) for (const observer of this.#observers) observer.prompted?.(request);
    this.#expire();
    // A request id that is routed again must not compete with its own earlier load.
    if (request.requestId !== undefined) this.free(request.requestId);
    const { blockTokens } = this.#parts.settings;
    return promptOf(this.#hasher, request, this.#spacesOf(request.model), blockTokens);
  }

  #spacesOf(model: string): readonly KeySpace[] {
    const known = this.#spaces.get(model);
    if (known !== undefined) return known;
    const { table, settings } = this.#parts;
    const targets = table.targets.filter((target) => target.model === model);
    const all = targets.flatMap(({ spaces }) => spaces);
    const spaces = distinctSpaces(all, model, settings.blockTokens);
    // Names of unknown models are client input and are not cached.
    if (targets.length > 0) this.#spaces.set(model, spaces);
    return spaces;
  }

  /** Decides now, or reports that all workers are busy. */
  #attempt(
    prompt: Prompt,
    queuedMs: number,
  ): RouteOutcome | { readonly kind: "wait"; readonly eligibility: Eligibility } {
    const { request, tokens } = prompt;
    const { mode = this.#parts.settings.mode, worker } = request.overrides ?? {};
    if (mode === "direct" && worker === undefined) {
      return { kind: "unknown_worker", why: "mode direct requires a worker name" };
    }
    const { eligibility, choice, prefill, exactTokens } = this.#scheduler.plan(prompt);
    if (eligibility.isBusy) return { kind: "wait", eligibility };
    this.#keep(prompt, eligibility, choice, queuedMs, exactTokens);
    if (choice === null) return this.#nobody(request);
    const decision: RouteDecision = {
      kind: "routed",
      target: choice.target,
      terms: choice.terms,
      promptTokens: tokens,
      queuedMs,
      prefill: prefill?.target ?? null,
      decidedBy: choice.decidedBy,
      reasons: eligibility.reasons,
    };
    const { requestId } = request;
    if (requestId === undefined) return decision;
    if (prefill !== null) this.#track(prompt, prefill, "prefill", prefillId(requestId));
    this.#track(prompt, choice, poolOf(request), requestId);
    this.#count(decision);
    for (const each of this.#observers) each.routed?.(request, decision, prompt.own.hashes);
    return decision;
  }

  #nobody({ model, overrides }: RouteRequest): RouteOutcome {
    const { worker } = overrides ?? {};
    const ofModel = this.#parts.table.targets.filter((target) => target.model === model);
    if (worker !== undefined && !ofModel.some((target) => target.worker === worker)) {
      return { kind: "unknown_worker", why: `no worker ${worker} serves ${model}` };
    }
    if (ofModel.length === 0) return { kind: "none", why: `no worker serves ${model}` };
    return { kind: "none", why: `none of the ${ofModel.length} workers of ${model} is eligible` };
  }

  #track({ request, own, tokens }: Prompt, choice: Choice, pool: Pool, id: string): void {
    const { rules, target, terms } = choice;
    this.#parts.load.add({
      id,
      target: target.id,
      hashes: rules.trackActiveBlocks ? own.hashes : NO_HASHES,
      promptTokens: tokens,
      prefillTokens: rules.trackPrefillTokens ? uncachedTokens(terms, tokens) : 0,
      expectedOutputTokens: request.expectedOutputTokens ?? null,
    });
    this.#predicted?.routed(own.hashes, target.id);
    this.#scheduler.commit(request, pool, choice);
  }

  /** Cached tokens are rounded down to the prompt: the last block of a tier may reach beyond it. */
  #count({ terms, promptTokens, decidedBy, reasons }: RouteDecision): void {
    const { metrics, settings } = this.#parts;
    if (metrics === undefined) return;
    const tokens = (blocks: number, before: number) =>
      Math.max(0, Math.min(blocks * settings.blockTokens, promptTokens - before));
    const device = tokens(terms.deviceBlocks, 0);
    const host = tokens(terms.hostBlocks, device);
    const disk = tokens(terms.diskBlocks, device + host);
    metrics.routed(
      { prompt: promptTokens, device, host, disk },
      decidedBy ?? "none",
      reasons ?? [],
    );
  }

  #keep(
    { request, tokens: promptTokens }: Prompt,
    eligibility: Eligibility,
    choice: Choice | null,
    queuedMs: number,
    exactTokens: number,
  ): void {
    const { requestId, model, overrides } = request;
    if (requestId === undefined) return;
    const { clock, settings } = this.#parts;
    const { blockTokens } = settings;
    const mode = overrides?.mode ?? settings.mode;
    const wallMs = clock.wallMs();
    const of = { requestId, wallMs, model, mode, queuedMs, promptTokens, blockTokens, exactTokens };
    this.#explanations.keep({ ...of, eligibility, choice });
  }

  #refuse(prompt: Prompt, eligibility: Eligibility, queuedMs: number, why: string): RouteOutcome {
    this.#keep(prompt, eligibility, null, queuedMs, prompt.tokens);
    return { kind: "busy", why };
  }

  #giveUp(prompt: Prompt, waitedMs: number): RouteOutcome {
    const { request } = prompt;
    const eligibility = this.#scheduler.eligible(request, poolOf(request));
    const why = `all workers were busy for ${Math.round(waitedMs)} ms`;
    return this.#refuse(prompt, eligibility, waitedMs, why);
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
      if (isForAll(request.overrides)) full.add(pool);
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
    this.#spaces.clear();
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
      this.#parts.metrics?.ended(why);
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
