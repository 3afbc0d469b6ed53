import type { Clock, WorkerId } from "../../core/index.ts";
import type { RouteDecision, RouteRequest, Router, RouterObserver } from "../route.ts";
import type { Target, TargetId, WorkerNews, WorkerTable } from "../workers.ts";
import { CacheControl } from "./cache-control.ts";
import { ColdWorker } from "./cold-worker.ts";
import {
  type Commander,
  Desk,
  POLICY_NAMES,
  type PolicyCounts,
  type PolicyName,
} from "./command-queue.ts";
import { ContextRewrite } from "./context-rewrite.ts";
import { Reasoning } from "./reasoning.ts";
import { IdleSession } from "./idle-session.ts";
import type { BlockNamer, PromptChain } from "./prompt-chain.ts";
import { type Noted, type Session, SessionBook } from "./session-table.ts";
import type { PolicyMode, PolicySettings, ReasoningTokens } from "./settings.ts";

/** Models whose boundaries of reasoning a proxy may tell. */
const MODELS_MAX = 256;

export interface PoliciesOptions {
  readonly clock: Clock;
  readonly settings: PolicySettings;
  readonly commander: Commander;
  readonly namer: BlockNamer;
  readonly router: Pick<Router, "listen" | "noteAction">;
  readonly table: Pick<WorkerTable, "listen" | "targets">;
}

/** The policies beside a router. Nothing of them outlasts it; what they began ends by its time. */
export interface Policies extends Disposable {
  readonly marks: PolicyMarks;
  /** One for each policy that is not off. */
  readonly counts: readonly PolicyCounts[];
  /** What they remember. */
  readonly sessions: number;
  readonly liveRequests: number;
  /** A worker emptied its RAM. One that joins, or restarts, is noticed without being told. */
  workerCold(target: Target): void;
  /** A policy that is switched off forgets; one that is switched on begins with nothing. */
  setMode(policy: PolicyName, mode: PolicyMode): void;
}

/** A live request, and its session in the book. */
interface Live {
  readonly prompt: RoutedPrompt;
  readonly session: Session;
}

/** While all policies are off, nothing listens and nothing is kept. */
export function createPolicies(options: PoliciesOptions): Policies {
  return new OwnPolicies(options);
}

class OwnPolicies implements Policies {
  readonly marks: PolicyMarks;
  readonly #options: PoliciesOptions;
  readonly #policies = new Map<PolicyName, Policy>();
  readonly #live = new Map<string, Live>();
  readonly #reasoning: Map<string, ReasoningTokens>;
  /** As it was told of each target last; the table bounds them. */
  readonly #seen = new Map<TargetId, { readonly hasNames: boolean; readonly isKnown: boolean }>();
  #book: SessionBook;
  #listening: readonly Disposable[] = [];
  #heardMs = 0;
  #lastMs: number;

  constructor(options: PoliciesOptions) {
    const { clock, settings } = options;
    this.#options = options;
    this.#lastMs = clock.monotonicMs();
    this.#book = this.#newBook();
    this.#reasoning = new Map(Object.entries(settings.reasoning.models));
    this.marks = this.#createMarks();
    for (const policy of POLICY_NAMES) this.setMode(policy, settingsOf(policy, settings).mode);
  }

