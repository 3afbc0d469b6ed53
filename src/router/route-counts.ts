import type { Clock } from "../core/index.ts";
import { RESIDENCY_TIERS } from "../observability/activity/index.ts";
import type { EndReason } from "./active-load.ts";
import type { Explanation, FilterReason, RouteOutcome } from "./route.ts";

export const ROUTE_OUTCOMES = [
  "routed",
  "none",
  "busy",
  "unknown_worker",
  "aborted",
] as const satisfies readonly (RouteOutcome["kind"] | "aborted")[];
export const DECIDED_BY = [
  "lowest_cost",
  "tie_draw",
  "softmax",
  "affinity",
  "direct",
  "round_robin",
  "random",
  "least_loaded",
  "only_one",
  "none",
] as const satisfies readonly Explanation["decidedBy"][];
export const FILTER_REASONS = [
  "other_model",
  "other_role",
  "stale",
  "draining",
  "not_allowed",
  "excluded",
  "busy_blocks",
  "busy_prefill",
] as const satisfies readonly FilterReason[];
export const END_REASONS = [
  "free",
  "expired",
  "worker_left",
] as const satisfies readonly EndReason[];

/**
 * Prompt tokens of a routed request, and how many of them the chosen worker had cached in each
 * tier.
 */
export interface RoutedTokens {
  readonly prompt: number;
  readonly device: number;
  readonly host: number;
  readonly disk: number;
}

function zeros<Label extends string>(labels: readonly Label[]): Record<Label, number> {
  return Object.fromEntries(labels.map((label) => [label, 0])) as Record<Label, number>;
}

/** Counters of a router's decisions since the router started. */
export class RouteCounts {
  readonly outcomes = zeros(ROUTE_OUTCOMES);
  readonly endings = zeros(END_REASONS);
  readonly decidedBy = zeros(DECIDED_BY);
  readonly filtered = zeros(FILTER_REASONS);
  readonly cachedTokens = zeros(RESIDENCY_TIERS);
  readonly #observeSeconds: (seconds: number) => void;
  readonly #recent: RecentRatio;
  promptTokens = 0;
  waitingRequests = 0;

  /** `observeSeconds` receives the duration of each routing request that was answered. */
  constructor(clock: Clock, observeSeconds: (seconds: number) => void) {
    this.#recent = new RecentRatio(clock);
    this.#observeSeconds = observeSeconds;
  }

  /** Cached tokens divided by all prompt tokens, over the last five minutes. 0 without requests. */
  get hitRatio(): number {
    return this.#recent.ratio();
  }

  /** Counts a routing request that was answered, by outcome. */
  answered(outcome: (typeof ROUTE_OUTCOMES)[number], seconds: number): void {
    this.outcomes[outcome]++;
    this.#observeSeconds(seconds);
  }

  /**
   * Counts a decision that adds load. `reasons`: for each worker, the reason why it was filtered
   * out, or null if it was a candidate.
   */
  routed(
    tokens: RoutedTokens,
    by: Explanation["decidedBy"],
    reasons: readonly (FilterReason | null)[],
  ): void {
    this.decidedBy[by]++;
    for (const reason of reasons) if (reason !== null) this.filtered[reason]++;
    this.promptTokens += tokens.prompt;
    for (const tier of RESIDENCY_TIERS) this.cachedTokens[tier] += tokens[tier];
    this.#recent.add(tokens.prompt, tokens.device + tokens.host + tokens.disk);
  }

  waiting(requests: number): void {
    this.waitingRequests = requests;
  }

  ended(why: EndReason): void {
    this.endings[why]++;
  }
}

const SLICE_MS = 10_000;
const SLICES = 30;

/** Prompt tokens and cached tokens of the last five minutes, summed in slices of ten seconds. */
class RecentRatio {
  readonly #clock: Clock;
  readonly #asked = new Float64Array(SLICES);
  readonly #cached = new Float64Array(SLICES);
  #slice = 0;

  constructor(clock: Clock) {
    this.#clock = clock;
    this.#slice = this.#now();
  }

  add(asked: number, cached: number): void {
    this.#advance();
    this.#asked[this.#slice % SLICES] += asked;
    this.#cached[this.#slice % SLICES] += Math.min(asked, cached);
  }

  ratio(): number {
    this.#advance();
    const asked = this.#asked.reduce((sum, tokens) => sum + tokens, 0);
    return asked === 0 ? 0 : this.#cached.reduce((sum, tokens) => sum + tokens, 0) / asked;
  }

  #now(): number {
    return Math.floor(this.#clock.monotonicMs() / SLICE_MS);
  }

  #advance(): void {
    const now = this.#now();
    const from = Math.max(this.#slice + 1, now - SLICES + 1);
    for (let slice = from; slice <= now; slice++) {
      this.#asked[slice % SLICES] = 0;
      this.#cached[slice % SLICES] = 0;
    }
    this.#slice = now;
  }
}
