import { SimulatedClock, type WorkerId } from "../../../core/index.ts";
import {
  type CostTerms,
  Policies,
  type PolicySettings,
  type RouteDecision,
  type RouteRequest,
  type RouterObserver,
  type Target,
  type TargetId,
  type WorkerEvent,
} from "../../../router/index.ts";
import { yieldOrAbort } from "../measure.ts";
import { SimAgent } from "./sim-agent.ts";
import { createSimNamer, outputBlocks, type SimTrace } from "./sim-trace.ts";

export interface SimOptions {
  readonly trace: SimTrace;
  readonly settings: PolicySettings;
  readonly workers: number;
  readonly ramBlocks: number;
  readonly ssdBlocks: number;
  /**
   * Milliseconds before a request at which the return of its user is announced; 0 for no
   * announcement.
   */
  readonly leadMs: number;
  /** The worker of each request. Null: the simulation chooses by longest cached prefix. */
  readonly routes: Uint8Array | null;
  readonly signal?: AbortSignal | undefined;
}

/** Numbers of prompt tokens by the tier on which they were cached. */
export interface Found {
  prompt: number;
  ram: number;
  all: number;
}

export interface SimResult {
  readonly found: Found;
  /**
   * `joined`: results of the replaced worker for some time afterwards. The next member is the same
   * for the worker that lost its RAM.
   */
  readonly joined: Found;
  readonly restarted: Found;
  readonly ssdWrites: number;
  readonly warmedBlocks: number;
  /** Number of blocks brought to RAM by a warm command and then requested. */
  readonly warmedUsed: number;
  readonly routes: Uint8Array;
  readonly policies: Policies["counts"];
}

const MODEL = "simulated";
/** Tokens per second: of a prompt being computed, and of an answer being generated. */
const PREFILL_RATE = 20_000;
const DECODE_RATE = 60;
/**
 * Points in the trace, as shares of its duration, at which one worker is replaced and another one
 * loses its RAM.
 */
const JOIN_AT = 0.45;
const RESTART_AT = 0.65;
const COLD_MS = 900_000;
/** The longest prefix counts only among workers with at most this multiple of the mean load. */
const SPREAD = 1.1;
const SPREAD_TOKENS = 200_000;
/**
 * Tokens that begin and end the reasoning in an answer. The reasoning is two thirds of the answer.
 */
const [OPEN, CLOSE] = [1, 2];
const REASONING_SHARE = 2 / 3;
const LOOK_REQUESTS = 512;

/**
 * Replays one trace through simulated agents and policies, in simulated time. Throws ABORTED when
 * the signal fires.
 */
export async function simulate(options: SimOptions): Promise<SimResult> {
  const run = new Run(options);
  return await run.play();
}

interface Served {
  readonly request: number;
  readonly agent: SimAgent;
  readonly assigned: { tokens: number };
}

class Run {
  readonly #options: SimOptions;
  readonly #clock = new SimulatedClock();
  readonly #agents: SimAgent[];
  readonly #assigned: { tokens: number }[];
  readonly #policies: Policies;
  readonly #found: Found = { prompt: 0, ram: 0, all: 0 };
  readonly #joined: Found = { prompt: 0, ram: 0, all: 0 };
  readonly #restarted: Found = { prompt: 0, ram: 0, all: 0 };
  #observer: RouterObserver = {};
  #news: (news: WorkerEvent) => void = () => undefined;
  #joinedMs = Number.POSITIVE_INFINITY;
  #restartedMs = Number.POSITIVE_INFINITY;
  #warmedUsed = 0;
  readonly #routes: Uint8Array;