  get counts(): readonly PolicyCounts[] {
    return [...this.#policies.values()].map(({ desk }) => desk.counts);
  }

  get sessions(): number {
    return this.#book.sessions;
  }

  get liveRequests(): number {
    return this.#live.size;
  }

  setMode(policy: PolicyName, mode: PolicyMode): void {
    const known = this.#policies.get(policy);
    if (mode === "off") this.#policies.delete(policy);
    else if (known !== undefined) known.desk.setMode(mode);
    else this.#policies.set(policy, this.#create(policy, mode));
    if (this.#policies.size === 0) this.#stop();
    else if (this.#listening.length === 0) this.#start();
  }

  workerCold(target: Target): void {
    this.#each((policy, at) => policy.workerCold?.(target, at));
  }

  [Symbol.dispose](): void {
    this.#stop();
    this.#policies.clear();
  }

  #create(name: PolicyName, mode: PolicyMode): Policy {
    const { commander, router, settings, namer } = this.#options;
    const note: ConstructorParameters<typeof Desk>[0]["note"] = (requestId, action) => {
      router.noteAction(requestId, action);
    };
    const { inFlightMax } = settingsOf(name, settings);
    const desk = new Desk({ policy: name, mode, inFlightMax, commander, note });
    switch (name) {
      case "cold_worker":
        return new ColdWorker(desk, settings.coldWorker, namer, this.#book);
      case "idle_session":
        return new IdleSession(desk, settings.idleSession, this.#book);
      case "cache_control":
        return new CacheControl(desk, settings.cacheControl);
      case "reasoning":
        return new Reasoning(desk, settings.reasoning, namer, this.#reasoning);
      case "context_rewrite":
        return new ContextRewrite(desk, settings.contextRewrite, this.#book);
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
    this.#book = this.#newBook();
  }

  #newBook(): SessionBook {
    return new SessionBook(this.#options.settings.book, (session) => {
      for (const policy of this.#policies.values()) policy.sessionDropped?.(session);
    });
  }

  #each(tell: (policy: Policy, at: Moment) => void): void {
    const at = this.#now();
    for (const policy of this.#policies.values()) tell(policy, at);
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
    // What is computed lies with the worker that does the prefill.
    const holder = prefill ?? target;
    const chain = namer.chain(holder, request);
    const { blocksMax, linesMax } = settings.book;
    if (chain === null || chain.blocks === 0 || chain.blocks > blocksMax / linesMax) return;
    this.#freed(requestId);
    const at = this.#now();
    const noted = this.#book.note(request, holder, chain, at.heardMs);
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

  #onNews(news: WorkerNews): void {
    const { target, kind } = news;
    const before = this.#seen.get(target.id);
    if (kind === "left") {
      this.#seen.delete(target.id);
      this.#each((policy, at) => policy.workerLeft?.(target.worker, at));
      return;
    }
    const hasNames = this.#options.namer.group(target) !== null;
    this.#seen.set(target.id, { hasNames, isKnown: target.isKnown });
    // A picture that is whole again: its agent restarted, or events were lost on their way.
    const isBack = before?.isKnown === false && target.isKnown;
    if (hasNames && (before?.hasNames !== true || isBack)) this.workerCold(target);
  }

  #tick(): void {
    this.#book.expire(this.#now().heardMs);
    this.#each((policy, at) => policy.tick?.(at));
  }

  /** A process that stood still for an hour has not heard that anybody was silent. */
  #now(): Moment {
    const { clock, settings } = this.#options;
    const nowMs = clock.monotonicMs();
    this.#heardMs += Math.min(Math.max(0, nowMs - this.#lastMs), 2 * settings.tickMs);
    this.#lastMs = nowMs;
    return { nowMs, heardMs: this.#heardMs };
  }

  #createMarks(): PolicyMarks {
    const of = (
      requestId: string,
      tell: (policy: Policy, prompt: RoutedPrompt, at: Moment) => void,
    ) => {
      const live = this.#live.get(requestId);
      if (live !== undefined) this.#each((policy, at) => tell(policy, live.prompt, at));
    };
    return {
      cacheControl: (requestId, owner, marks) =>
        of(requestId, (policy, prompt) => policy.cacheControl?.(prompt, owner, marks)),
      answered: (requestId, output) =>
        of(requestId, (policy, prompt, at) => policy.answered?.(prompt, output, at)),
      rewritten: (requestId) =>
        of(requestId, (policy, prompt, at) => policy.rewritten?.(prompt, at)),
      returning: (sessionId) => this.#each((policy, at) => policy.returning?.(sessionId, at)),
      sessionEnded: (sessionId) => {
        this.#each((policy, at) => policy.sessionEnded?.(sessionId, at));
        this.#book.drop(sessionId);
      },
      reasoningTokens: (model, tokens) => {
        if (this.#options.settings.reasoning.models[model] !== undefined) return;
        if (this.#reasoning.size < MODELS_MAX) this.#reasoning.set(model, tokens);
      },
    };
  }
}

function settingsOf(policy: PolicyName, settings: PolicySettings) {
  const { coldWorker, idleSession, cacheControl, reasoning, contextRewrite } = settings;
  const all = {
    cold_worker: coldWorker,
    idle_session: idleSession,
    cache_control: cacheControl,
    reasoning,
    context_rewrite: contextRewrite,
  };
  return all[policy];
}

/** A routed request, as policies see it. */
export interface RoutedPrompt {
  readonly requestId: string;
  readonly request: RouteRequest;
  readonly target: Target;
  /** Its full blocks by name. */
  readonly chain: PromptChain;
}

/** What the sender of a prompt wants kept: its first `promptTokens` tokens. */
export interface CacheMark {
  readonly promptTokens: number;
  /** Null: as long as the settings say. */
  readonly ttlMs: number | null;
}

/** Two clocks of one moment. */
export interface Moment {
  readonly nowMs: number;
  /** Time in which we listened: it stands still while the process does. */
  readonly heardMs: number;
}

/**
 * One policy. Told of what happens, in order; sends commands through its desk, and never waits for
 * them: what comes of one arrives later, in `settled`. Promises: bounded state; no throw; nothing
 * is sent for what its desk has no room for.
 */
export interface Policy {
  readonly desk: Desk;
  routed?(prompt: RoutedPrompt, noted: Noted, at: Moment): void;
  prefillComplete?(prompt: RoutedPrompt, at: Moment): void;
  /** The tokens of the whole answer, before `freed`. */
  answered?(prompt: RoutedPrompt, output: Uint32Array, at: Moment): void;
  freed?(prompt: RoutedPrompt, at: Moment): void;
  cacheControl?(prompt: RoutedPrompt, owner: string, marks: readonly CacheMark[]): void;
  /** A user is about to ask. */
  returning?(sessionId: string, at: Moment): void;
  /** The sender says that this prompt is the one before, rewritten. */
  rewritten?(prompt: RoutedPrompt, at: Moment): void;
  sessionEnded?(sessionId: string, at: Moment): void;
  /** The book has forgotten it. */
  sessionDropped?(session: Session): void;
  /** It joined, or lost what it had in RAM. */
  workerCold?(target: Target, at: Moment): void;
  workerLeft?(worker: WorkerId, at: Moment): void;
  tick?(at: Moment): void;
}

/** What those who see the messages tell the policies: the proxy, or a client over HTTP. */
export interface PolicyMarks {
  /** After the request was routed. `owner`: the tenant, whose budget it is. */
  cacheControl(requestId: string, owner: string, marks: readonly CacheMark[]): void;
  /** At the end of the answer, before `free`. */
  answered(requestId: string, outputTokens: Uint32Array): void;
  /** After it was routed. */
  rewritten(requestId: string): void;
  returning(sessionId: string): void;
  sessionEnded(sessionId: string): void;
  /** From a model's chat template or tokenizer; what the settings say of the model wins. */
  reasoningTokens(model: string, tokens: ReasoningTokens): void;
}
