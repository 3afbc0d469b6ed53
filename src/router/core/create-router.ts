import type { Clock, Random } from "../../core/index.ts";
import type { Native } from "../../native/index.ts";
import type { ActiveLoad, EndReason } from "../active-load.ts";
import {
  DECODE_ROLES,
  PREFILL_ROLES,
  type Selection,
  select,
  Thresholds,
  uncachedTokens,
  WaitQueue,
  wishOf,
} from "../choice/index.ts";
import { PredictedPrefixes } from "../predict/index.ts";
import type { PrefixIndex } from "../prefix-index.ts";
import type {
  BusyThresholds,
  Explanation,
  PolicyAction,
  PotentialLoad,
  RouteDecision,
  RouteOutcome,
  RouteRequest,
  Router,
  RouterObserver,
} from "../route.ts";
import type { RouterSettings } from "../settings.ts";
import type { Target, TargetId, WorkerNews, WorkerTable } from "../workers.ts";
import { type Choice, Chooser, type Tracking } from "./chooser.ts";
import { dumpEvents } from "./dump.ts";
import { Explanations } from "./explanations.ts";
import { Measures } from "./measures.ts";
import { ModelSpaces } from "./model-spaces.ts";
import { type Prompt, promptOf } from "./prompt.ts";
import { createPromptHasher, type PromptHasher } from "./prompt-hasher.ts";

export interface RouterParts {
  readonly clock: Clock;
  readonly random: Random;
  readonly native: Native;
  readonly settings: RouterSettings;
  readonly table: WorkerTable;
  readonly index: PrefixIndex;
  readonly load: ActiveLoad;
}

/** A request under way to its decision. */
interface Pending {
  readonly request: RouteRequest;
  readonly prompt: Prompt;
}

type Attempt =
  | { readonly kind: "done"; readonly outcome: RouteOutcome }
  | { readonly kind: "busy"; readonly selection: Selection };

const SWEEP_MS = 1_000;
const NO_HASHES = new BigUint64Array(0);

/**
 * The router over its parts, which the caller keeps and ends. Targets that leave the table are
 * forgotten by load, index and predictions before their number is used again.
 */
export function createRouter(parts: RouterParts): Router & Disposable {
  return new CoreRouter(parts);
}

/** Under which id the load knows the prefill of a request whose decoding is elsewhere. */
export function prefillId(requestId: string): string {
  return `${requestId}\u0000prefill`;
}

class CoreRouter implements Router, Disposable {
  readonly #parts: RouterParts;
  readonly #hasher: PromptHasher;
  readonly #spaces: ModelSpaces;
  readonly #predicted: PredictedPrefixes | null;
  readonly #measures: Measures;
  readonly #chooser: Chooser;
  readonly #thresholds: Thresholds;
  readonly #explanations: Explanations;
  readonly #queue: WaitQueue<Pending, RouteOutcome>;
  readonly #observers = new Set<RouterObserver>();
  readonly #ends: Disposable[];