  constructor(options: SimOptions) {
    const { trace, workers, ramBlocks, ssdBlocks, settings } = options;
    const clock = this.#clock;
    this.#options = options;
    this.#routes = options.routes ?? new Uint8Array(trace.ends.length);
    const find = (worker: string) => this.#agents.find(({ name }) => name === worker) ?? null;
    this.#agents = Array.from({ length: workers }, (_, at) => {
      const name = `worker-${at}` as WorkerId;
      return new SimAgent({ ...{ name, trace, clock, ramBlocks, ssdBlocks, find } });
    });
    this.#assigned = this.#agents.map(() => ({ tokens: 0 }));
    const never = { [Symbol.dispose]: () => undefined };
    this.#policies = new Policies({
      ...{ clock, settings, namer: createSimNamer(trace) },
      commander: {
        send: (worker, command) =>
          find(worker)?.send(command) ?? Promise.resolve({ kind: "no_answer" }),
      },
      router: {
        listen: (observer) => {
          this.#observer = observer;
          return never;
        },
        noteAction: () => true,
      },
      table: {
        targets: [],
        listen: (listener) => {
          this.#news = listener;
          return never;
        },
      },
    });
  }

  async play(): Promise<SimResult> {
    const { trace, signal } = this.#options;
    const lastMs = trace.arrivalMs.at(-1) ?? 0;
    this.#clock.after(lastMs * JOIN_AT, () => this.#join());
    this.#clock.after(lastMs * RESTART_AT, () => this.#restart());
    for (const [request, arrivalMs] of trace.arrivalMs.entries()) {
      while (this.#clock.step(arrivalMs)) {
        // Let tasks that wait for this timer run before the next timer fires.
        await null;
        await null;
      }
      this.#serve(request);
      if (request % LOOK_REQUESTS !== 0) continue;
      await yieldOrAbort(signal);
    }
    const { counts: policies } = this.#policies;
    this.#policies[Symbol.dispose]();
    const sum = (of: (agent: SimAgent) => number) =>
      this.#agents.reduce((total, agent) => total + of(agent), 0);
    return {
      found: this.#found,
      joined: this.#joined,
      restarted: this.#restarted,
      ssdWrites: sum(({ tiers }) => tiers.ssdWrites),
      warmedBlocks: sum(({ warmedBlocks }) => warmedBlocks),
      warmedUsed: this.#warmedUsed,
      routes: this.#routes,
      policies,
    };
  }

  /** Replaces the last worker by an empty one. */
  #join(): void {
    const at = this.#agents.length - 1;
    const target = this.#targetOf(this.#agents[at]);
    this.#news({ kind: "left", target });
    this.#agents[at].replace();
    this.#news({ kind: "joined", target });
    this.#joinedMs = this.#clock.monotonicMs();
  }

  #restart(): void {
    this.#agents[0].loseRam();
    this.#policies.workerCold(this.#targetOf(this.#agents[0]));
    this.#restartedMs = this.#clock.monotonicMs();
  }

  #targetOf({ name }: SimAgent): Target {
    return {
      ...{ id: 0 as TargetId, worker: name, rank: 0, model: MODEL, role: "both", url: null },
      ...{ totalBlocks: null, batchTokensMax: null, spaces: [], state: "live", isKnown: true },
    } as Target;
  }

  #serve(request: number): void {
    const { trace } = this.#options;
    const { blocks, ends, sessionOf, blockTokens } = trace;
    const [from, to] = [request === 0 ? 0 : ends[request - 1], ends[request]];
    if (this.#options.routes === null) this.#routes[request] = this.#choose(from, to);
    const place = this.#routes[request];
    const agent = this.#agents[place];
    const { found, inRam } = agent.tiers.leading(blocks, from, to);
    const tokens = (count: number) => count * blockTokens;
    const counted = { prompt: tokens(to - from), ram: tokens(inRam), all: tokens(found) };
    this.#count(place, counted);
    for (let at = from; at < from + found; at++) {
      if (agent.tiers.warmed.has(blocks[at])) this.#warmedUsed++;
    }
    const routed: RouteRequest = {
      ...{ model: MODEL, requestId: String(request), sessionId: `s${sessionOf[request]}` },
      prompt: { kind: "tokens", tokens: this.#tokensOf(counted.prompt) },
    };
    const decision: RouteDecision = {
      ...{ kind: "routed", target: this.#targetOf(agent), terms: {} as CostTerms },
      ...{ promptTokens: counted.prompt, queuedMs: 0, prefill: null },
    };
    this.#observer.routed?.(routed, decision, new BigUint64Array(0));
    const marks = [{ promptTokens: counted.prompt, ttlMs: null }];
    this.#policies.marks.cacheControl(String(request), `s${sessionOf[request]}`, marks);
    agent.tiers.use(blocks, from, to);
    this.#answer({ request, agent, assigned: this.#assigned[place] }, counted);
  }

  /**
   * Simulates an answer: the first token after the prompt is computed, then the other tokens, then
   * the user's pause.
   */
  #answer({ request, agent, assigned }: Served, { prompt, all }: Found): void {
    const { trace, leadMs, settings } = this.#options;
    const { nextOf, arrivalMs, sessionOf } = trace;
    const output = trace.outputTokens[request];
    assigned.tokens += prompt;
    const prefillMs = ((prompt - all) / PREFILL_RATE) * 1_000;
    this.#clock.after(prefillMs, () => this.#observer.prefillComplete?.(String(request)));
    this.#clock.after(prefillMs + (output / DECODE_RATE) * 1_000, () => {
      const answer = outputBlocks(trace, request);
      agent.tiers.use(answer, 0, answer.length);
      if (settings.reasoning.mode !== "off") {
        this.#policies.marks.answered(String(request), reasoned(output));
      }
      this.#observer.freed?.(String(request), "free");
    });
    const next = nextOf[request];
    const gapMs = next < 0 ? 0 : arrivalMs[next] - arrivalMs[request];
    if (leadMs === 0 || gapMs <= settings.idleSession.idleMs + leadMs) return;
    this.#clock.after(gapMs - leadMs, () => {
      this.#policies.marks.returning(`s${sessionOf[request]}`);
    });
  }

  /** Returns `count` tokens; only their number matters. */
  #tokensOf(count: number): Uint32Array {
    return this.#options.settings.reasoning.mode === "off"
      ? new Uint32Array(0)
      : new Uint32Array(count);
  }

  #choose(from: number, to: number): number {
    const { blocks } = this.#options.trace;
    const mean = this.#assigned.reduce((sum, { tokens }) => sum + tokens, 0) / this.#agents.length;
    let [best, longest] = [-1, -1];
    for (const [at, { tiers }] of this.#agents.entries()) {
      if (this.#assigned[at].tokens > mean * SPREAD + SPREAD_TOKENS) continue;
      const { found } = tiers.leading(blocks, from, to);
      const isLess = best >= 0 && this.#assigned[at].tokens < this.#assigned[best].tokens;
      if (found < longest || (found === longest && !isLess)) continue;
      best = at;
      longest = found;
    }
    return best;
  }

  #count(place: number, { prompt, ram, all }: Found): void {
    const nowMs = this.#clock.monotonicMs();
    const into = [this.#found];
    const isCold = (sinceMs: number) => nowMs >= sinceMs && nowMs < sinceMs + COLD_MS;
    if (place === this.#agents.length - 1 && isCold(this.#joinedMs)) into.push(this.#joined);
    if (place === 0 && isCold(this.#restartedMs)) into.push(this.#restarted);
    for (const found of into) {
      found.prompt += prompt;
      found.ram += ram;
      found.all += all;
    }
  }
}

function reasoned(output: number): Uint32Array {
  const tokens = new Uint32Array(output);
  if (output < 2) return tokens;
  tokens[0] = OPEN;
  tokens[Math.floor(output * REASONING_SHARE)] = CLOSE;
  return tokens;
}

export const SIM_REASONING = { [MODEL]: { open: OPEN, close: CLOSE } };
