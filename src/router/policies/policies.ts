import type { Clock, WorkerId } from "../../core/index.ts";
import type { RouteDecision, RouteRequest, RouterObserver } from "../route.ts";
import type { Router } from "../router.ts";
import type { Target, TargetId, WorkerEvent, WorkerTable } from "../workers.ts";
import { CacheControl } from "./cache-control.ts";
import { ColdWorker } from "./cold-worker.ts";
import {
  type Commander,
  CommandQueue,
  POLICY_NAMES,
  type PolicyCounts,
  type PolicyName,
} from "./command-queue.ts";
import { ContextRewrite } from "./context-rewrite.ts";
import { IdleSession } from "./idle-session.ts";
import type { BlockNamer, PromptChain } from "./prompt-chain.ts";
import { Reasoning } from "./reasoning.ts";
import { type Noted, type Session, SessionTable } from "./session-table.ts";
import type { PolicyMode, PolicySettings, ReasoningTokens } from "./settings.ts";

/** Maximum models for which a proxy can report reasoning tokens. */
const MODELS_MAX = 256;

export interface PoliciesOptions {
  readonly clock: Clock;
  readonly settings: PolicySettings;
  readonly commander: Commander;
  readonly namer: BlockNamer;
  readonly router: Pick<Router, "listen" | "noteAction">;
  readonly table: Pick<WorkerTable, "listen" | "targets">;
}

/** An active request and its session. */
interface Live {
  readonly prompt: RoutedPrompt;
  readonly session: Session;
}

/**
 * Runs the cache policies of a router. They keep no state across restarts; their pins and leases
 * expire. While all policies are off, no events are observed and no state is kept.
 */
export class Policies implements Disposable {
  readonly #options: PoliciesOptions;
  readonly #policies = new Map<PolicyName, Policy>();
  readonly #live = new Map<string, Live>();
  readonly #reasoning: Map<string, ReasoningTokens>;
  /** State of each target at its latest event. Bounded by the worker table. */
  readonly #seen = new Map<TargetId, { readonly hasNames: boolean; readonly isKnown: boolean }>();
  #sessions: SessionTable;
  #listening: readonly Disposable[] = [];
  #heardMs = 0;
  #lastMs: number;

  constructor(options: PoliciesOptions) {
    const { clock, settings } = options;
    this.#options = options;
    this.#lastMs = clock.monotonicMs();
    this.#sessions = this.#newSessions();
    this.#reasoning = new Map(Object.entries(settings.reasoning.models));
    for (const policy of POLICY_NAMES) this.setMode(policy, settings[SETTINGS[policy]].mode);
  }

