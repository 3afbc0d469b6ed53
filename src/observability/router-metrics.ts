import type { Clock } from "../core/index.ts";
import type { ApiRefusal } from "./catalogue.ts";
import {
  DECIDED_BY,
  type DecidedByLabel,
  END_REASONS,
  type EndReasonLabel,
  FILTER_REASONS,
  type FilterReasonLabel,
  INGEST_EVENTS,
  RESYNCS,
  ROUTE_OUTCOMES,
  ROUTER_TIERS,
  type RouteOutcomeLabel,
  WORKER_STATES,
} from "./catalogue-router.ts";
import type { HealthCount } from "./health.ts";
import { writeHealth, writeProcess } from "./metrics.ts";
import { createRegistry, type MetricRegistry } from "./registry.ts";
import type { ProcessSnapshot } from "./snapshots.ts";

/** Tokens of a decision that counts as load. */
export interface RoutedTokens {
  readonly prompt: number;
  readonly device: number;
  readonly host: number;
  readonly disk: number;
}

/** For each worker, why it was filtered out; null for a candidate. */
type Reasons = readonly (FilterReasonLabel | null)[];

/** Counters kept by the router, read at scrape time. */
export interface RouterSnapshot {
  readonly workers: Readonly<Record<(typeof WORKER_STATES)[number], number>>;
  readonly known: number;
  readonly activeRequests: number;
  readonly index: {
    readonly blocks: number;
    readonly heldBlocks: number;
    readonly bytes: number;
    readonly forgotten: number;
  };
  /** Null without KV events. */
  readonly events: {
    readonly kinds: Readonly<Record<(typeof INGEST_EVENTS)[number], number>>;
    readonly resyncs: Readonly<Record<(typeof RESYNCS)[number], number>>;
  } | null;
}

/** All metrics of a router. */
export interface RouterMetrics {
  /** Counts one answered routing request. */
  answered(outcome: RouteOutcomeLabel, seconds: number): void;
  /** Counts a request that now counts as load. */
  routed(tokens: RoutedTokens, by: DecidedByLabel, reasons: Reasons): void;
  waiting(requests: number): void;
  ended(why: EndReasonLabel): void;
  observeRouter(read: () => RouterSnapshot): void;
  observeHealth(read: () => readonly HealthCount[]): void;
  observeProcess(read: () => ProcessSnapshot): void;
  observeApi(read: () => ReadonlyMap<ApiRefusal, number>): void;
  /** Adds a part with metrics of its own: `write` is called at each scrape. */
  observe(write: (registry: MetricRegistry) => void): void;
  /**
   * Returns a function that adds to one series of a histogram. Create it once and call it often.
   */
  observer: MetricRegistry["observer"];
  /** Share of prompt tokens that were cached in the last five minutes; 0 without requests. */
  hitRatio(): number;
  /** The Prometheus text format. */
  text(): Promise<string>;
  readonly contentType: string;
}

export interface RouterMetricsOptions {
  readonly clock: Clock;
  readonly version: string;
  readonly commit: string;
}

export function createRouterMetrics(options: RouterMetricsOptions): RouterMetrics {
  const { clock, version, commit } = options;
  const registry = createRegistry("router");
  const startedMs = clock.monotonicMs();
  const counts = new RouterCounts();
  const recent = new RecentRatio(clock);
  const observeSeconds = registry.observer("routerSeconds", {});
  const readers: (() => void)[] = [() => counts.write(registry)];
  registry.set("buildInfo", 1, { version, commit });
  return {
    answered(outcome, seconds) {
      counts.outcomes[outcome]++;
      observeSeconds(seconds);
    },
    routed(tokens, by, reasons) {
      counts.routed(tokens, by, reasons);
      recent.add(tokens.prompt, tokens.device + tokens.host + tokens.disk);
    },
    waiting(requests) {
      counts.waiting = requests;
    },
    ended: (why) => void counts.ended[why]++,
    observeRouter: (read) => void readers.push(() => writeRouter(registry, read())),
    observeHealth: (read) => void readers.push(() => writeHealth(registry, read())),
    observeProcess: (read) => void readers.push(() => writeProcess(registry, read())),
    observeApi: (read) =>
      void readers.push(() => {
        for (const [code, count] of read()) registry.set("apiRefused", count, { code });
      }),
    observe: (write) => void readers.push(() => write(registry)),
    observer: (name, labels) => registry.observer(name, labels),
    hitRatio: () => recent.ratio(),
    text: () =>
      registry.text(() => {
        for (const read of readers) read();
        registry.set("routerHitRatio", recent.ratio());
        registry.set("uptime", (clock.monotonicMs() - startedMs) / 1_000);
      }),
    contentType: registry.contentType,
  };
}

type Counts<Label extends string> = Record<Label, number>;

function zeros<Label extends string>(labels: readonly Label[]): Counts<Label> {
  return Object.fromEntries(labels.map((label) => [label, 0])) as Counts<Label>;
}

class RouterCounts {
  readonly outcomes = zeros(ROUTE_OUTCOMES);
  readonly ended = zeros(END_REASONS);
  readonly #by = zeros(DECIDED_BY);
  readonly #filtered = zeros(FILTER_REASONS);
  readonly #cached = zeros(ROUTER_TIERS);
  #prompt = 0;
  waiting = 0;

  routed(tokens: RoutedTokens, by: DecidedByLabel, reasons: Reasons): void {
    this.#by[by]++;
    for (const reason of reasons) if (reason !== null) this.#filtered[reason]++;
    this.#prompt += tokens.prompt;
    for (const tier of ROUTER_TIERS) this.#cached[tier] += tokens[tier];
  }

  write(registry: MetricRegistry): void {
    for (const outcome of ROUTE_OUTCOMES)
      registry.set("routerOutcomes", this.outcomes[outcome], { outcome });
    for (const by of DECIDED_BY) registry.set("routerDecisions", this.#by[by], { by });
    for (const reason of FILTER_REASONS)
      registry.set("routerFiltered", this.#filtered[reason], { reason });
    for (const tier of ROUTER_TIERS)
      registry.set("routerCachedTokens", this.#cached[tier], { tier });
    for (const why of END_REASONS) registry.set("routerEnded", this.ended[why], { why });
    registry.set("routerPromptTokens", this.#prompt);
    registry.set("routerWaiting", this.waiting);
  }
}

const SLICE_MS = 10_000;
const SLICES = 30;

/** Requested and cached tokens of the last five minutes, in slices of ten seconds. */
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
    this.#asked[this.#slice % SLICES]! += asked;
    this.#cached[this.#slice % SLICES]! += Math.min(asked, cached);
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

function writeRouter(registry: MetricRegistry, router: RouterSnapshot): void {
  const { workers, index, events } = router;
  for (const state of WORKER_STATES) registry.set("routerWorkers", workers[state], { state });
  registry.set("routerKnown", router.known);
  registry.set("routerActive", router.activeRequests);
  registry.set("routerIndexBlocks", index.blocks);
  registry.set("routerIndexHeld", index.heldBlocks);
  registry.set("routerIndexBytes", index.bytes);
  registry.set("routerForgotten", index.forgotten);
  if (events === null) return;
  for (const kind of INGEST_EVENTS) registry.set("routerEvents", events.kinds[kind], { kind });
  for (const kind of RESYNCS) registry.set("routerResyncs", events.resyncs[kind], { kind });
}
