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
  /** Counters to update. Absent: nothing is counted. */
  readonly metrics?: RouteCounts;
}

const SWEEP_MS = 1_000;
const NO_HASHES = new BigUint64Array(0);

/**
 * Returns the id under which a request's prefill counts as load, if another worker does the decode.
 */
export function prefillId(requestId: string): string {
  return `${requestId}\u0000prefill`;
}

/**
 * Routes requests. The caller owns the parts and disposes them. When a target leaves the worker
 * table, the router removes it from load, index and predictions before its id is reused.
 */
export class Router implements Disposable {
  readonly #parts: RouterParts;
  readonly #hasher: PromptHasher;
  /** Key spaces of each model's workers. Cleared when a worker changes. */
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
   * Routes a request. If all workers are busy, waits until one is not. Rejects only with ABORTED.
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

  /** Routes a request without waiting. Returns `busy` if all workers are busy. */
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

  /**
   * Reports that a request has finished its prefill. Returns false if no active request has this
   * id.
   */
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

  /**
   * Yields the index as Dynamo RouterEvents in JSON, with 64-bit integers in full, parents before
   * children.
   */
  dumpEvents(): Iterable<string> {
    const { index, table } = this.#parts;
    return dumpEvents(runsByTarget(index, table), table);
  }

  explain(requestId: string): Explanation | null {
    return this.#explanations.explain(requestId);
  }

  /**
   * Adds a policy action to a request's explanation. The router keeps a reference to the object, so
   * the caller can set the outcome when the receipt arrives. Returns false if the explanation is
   * not kept or has the maximum number of actions.
   */
  noteAction(requestId: string, action: PolicyAction): boolean {
    return this.#explanations.noteAction(requestId, action);
  }

  thresholds(model: string): BusyThresholds {
    return this.#thresholds.of(model);
  }

  /**
   * Sets busy thresholds and reports them to observers. Returns false if no worker of that model is
   * known.
   */
  setThresholds(model: string, thresholds: Partial<BusyThresholds>): boolean {
    if (!this.applyThresholds(model, thresholds)) return false;
    const all = this.#thresholds.of(model);
    for (const observer of this.#observers) observer.thresholdsSet?.(model, all);
    return true;
  }

  /**
   * Sets busy thresholds that were set at another router, without reporting them to observers.
   * Returns false if no worker of that model is known.
   */
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

  /** Stops the router. Requests that wait for a worker end with `busy`. */
  [Symbol.dispose](): void {
    for (const end of this.#ends.splice(0)) end[Symbol.dispose]();
  }

  async #routeOrWait(request: RouteRequest, signal?: AbortSignal): Promise<RouteOutcome> {
    const prompt = this.#prepare(request);
    const attempt = this.#attempt(prompt, 0);
    if (attempt.kind !== "wait") return attempt;
    // A request without an id adds no load, so it does not wait in the queue.
    if (request.requestId === undefined) return { kind: "busy", why: "all workers are busy" };
    const wait = this.#queue.wait(prompt, request.priority ?? 0, signal);
    const why = "all workers are busy and the queue is full";
    return wait ?? this.#refuse(prompt, attempt.eligibility, 0, why);
  }

  #prepare(request: RouteRequest, isRouted = true): Prompt {
    if (isRouted) for (const observer of this.#observers) observer.prompted?.(request);
    this.#expire();
    // If the id is still active, free it first. Its own load must not count against the new
    // decision.
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
    // Do not cache unknown models: clients choose the names, so the map could grow without limit.
    if (targets.length > 0) this.#spaces.set(model, spaces);
    return spaces;
  }

  /** Routes the request, or returns `wait` if all workers are busy. */
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

  /**
   * Counts a decision in the metrics. A tier's last block may extend beyond the prompt, so cached
   * tokens are limited to the prompt's tokens.
   */
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

  /**
   * Tries to route the waiting requests after load was freed. A call during another call makes that
   * one try again.
   */
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
    /** Pools without a free worker in this pass. Later requests for such a pool are skipped. */
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

  /**
   * Reports ended requests to metrics and observers. Skips prefill ids, because the request itself
   * is reported.
   */
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
 * Yields all runs, one target at a time. Each target is read completely before its runs are
 * yielded, so the index may change while the consumer waits.
 */
function* runsByTarget(index: PrefixIndex, table: WorkerTable): Generator<HeldRun> {
  for (const { id } of table.targets) yield* [...index.dump(id)];
}

/**
 * Encodes runs as Dynamo RouterEvents, one JSON document each, with 64-bit integers in full.
 * `tokens_hash`, the hash of a single block, is null because the index does not store it. Only a
 * prompt's first block has it: there it equals the sequence hash.
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