  constructor(parts: RouterParts) {
    const { clock, random, native, settings, table } = parts;
    this.#parts = parts;
    this.#hasher = createPromptHasher(native);
    this.#spaces = new ModelSpaces(table, settings.blockTokens);
    this.#predicted = predictedFor(parts);
    this.#measures = new Measures({ ...parts, predicted: this.#predicted });
    this.#chooser = new Chooser(clock, random, settings);
    this.#thresholds = new Thresholds(settings);
    this.#explanations = new Explanations(settings.explanationsMax);
    this.#queue = new WaitQueue(clock, settings.queue, (pending, waitedMs) => {
      return this.#giveUp(pending, waitedMs);
    });
    this.#ends = [
      table.listen((news) => this.#onNews(news)),
      clock.every(SWEEP_MS, () => this.#sweep()),
    ];
  }

  async bestWorker(request: RouteRequest, signal?: AbortSignal): Promise<RouteOutcome> {
    this.#expire();
    const pending = this.#prepare(request);
    const attempt = this.#attempt(pending, 0);
    if (attempt.kind === "done") return attempt.outcome;
    // A question takes no place in the queue.
    if (request.requestId === undefined) return busy("all workers are busy");
    const wait = this.#queue.wait(pending, request.priority ?? 0, signal);
    return wait ?? this.#refuse(pending, attempt.selection, 0, "the queue is full");
  }

  bestWorkerNow(request: RouteRequest): RouteOutcome {
    this.#expire();
    const pending = this.#prepare(request);
    const attempt = this.#attempt(pending, 0);
    if (attempt.kind === "done") return attempt.outcome;
    return this.#refuse(pending, attempt.selection, 0, "all workers are busy");
  }

  getPotentialLoads(request: RouteRequest): readonly PotentialLoad[] {
    this.#expire();
    const { table } = this.#parts;
    const { prompt } = this.#prepare(request);
    this.#measures.take(prompt);
    const roles = rolesOf(request);
    const loads: PotentialLoad[] = [];
    for (const target of table.targets) {
      if (target.model !== request.model || !roles.includes(target.role)) continue;
      loads.push(this.#potentialLoad(target, request, prompt));
    }
    return loads;
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
    this.#tellFreed([requestId], "free");
    this.#serveQueue();
    return true;
  }

  dumpEvents(): Iterable<string> {
    return dumpEvents(this.#parts.index.dump(), this.#parts.table);
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

  /** Whoever waits is answered `busy`. */
  [Symbol.dispose](): void {
    for (const end of this.#ends.splice(0)) end[Symbol.dispose]();
    this.#queue[Symbol.dispose]();
    this.#spaces[Symbol.dispose]();
  }

  #prepare(request: RouteRequest): Pending {
    const { blockTokens } = this.#parts.settings;
    const spaces = this.#spaces.of(request.model);
    return { request, prompt: promptOf(this.#hasher, request, spaces, blockTokens) };
  }

  /** Decides now, or tells that all are busy. */
  #attempt(pending: Pending, queuedMs: number): Attempt {
    const { request, prompt } = pending;
    const { overrides } = request;
    const isDirect = (overrides?.mode ?? this.#parts.settings.mode) === "direct";
    if (isDirect && overrides?.worker === undefined) {
      return done({ kind: "unknown_worker", why: "direct needs the worker's name" });
    }
    const roles = rolesOf(request);
    const selection = this.#select(request, roles, isDirect);
    if (selection.isBusy) return { kind: "busy", selection };
    if (selection.candidates.length === 0) {
      this.#keep(pending, selection, null, queuedMs);
      return done(this.#nobody(request));
    }
    this.#measures.take(prompt);
    const isWhole = (request.phase ?? "both") === "both";
    const prefill = isWhole ? this.#choosePrefill(pending) : null;
    const choice = this.#choose(pending, selection, roles, prefill !== null);
    const decision: RouteDecision = {
      kind: "routed",
      target: choice.target,
      terms: choice.terms,
      promptTokens: prompt.tokens,
      queuedMs,
      prefill: prefill?.target ?? null,
    };
    if (request.requestId !== undefined) {
      if (prefill !== null) this.#track(pending, prefill, "prefill", prefillId(request.requestId));
      this.#track(pending, choice, poolOf(roles), request.requestId);
      this.#keep(pending, selection, choice, queuedMs);
      for (const each of this.#observers) each.routed?.(request, decision, prompt.own.hashes);
    }
    return done(decision);
  }

  #select(request: RouteRequest, roles: typeof DECODE_ROLES, isDirect: boolean): Selection {
    const { table, load } = this.#parts;
    const wish = wishOf(request.model, roles, request.overrides, isDirect);
    const thresholds = this.#thresholds.of(request.model);
    return select(table.targets, wish, thresholds, ({ id }) => load.of(id));
  }

  #choose(pending: Pending, selection: Selection, roles: typeof DECODE_ROLES, isApart: boolean) {
    const { settings } = this.#parts;
    const isPrefill = roles === PREFILL_ROLES;
    const tracking: Tracking = {
      activeBlocks: settings.trackActiveBlocks && !isPrefill,
      // Where another worker prefills, what this one holds and has to compute counts for nothing.
      prefillTokens: settings.trackPrefillTokens && !isApart,
    };
    const { request, prompt } = pending;
    const inputOf = (target: Target) => this.#measures.of(target);
    const pool = poolOf(roles);
    return this.#chooser.choose(request, prompt.tokens, selection, tracking, pool, inputOf);
  }

  /** Null: no worker is there for it, or none has room; then the other pool does both. */
  #choosePrefill(pending: Pending): Choice | null {
    const { request } = pending;
    const { seed, mode, overlapScoreWeight, temperature, excluded } = request.overrides ?? {};
    // Names of workers are those of the pool that decodes.
    const kept = { seed, overlapScoreWeight, temperature, excluded };
    const ownMode = mode === "direct" ? {} : { mode };
    const overrides = Object.fromEntries(
      Object.entries({ ...kept, ...ownMode }).filter(([, value]) => value !== undefined),
    );
    const apart: Pending = { ...pending, request: { ...request, overrides } };
    const selection = this.#select(apart.request, PREFILL_ROLES, false);
    const isLive = selection.candidates.some((at) => selection.targets[at]!.state === "live");
    return isLive ? this.#choose(apart, selection, PREFILL_ROLES, false) : null;
  }

  #track({ request, prompt }: Pending, choice: Choice, pool: string, id: string): void {
    const { load, settings } = this.#parts;
    const { rules, target, terms } = choice;
    const isOutput = pool !== "prefill" && settings.trackActiveBlocks;
    load.add({
      id,
      target: target.id,
      hashes: isOutput ? prompt.own.hashes : NO_HASHES,
      promptTokens: prompt.tokens,
      prefillTokens: rules.trackPrefillTokens ? uncachedTokens(terms, prompt.tokens) : 0,
      expectedOutputTokens: request.expectedOutputTokens ?? null,
    });
    this.#predicted?.routed(prompt.own.hashes, target.id);
    this.#chooser.settle(request, pool, choice);
  }

  #potentialLoad(target: Target, request: RouteRequest, prompt: Prompt): PotentialLoad {
    const selection: Selection = {
      targets: [target],
      reasons: [null],
      candidates: [0],
      isBusy: false,
    };
    const { terms } = this.#choose({ request, prompt }, selection, rolesOf(request), false);
    const load = this.#parts.load.of(target.id);
    return {
      ...load,
      worker: target.worker,
      rank: target.rank,
      potentialPrefillTokens: load.activePrefillTokens + uncachedTokens(terms, prompt.tokens),
      potentialDecodeBlocks: load.activeBlocks + terms.additionalBlocks,
    };
  }

  #nobody(request: RouteRequest): RouteOutcome {
    const { model, overrides } = request;
    const { worker } = overrides ?? {};
    const ofModel = this.#parts.table.targets.filter((target) => target.model === model);
    if (worker !== undefined && !ofModel.some((target) => target.worker === worker)) {
      return { kind: "unknown_worker", why: `no worker ${worker} serves ${model}` };
    }
    if (ofModel.length === 0) return { kind: "none", why: `no worker serves ${model}` };
    return { kind: "none", why: `none of the ${ofModel.length} workers of ${model} may be chosen` };
  }

  #keep(
    { request, prompt }: Pending,
    selection: Selection,
    choice: Choice | null,
    queuedMs: number,
  ): void {
    const { requestId, model, overrides } = request;
    if (requestId === undefined) return;
    const { settings, clock } = this.#parts;
    this.#explanations.keep({
      requestId,
      wallMs: clock.wallMs(),
      model,
      mode: overrides?.mode ?? settings.mode,
      promptTokens: prompt.tokens,
      blockTokens: settings.blockTokens,
      exactTokens: choice === null ? prompt.tokens : this.#measures.exactTokens,
      queuedMs,
      selection,
      choice,
    });
  }

  #refuse(pending: Pending, selection: Selection, queuedMs: number, why: string): RouteOutcome {
    this.#keep(pending, selection, null, queuedMs);
    return busy(why);
  }

  #giveUp(pending: Pending, waitedMs: number): RouteOutcome {
    const selection = this.#select(pending.request, rolesOf(pending.request), false);
    const why = `all workers were busy for ${Math.round(waitedMs)} ms`;
    return this.#refuse(pending, selection, waitedMs, why);
  }

  /** Something was freed: those that wait try again. */
  #serveQueue(): void {
    if (this.#queue.length === 0) return;
    const now = this.#parts.clock.monotonicMs();
    this.#queue.serve(({ item, sinceMs }) => {
      const attempt = this.#attempt(item, now - sinceMs);
      return attempt.kind === "done" ? attempt.outcome : null;
    });
  }

  #sweep(): void {
    this.#predicted?.expire();
    this.#expire();
  }

  #expire(): void {
    const ended = this.#parts.load.expire();
    if (ended.length === 0) return;
    this.#tellFreed(ended, "expired");
    this.#serveQueue();
  }

  #onNews(news: WorkerNews): void {
    if (news.kind === "left") this.#forget(news.target);
    this.#serveQueue();
  }

  #forget({ id, model }: Target): void {
    const { load, index, table } = this.#parts;
    const ended = load.dropTarget(id);
    index.drop(id);
    this.#predicted?.dropTarget(id as TargetId);
    if (!table.targets.some((target) => target.model === model)) this.#thresholds.forget(model);
    this.#tellFreed(ended, "worker_left");
  }

  /** A prefill apart is told of by its request alone. */
  #tellFreed(ids: readonly string[], why: EndReason): void {
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

function rolesOf({ phase }: RouteRequest): typeof DECODE_ROLES {
  return phase === "prefill" ? PREFILL_ROLES : DECODE_ROLES;
}

function poolOf(roles: typeof DECODE_ROLES): string {
  return roles === PREFILL_ROLES ? "prefill" : "decode";
}

function done(outcome: RouteOutcome): Attempt {
  return { kind: "done", outcome };
}

function busy(why: string): RouteOutcome {
  return { kind: "busy", why };
}
