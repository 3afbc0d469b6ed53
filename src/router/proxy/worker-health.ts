import type { Clock, Random, WorkerId } from "../../core/index.ts";
import {
  connectSubscriber,
  engineBinds,
  parseEndpoint,
  type ZmtpSubscriber,
} from "../../events/zmtp/index.ts";
import type { ProxyParts } from "./exchange.ts";
import type { RequestEnd } from "./observer.ts";
import { fieldsIn, isFields } from "./request-body.ts";
import { getText } from "./upstream.ts";

type HealthParts = Pick<ProxyParts, "clock" | "random" | "table" | "settings" | "upstream">;

/** Checks workers, and excludes those whose servers or engine processes do not answer. */
export class WorkerHealth implements AsyncDisposable {
  readonly #parts: HealthParts;
  readonly #onChange: (worker: WorkerId, why: string | null) => void;
  readonly #probes = new Map<string, ServerProbe>();
  readonly #listeners = new Set<() => void>();
  readonly #closing = new Set<Promise<void>>();
  readonly #timer: Disposable | null;
  #out: ReadonlyMap<WorkerId, string> = new Map();
  /** Number of exclusions since the start. */
  times = 0;

  /**
   * `onChange`: called with the reason if a worker is excluded, and with null if it is used again.
   */
  constructor(parts: HealthParts, onChange: (worker: WorkerId, why: string | null) => void) {
    [this.#parts, this.#onChange] = [parts, onChange];
    const everyMs = parts.settings.healthEveryMs;
    this.#timer = everyMs === null ? null : parts.clock.every(everyMs, () => this.#check());
    if (everyMs !== null) this.#check();
  }

  /** Excluded workers with the reasons. They are chosen only if no other worker is available. */
  get out(): ReadonlyMap<WorkerId, string> {
    return this.#out;
  }

  /** Number of engine processes that answer pings. */
  get pulses(): number {
    return [...this.#probes.values()].reduce((sum, { pulses }) => sum + pulses, 0);
  }

  /** Calls the listener after each change, until disposed. The listener must not throw. */
  listen(listener: () => void): Disposable {
    this.#listeners.add(listener);
    return { [Symbol.dispose]: () => void this.#listeners.delete(listener) };
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#timer?.[Symbol.dispose]();
    for (const url of [...this.#probes.keys()]) this.#forget(url);
    await Promise.all(this.#closing);
  }

  #check(): void {
    const urls = new Set<string>();
    for (const { url, state } of this.#parts.table.targets) {
      if (url !== null && state !== "gone") urls.add(url);
    }
    for (const url of this.#probes.keys()) if (!urls.has(url)) this.#forget(url);
    for (const url of urls) {
      if (this.#probes.has(url)) continue;
      const probe = new ServerProbe(url, this.#parts, () => this.#changed());
      this.#probes.set(url, probe);
    }
    for (const probe of this.#probes.values()) void probe.check();
    this.#changed();
  }

  #forget(url: string): void {
    const probe = this.#probes.get(url);
    if (probe === undefined) return;
    this.#probes.delete(url);
    const closing = probe[Symbol.asyncDispose]().finally(() => this.#closing.delete(closing));
    this.#closing.add(closing);
  }

  /**
   * Recomputes the excluded workers and reports changes. A server may have several ranks; if one of
   * its processes is silent, all its ranks are excluded.
   */
  #changed(): void {
    const out = new Map<WorkerId, string>();
    for (const { url, worker } of this.#parts.table.targets) {
      const why = url === null ? null : (this.#probes.get(url)?.why ?? null);
      if (why !== null) out.set(worker, why);
    }
    const before = this.#out;
    this.#out = out;
    let isOther = false;
    for (const [worker, why] of out) {
      if (before.has(worker)) continue;
      isOther = true;
      this.times++;
      this.#onChange(worker, why);
    }
    for (const worker of before.keys()) {
      if (out.has(worker)) continue;
      isOther = true;
      this.#onChange(worker, null);
    }
    if (isOther) for (const listener of [...this.#listeners]) listener();
  }
}

const ANSWER_BYTES_MAX = 64 * 1024;
/**
 * Delay of a timer, in ms, above which this process was stalled. The worker is then not to blame.
 */
const LATE_MS = 500;
const SERVER_ERROR = 500;

type Verdict = { readonly kind: "well" | "unknown" } | { readonly kind: "failure"; why: string };

/**
 * Checks the health of one server by `GET /health`. If the server reports that its engine processes
 * publish KV events, also pings these processes. Any status below 500 means healthy, because some
 * servers lack the path. Forwarded requests and their delays have no influence.
 */
class ServerProbe implements AsyncDisposable {
  readonly url: string;
  readonly #parts: HealthParts;
  readonly #onChange: () => void;
  readonly #closing = new AbortController();
  #pulses: EngineProbe[] = [];
  #hasSources = false;
  #isAsking = false;
  #failure: string | null = null;

  constructor(url: string, parts: HealthParts, onChange: () => void) {
    [this.url, this.#parts, this.#onChange] = [url, parts, onChange];
  }

  /** Reason why the worker must not be chosen. Null: the worker is healthy. */
  get why(): string | null {
    if (this.#failure !== null) return this.#failure;
    const silent = this.#pulses.find(({ isSilent }) => isSilent);
    return silent === undefined ? null : `the engine process behind ${silent.endpoint} is silent`;
  }

  /** Number of engine processes that answer pings. */
  get pulses(): number {
    return this.#pulses.filter(({ isHeard }) => isHeard).length;
  }

  /** Runs a health check, unless one is in progress. */
  async check(): Promise<void> {
    if (this.#isAsking) return;
    this.#isAsking = true;
    for (const pulse of this.#pulses) pulse.check();
    const verdict = await this.#ask();
    this.#isAsking = false;
    if (this.#closing.signal.aborted || verdict.kind === "unknown") return;
    const before = this.why;
    // The engine may have restarted and publish at another address, so query the addresses again.
    if (this.#failure !== null && this.#pulses.length === 0) this.#hasSources = false;
    this.#failure = verdict.kind === "failure" ? verdict.why : null;
    if ((before === null) !== (this.why === null)) this.#onChange();
    if (verdict.kind === "well") await this.#findPulses();
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#closing.abort();
    await Promise.all(this.#pulses.map((pulse) => pulse[Symbol.asyncDispose]()));
  }

  async #ask(): Promise<Verdict> {
    const { clock, settings } = this.#parts;
    const timeoutMs = settings.healthTimeoutMs;
    const startMs = clock.monotonicMs();
    const late = new AbortController();
    using _deadline = clock.after(timeoutMs, () => late.abort());
    const got = await this.#get("/health", late.signal);
    if (late.signal.aborted) {
      const isLocal = clock.monotonicMs() - startMs > timeoutMs + LATE_MS;
      const why = `no answer to GET /health within ${timeoutMs} ms`;
      return isLocal ? { kind: "unknown" } : { kind: "failure", why };
    }
    if (got.kind === "failed") {
      // The fault is in this process: no request was sent.
      if (got.stage === "unsendable") return { kind: "unknown" };
      return { kind: "failure", why: `GET /health failed: ${got.why}` };
    }
    if (got.status < SERVER_ERROR) return { kind: "well" };
    return { kind: "failure", why: `GET /health answered ${got.status}` };
  }

  /**
   * Queries where the engine publishes KV events, and starts to ping these endpoints. Queries again
   * after an engine process has ended, because the next one may publish elsewhere or not at all.
   */
  async #findPulses(): Promise<void> {
    if (this.#hasSources && this.#pulses.some(({ isGone }) => isGone)) {
      const gone = this.#pulses;
      [this.#pulses, this.#hasSources] = [[], false];
      await Promise.all(gone.map((pulse) => pulse[Symbol.asyncDispose]()));
    }
    if (this.#hasSources) return;
    this.#hasSources = true;
    const got = await this.#get("/kv_event_sources", this.#closing.signal);
    if (this.#closing.signal.aborted || got.kind === "failed" || got.status !== 200) return;
    const { clock, random } = this.#parts;
    const endpoints = new Set(eventSources(got.text, this.url).map(({ events }) => events));
    this.#pulses = [...endpoints].map((endpoint) => {
      return new EngineProbe(endpoint, { clock, random }, this.#onChange);
    });
  }

  #get(path: string, signal: AbortSignal) {
    const { upstream, settings } = this.#parts;
    const { authorization, healthTimeoutMs: timeoutMs } = settings;
    const order = { url: this.url, path, authorization, timeoutMs, bytesMax: ANSWER_BYTES_MAX };
    return getText(upstream, order, AbortSignal.any([signal, this.#closing.signal]));
  }
}

/**
 * Timeouts of pings. `isSilent` becomes true at most `silenceMs` + `pingMs` + `GRACE_MS` (3.9 s)
 * after the last sign of life.
 */
const LIMITS = {
  pingMs: 700,
  silenceMs: 2_400,
  handshakeMs: 2_000,
  redialFirstMs: 100,
  redialMaxMs: 1_000,
};
/**
 * Time in ms to reconnect before a process counts as silent. If the router itself was stalled, all
 * connections seem silent, but reconnect within this time.
 */
const GRACE_MS = 700;

/**
 * Pings the socket on which an engine's core process publishes KV events. A ZeroMQ thread answers
 * even while the engine computes a long prefill. If the process is stopped, the pings get no answer
 * although its HTTP server still answers.
 */
class EngineProbe implements AsyncDisposable {
  readonly endpoint: string;
  readonly #clock: Clock;
  readonly #onChange: () => void;
  readonly #subscriber: ZmtpSubscriber;
  #grace: Disposable | null = null;
  #isSilent = false;

  constructor(
    endpoint: string,
    { clock, random }: { readonly clock: Clock; readonly random: Random },
    onChange: () => void,
  ) {
    [this.endpoint, this.#clock, this.#onChange] = [endpoint, clock, onChange];
    this.#subscriber = connectSubscriber({
      // Subscribe to no topic, so that no events arrive here. Another connection receives the
      // events.
      endpoint,
      clock,
      random,
      limits: LIMITS,
      topics: [],
      onMessage: () => undefined,
      onConnected: () => this.#set(false),
      onDisconnected: () => this.#wait(),
    });
  }

  get isHeard(): boolean {
    return this.#subscriber.state.status === "connected";
  }

  /** True if the process answered before and is silent now, and the connection has not ended. */
  get isSilent(): boolean {
    return this.#isSilent;
  }

  /**
   * True if the process has ended or closed its socket. Its silence then does not count as a
   * failure.
   */
  get isGone(): boolean {
    const { status, connections, isHung } = this.#subscriber.state;
    return status !== "connected" && connections > 0 && !isHung && this.#grace === null;
  }

  /** Ends a silence if the process has ended meanwhile: a refused connection causes no callback. */
  check(): void {
    if (this.#isSilent && this.isGone) this.#set(false);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#grace?.[Symbol.dispose]();
    await this.#subscriber[Symbol.asyncDispose]();
  }

  #wait(): void {
    this.#grace ??= this.#clock.after(GRACE_MS, () => {
      this.#grace = null;
      const { status, isHung, connections } = this.#subscriber.state;
      // An endpoint that never answered may be behind a firewall, so its silence does not count.
      if (status === "connecting" && connections > 0) this.#set(isHung);
    });
  }

  #set(isSilent: boolean): void {
    if (!isSilent) {
      this.#grace?.[Symbol.dispose]();
      this.#grace = null;
    }
    if (this.#isSilent === isSilent) return;
    this.#isSilent = isSilent;
    this.#onChange();
  }
}

/** Endpoint where one rank of an engine publishes KV events, reachable from other hosts. */
export interface EventSource {
  readonly rank: number;
  readonly events: string;
  /** Endpoint that replays past events. Null: the publisher keeps no events. */
  readonly replay: string | null;
}

/** Maximum publishers in an answer. Each rank has one. */
const RANKS_MAX = 256;
const TCP = /^tcp:\/\/(\*|[A-Za-z0-9.:_[\]-]+):([1-9][0-9]{0,4})$/;
const ANY_HOSTS: ReadonlySet<string> = new Set(["*", "0.0.0.0", "[::]", "::"]);

/**
 * Parses the answer of vLLM's `GET /kv_event_sources`. Returns the publishers in order of rank,
 * each address with the host of `url`. Omits publishers that connect to a listener, because they
 * cannot be reached.
 */
export function eventSources(text: string, url: string): EventSource[] {
  const host = URL.parse(url)?.hostname;
  if (host === undefined) return [];
  return Object.entries(fieldsIn(text) ?? {})
    .slice(0, RANKS_MAX)
    .flatMap(([rank, source]) => sourceOf(Number(rank), source, host))
    .sort((a, b) => a.rank - b.rank);
}

function sourceOf(rank: number, value: unknown, host: string): EventSource[] {
  if (!isFields(value) || !Number.isInteger(rank)) return [];
  const { publisher, endpoint, replay_endpoint, enable_kv_cache_events: isOn } = value;
  if (publisher !== "zmq" || isOn === false) return [];
  if (typeof endpoint !== "string" || !engineBinds(endpoint, "vllm")) return [];
  const events = reachable(endpoint, host);
  return events === null ? [] : [{ rank, events, replay: reachable(replay_endpoint, host) }];
}

/** Returns the endpoint with its host replaced. Null if other hosts cannot reach it. */
function reachable(endpoint: unknown, host: string): string | null {
  const match = typeof endpoint === "string" ? TCP.exec(endpoint) : null;
  if (match === null) return null;
  const reached = `tcp://${ANY_HOSTS.has(match[1]) ? host : match[1]}:${match[2]}`;
  return parseEndpoint(reached) === null ? null : reached;
}

const FIRST_MS = 1_000;
const LONGEST_MS = 30_000;
const WORKERS_MAX = 4_096;
const CLIENT_ERROR = 400;
/**
 * Number of different requests that a worker must fail in a row before it is excluded. One request
 * alone may be the cause of its failure.
 */
export const REQUESTS_MAX = 5;

interface Down {
  readonly untilMs: number;
  readonly forMs: number;
  /** If true, one request tries the worker, and other requests do not use it until `untilMs`. */
  readonly isTried: boolean;
}

/**
 * Circuit breaker for workers that refused connections, or failed several different requests in a
 * row. A worker is excluded for one second, then twice as long after each failure, up to 30
 * seconds. After each pause, a single request tries the worker.
 */
export class DownWorkers {
  readonly #clock: Clock;
  readonly #down = new Map<WorkerId, Down>();
  /** Hashes of the requests that each worker failed since it last completed one. */
  readonly #broken = new Map<WorkerId, Set<bigint>>();

  constructor(clock: Clock) {
    this.#clock = clock;
  }

  /**
   * Reports that a request is being sent to the worker. If its pause has ended, other requests do
   * not use the worker until the result is known.
   */
  tried(worker: WorkerId): void {
    const nowMs = this.#clock.monotonicMs();
    const down = this.#down.get(worker);
    if (down === undefined || down.untilMs > nowMs) return;
    this.#down.set(worker, { ...down, untilMs: nowMs + down.forMs, isTried: true });
  }

  /** Reports that the proxy could not connect to the worker. Excludes the worker. */
  failed(worker: WorkerId): void {
    const nowMs = this.#clock.monotonicMs();
    const before = this.#down.get(worker);
    if (before !== undefined && before.untilMs > nowMs && !before.isTried) return;
    const forMs = before === undefined ? FIRST_MS : Math.min(before.forMs * 2, LONGEST_MS);
    if (before === undefined) makeRoom(this.#down);
    this.#down.set(worker, { untilMs: nowMs + forMs, forMs, isTried: false });
  }

  /**
   * Reports that the worker broke off a request or answered with a server error. Excludes the
   * worker after `REQUESTS_MAX` different requests, or if it was being tried.
   */
  broke(worker: WorkerId, request: bigint): void {
    const requests = this.#broken.get(worker) ?? new Set();
    if (requests.size === 0) makeRoom(this.#broken);
    if (requests.size < REQUESTS_MAX) requests.add(request);
    this.#broken.set(worker, requests);
    const isTried = this.#down.get(worker)?.isTried === true;
    if (requests.size >= REQUESTS_MAX || isTried) this.failed(worker);
  }

  /** Reports that the worker answers. Ends its exclusion. */
  worked(worker: WorkerId): void {
    this.#down.delete(worker);
  }

  /** Reports the end of an answer: complete, or broken off by the worker or the client. */
  ended(worker: WorkerId, request: bigint, how: RequestEnd["how"], status: number): void {
    if (how === "worker") this.broke(worker, request);
    else if (how === "done" && status < CLIENT_ERROR) this.#broken.delete(worker);
  }

  /** Returns the workers that are excluded now. */
  now(): WorkerId[] {
    if (this.#down.size === 0) return [];
    const nowMs = this.#clock.monotonicMs();
    return [...this.#down].flatMap(([worker, { untilMs }]) => (untilMs > nowMs ? [worker] : []));
  }
}

function makeRoom(workers: Map<WorkerId, unknown>): void {
  const [oldest] = workers.keys();
  if (workers.size >= WORKERS_MAX && oldest !== undefined) workers.delete(oldest);
}