  /** Counters of each policy that is not off. */
  get counts(): readonly PolicyCounts[] {
    return [...this.#policies.values()].map(({ queue }) => queue.counts);
  }

  get marks(): PolicyMarks {
    return this;
  }

  get sessions(): number {
    return this.#sessions.sessions;
  }

  get liveRequests(): number {
    return this.#live.size;
  }

  /** Sets a policy's mode. Switching a policy off drops its state. */
  setMode(policy: PolicyName, mode: PolicyMode): void {
    const known = this.#policies.get(policy);
    if (mode === "off") this.#policies.delete(policy);
    else if (known !== undefined) known.queue.setMode(mode);
    else this.#policies.set(policy, this.#create(policy, mode));
    if (this.#policies.size === 0) this.#stop();
    else if (this.#listening.length === 0) this.#start();
  }

  /** Reports that a worker has emptied its RAM. Joins and restarts are detected without a call. */
  workerCold(target: Target): void {
    this.#each((policy, at) => policy.workerCold?.(target, at));
  }

  /**
   * Passes a request's `cache_control` marks to the policies. Call after the request was routed.
   * `owner`: tenant whose limit the pins count against.
   */
  cacheControl(requestId: string, owner: string, marks: readonly CacheMark[]): void {
    this.#ofRequest(requestId, (policy, prompt) => policy.cacheControl?.(prompt, owner, marks));
  }

  /** Passes an answer's tokens to the policies. Call when the answer has ended, before `free`. */
  answered(requestId: string, outputTokens: Uint32Array): void {
    this.#ofRequest(requestId, (policy, prompt, at) => policy.answered?.(prompt, outputTokens, at));
  }

  /**
   * Reports that a request's prompt rewrites the session's previous one. Call after it was routed.
   */
  rewritten(requestId: string): void {
    this.#ofRequest(requestId, (policy, prompt, at) => policy.rewritten?.(prompt, at));
  }

  returning(sessionId: string): void {
    this.#each((policy, at) => policy.returning?.(sessionId, at));
  }

  sessionEnded(sessionId: string): void {
    this.#each((policy, at) => policy.sessionEnded?.(sessionId, at));
    this.#sessions.drop(sessionId);
  }

  /**
   * Sets the reasoning tokens of a model, from its chat template or tokenizer. The configuration
   * takes precedence.
   */
  reasoningTokens(model: string, tokens: ReasoningTokens): void {
    if (this.#options.settings.reasoning.models[model] !== undefined) return;
    if (this.#reasoning.size < MODELS_MAX) this.#reasoning.set(model, tokens);
  }

  [Symbol.dispose](): void {
    this.#stop();
    this.#policies.clear();
  }

  #create(name: PolicyName, mode: PolicyMode): Policy {
    const { commander, router, settings, namer } = this.#options;
    const note: ConstructorParameters<typeof CommandQueue>[0]["note"] = (requestId, action) => {
      router.noteAction(requestId, action);
    };
    const { inFlightMax } = settings[SETTINGS[name]];
    const queue = new CommandQueue({ policy: name, mode, inFlightMax, commander, note });
    switch (name) {
      case "cold_worker":
        return new ColdWorker(queue, settings.coldWorker, namer, this.#sessions);
      case "idle_session":
        return new IdleSession(queue, settings.idleSession, this.#sessions);
      case "cache_control":
        return new CacheControl(queue, settings.cacheControl);
      case "reasoning":
        return new Reasoning(queue, settings.reasoning, namer, this.#reasoning);
      case "context_rewrite":
        return new ContextRewrite(queue, settings.contextRewrite, this.#sessions);
      default:
        return name satisfies never;
    }
  }

  #start(): void {
    const { clock, router, table, settings, namer } = this.#options;
    for (const target of table.targets) {
      const hasNames = namer.group(target) !== null;
      this.#seen.set(target.id, { hasNames, isKnown: target.isKnown });
    }
    this.#listening = [
      router.listen(this.#observer()),
      table.listen((news) => this.#onNews(news)),
      clock.every(settings.tickMs, () => this.#tick()),
    ];
  }

  #stop(): void {
    for (const listening of this.#listening) listening[Symbol.dispose]();
    this.#listening = [];
    this.#live.clear();
    this.#seen.clear();
    this.#sessions = this.#newSessions();
  }

  #newSessions(): SessionTable {
    return new SessionTable(this.#options.settings.sessions, (session) => {
      for (const policy of this.#policies.values()) policy.sessionDropped?.(session);
    });
  }

  #each(call: (policy: Policy, at: Moment) => void): void {
    const at = this.#now();
    for (const policy of this.#policies.values()) call(policy, at);
  }

  #observer(): RouterObserver {
    return {
      routed: (request, decision) => this.#routed(request, decision),
      prefillComplete: (requestId) => {
        const live = this.#live.get(requestId);
        if (live !== undefined)
          this.#each((policy, at) => policy.prefillComplete?.(live.prompt, at));
      },
      freed: (requestId) => this.#freed(requestId),
    };
  }

  #routed(request: RouteRequest, { target, prefill }: RouteDecision): void {
    const { requestId } = request;
    const { namer, settings } = this.#options;
    if (requestId === undefined || this.#live.size >= settings.requestsMax) return;
    // The prefill worker computes the prompt's blocks and has them in its cache.
    const holder = prefill ?? target;
    const chain = namer.chain(holder, request);
    const { blocksMax, branchesMax } = settings.sessions;
    if (chain === null || chain.blocks === 0 || chain.blocks > blocksMax / branchesMax) return;
    this.#freed(requestId);
    const at = this.#now();
    const noted = this.#sessions.note(request, holder, chain, at.heardMs);
    const prompt = { requestId, request, target: holder, chain };
    noted.session.live++;
    this.#live.set(requestId, { prompt, session: noted.session });
    for (const policy of this.#policies.values()) policy.routed?.(prompt, noted, at);
  }

  #freed(requestId: string): void {
    const live = this.#live.get(requestId);
    if (live === undefined) return;
    this.#live.delete(requestId);
    live.session.live--;
    this.#each((policy, at) => {
      live.session.heardMs = at.heardMs;
      policy.freed?.(live.prompt, at);
    });
  }

  #onNews(news: WorkerEvent): void {
    const { target, kind } = news;
    const before = this.#seen.get(target.id);
    if (kind === "left") {
      this.#seen.delete(target.id);
      this.#each((policy, at) => policy.workerLeft?.(target.worker, at));
      return;
    }
    const hasNames = this.#options.namer.group(target) !== null;
    this.#seen.set(target.id, { hasNames, isKnown: target.isKnown });
    // The worker was not completely known before: its agent restarted, or events were lost.
    const isBack = before?.isKnown === false && target.isKnown;
    if (hasNames && (before?.hasNames !== true || isBack)) this.workerCold(target);
  }

  #tick(): void {
    this.#sessions.expire(this.#now().heardMs);
    this.#each((policy, at) => policy.tick?.(at));
  }

  /**
   * Returns the current time. While the process is suspended, `heardMs` stops, so that sessions do
   * not become idle.
   */
  #now(): Moment {
    const { clock, settings } = this.#options;
    const nowMs = clock.monotonicMs();
    this.#heardMs += Math.min(Math.max(0, nowMs - this.#lastMs), 2 * settings.tickMs);
    this.#lastMs = nowMs;
    return { nowMs, heardMs: this.#heardMs };
  }

  #ofRequest(
    requestId: string,
    call: (policy: Policy, prompt: RoutedPrompt, at: Moment) => void,
  ): void {
    const live = this.#live.get(requestId);
    if (live !== undefined) this.#each((policy, at) => call(policy, live.prompt, at));
  }
}

/** Name of each policy's group of settings. */
const SETTINGS = {
  cold_worker: "coldWorker",
  idle_session: "idleSession",
  cache_control: "cacheControl",
  reasoning: "reasoning",
  context_rewrite: "contextRewrite",
} as const satisfies Record<PolicyName, keyof PolicySettings>;

/** A routed request in the form that policies receive. */
export interface RoutedPrompt {
  readonly requestId: string;
  readonly request: RouteRequest;
  readonly target: Target;
  /** Names of the prompt's full blocks. */
  readonly chain: PromptChain;
}

/** A `cache_control` mark: the first `promptTokens` tokens of the prompt should stay cached. */
export interface CacheMark {
  readonly promptTokens: number;
  /** Requested TTL. Null: use the default from the settings. */
  readonly ttlMs: number | null;
}

/** A point in time on two clocks. */
export interface Moment {
  readonly nowMs: number;
  /** Time for which this process has run, in ms. It stops while the process is suspended. */
  readonly heardMs: number;
}

/**
 * A cache policy. It receives events in order and sends commands through its queue without waiting;
 * outcomes arrive later in `settled`. Its state is bounded. It must not throw, and it drops a
 * command if its queue is full.
 */
export interface Policy {
  readonly queue: CommandQueue;
  routed?(prompt: RoutedPrompt, noted: Noted, at: Moment): void;
  prefillComplete?(prompt: RoutedPrompt, at: Moment): void;
  /** Receives all output tokens of a request. Called before `freed`. */
  answered?(prompt: RoutedPrompt, output: Uint32Array, at: Moment): void;
  freed?(prompt: RoutedPrompt, at: Moment): void;
  cacheControl?(prompt: RoutedPrompt, owner: string, marks: readonly CacheMark[]): void;
  /** The user of this session is expected to continue it soon. */
  returning?(sessionId: string, at: Moment): void;
  /** The client declared that this prompt is a rewrite of the session's previous one. */
  rewritten?(prompt: RoutedPrompt, at: Moment): void;
  sessionEnded?(sessionId: string, at: Moment): void;
  /** The session table evicted this session. */
  sessionDropped?(session: Session): void;
  /** The worker joined or lost its RAM contents. */
  workerCold?(target: Target, at: Moment): void;
  workerLeft?(worker: WorkerId, at: Moment): void;
  tick?(at: Moment): void;
}

/** Events that only the proxy or an HTTP client can report. */
export type PolicyMarks = Pick<
  Policies,
  "cacheControl" | "answered" | "rewritten" | "returning" | "sessionEnded" | "reasoningTokens"
>;
