import { type Clock, type Random, randomBelow } from "../../core/index.ts";
import type {
  ConnectionFault,
  Dialled,
  Endpoint,
  PeerConnection,
  Transport,
} from "../transport.ts";
import type { BreakerState } from "./fetch-options.ts";
import type { FetchContext } from "./fetcher.ts";
import type { Peer } from "./peer.ts";

/**
 * Maximum share of a cooldown that is randomly skipped, so that many hosts do not retry a failed
 * peer at the same moment.
 */
const JITTER = 0.25;

interface Cooldowns {
  readonly cooldownMs: number;
  readonly cooldownMaxMs: number;
}

/**
 * Circuit breaker. After a failure it blocks requests for a cooldown, then permits one trial. If
 * the trial succeeds, the breaker closes and all requests are permitted; if it fails, requests are
 * blocked for twice the time.
 */
export class Breaker {
  readonly #clock: Clock;
  readonly #random: Random;
  readonly #limits: () => Cooldowns;
  #state: BreakerState = "closed";
  #inRow = 0;
  /**
   * Monotonic milliseconds. While open: end of the cooldown. During a trial: time at which a trial
   * without a result expires.
   */
  #untilMs = 0;

  constructor(clock: Clock, random: Random, limits: () => Cooldowns) {
    this.#clock = clock;
    this.#random = random;
    this.#limits = limits;
  }

  get state(): BreakerState {
    return this.#state;
  }

  /** Milliseconds until the next trial is permitted. Null if requests are not blocked. */
  get waitMs(): number | null {
    if (this.#state === "closed") return null;
    return Math.max(this.#untilMs - this.#clock.monotonicMs(), 0);
  }

  /** True if `enter` would return true. */
  get allows(): boolean {
    return this.#state === "closed" || this.#clock.monotonicMs() >= this.#untilMs;
  }

  /**
   * Requests permission to send a request; the first one after the cooldown is the trial. Returns
   * false if requests are blocked. A trial without a result expires after the maximum cooldown.
   */
  enter(): boolean {
    if (!this.allows) return false;
    if (this.#state === "closed") return true;
    this.#state = "trial";
    this.#untilMs = this.#clock.monotonicMs() + this.#limits().cooldownMaxMs;
    return true;
  }

  /**
   * Ends a trial that this host cancelled, without a result. The next request becomes the trial.
   */
  withdraw(): void {
    if (this.#state !== "trial") return;
    this.#state = "open";
    this.#untilMs = this.#clock.monotonicMs();
  }

  /** Records a success and closes the breaker. Returns true if it was not closed before. */
  succeeded(): boolean {
    const was = this.#state;
    this.#state = "closed";
    this.#inRow = 0;
    return was !== "closed";
  }

  /**
   * Records a failure and opens the breaker. Returns the cooldown in milliseconds, or null if the
   * breaker was open already. `before`: minimum number of earlier failures to assume.
   */
  failed(before = 0): number | null {
    if (this.#state === "open") return null;
    const { cooldownMs, cooldownMaxMs } = this.#limits();
    this.#inRow = Math.max(this.#inRow, before);
    const full = Math.min(cooldownMs * 2 ** Math.min(this.#inRow++, 30), cooldownMaxMs);
    const ms = full * (1 - (JITTER * randomBelow(this.#random, 1_000)) / 1_000);
    this.#state = "open";
    this.#untilMs = this.#clock.monotonicMs() + ms;
    return ms;
  }

  /**
   * Closes the breaker and forgets all failures, because a new process runs under the peer's name.
   */
  reset(): void {
    this.#state = "closed";
    this.#inRow = 0;
  }
}

const KEPT = 128;
/** Minimum number of samples from which a percentile is computed. */
const KNOWN_MIN = 8;
const QUANTILE = 0.95;

/** The latest 128 waiting times in milliseconds, and their 95th percentile. */
class Latencies {
  readonly #ring = new Float64Array(KEPT);
  #count = 0;
  #p95: number | null = null;
  #stale = false;

  add(ms: number): void {
    this.#ring[this.#count++ % KEPT] = ms;
    this.#stale = true;
  }

  /** 95th percentile of the latest samples in milliseconds. Null if there are too few. */
  get p95(): number | null {
    if (!this.#stale) return this.#p95;
    this.#stale = false;
    const kept = Math.min(this.#count, KEPT);
    if (kept < KNOWN_MIN) return this.#p95;
    const sorted = this.#ring.slice(0, kept).sort();
    this.#p95 = sorted[Math.min(Math.ceil(kept * QUANTILE), kept) - 1];
    return this.#p95;
  }
}

/** Bytes after which a goodput sample ends. It also ends when no request is running. */
const SAMPLE_BYTES = 1 << 20;
/**
 * Minimum bytes of a sample. The time of a shorter transfer depends on latency rather than
 * bandwidth.
 */
const SAMPLE_BYTES_MIN = 16 << 10;
const SAMPLE_MS_MIN = 2;
/** Weight of a full sample in the moving average, and minimum weight of a smaller one. */
const WEIGHT = 0.25;
const WEIGHT_MIN = 0.02;
/**
 * Minimum share of a sample's time that counts as transfer time after the round trip was
 * subtracted.
 */
const CARRYING_MIN = 0.1;
/** Milliseconds without a new sample after which the goodput counts as unknown. */
const STALE_MS = 60_000;
/**
 * Minimum bytes, or number of samples, before a low goodput counts against a peer. A single short
 * block is too inaccurate.
 */
const ENOUGH_BYTES = 1 << 20;
const ENOUGH_SAMPLES = 3;

/**
 * Measures the goodput of one transport to one peer in bytes per second, while requests are
 * running. Concurrent requests are measured together, so the result is the capacity of the network
 * path. The round trip before the first byte is subtracted.
 */
class Meter {
  readonly #clock: Clock;
  readonly #rttMs: () => number | null;
  /** True if the next sample starts with a request, so that it includes a round trip. */
  #fresh = true;
  #users = 0;
  #sinceMs = 0;
  #bytes = 0;
  #goodput: number | null = null;
  #sampledMs = 0;
  /** Bytes in all samples since the goodput was last unknown. */
  #sampledBytes = 0;
  #samples = 0;

  constructor(clock: Clock, rttMs: () => number | null) {
    this.#clock = clock;
    this.#rttMs = rttMs;
  }

  begin(): void {
    if (this.#users++ > 0) return;
    this.#sinceMs = this.#clock.monotonicMs();
    this.#bytes = 0;
    this.#fresh = true;
  }

  moved(bytes: number): void {
    this.#bytes += bytes;
    if (this.#bytes >= SAMPLE_BYTES) this.#sample(SAMPLE_MS_MIN);
  }

  end(): void {
    if (--this.#users === 0 && this.#bytes >= SAMPLE_BYTES_MIN) this.#sample(0);
  }

  /** Goodput of the latest fetches, even if they were long ago. Null before the first fetch. */
  get latest(): number | null {
    return this.#goodput;
  }

  /** Current goodput. Null if unknown or too old. */
  get goodput(): number | null {
    const old = this.#clock.monotonicMs() - this.#sampledMs > STALE_MS;
    return old ? null : this.#goodput;
  }

  /** Current goodput, if measured with enough data to count against the peer; otherwise null. */
  get provenGoodput(): number | null {
    const isEnough = this.#sampledBytes >= ENOUGH_BYTES || this.#samples >= ENOUGH_SAMPLES;
    return isEnough ? this.goodput : null;
  }

  #sample(msMin: number): void {
    const nowMs = this.#clock.monotonicMs();
    const ms = nowMs - this.#sinceMs;
    if (ms < msMin) return;
    const rttMs = this.#fresh ? (this.#rttMs() ?? 0) : 0;
    const carryingMs = Math.max(ms - rttMs, ms * CARRYING_MIN, 0.05);
    const sample = (this.#bytes * 1_000) / carryingMs;
    const before = this.goodput;
    if (before === null) [this.#sampledBytes, this.#samples] = [0, 0];
    this.#sampledBytes += this.#bytes;
    this.#samples++;
    const weight = Math.max(WEIGHT * Math.min(this.#bytes / SAMPLE_BYTES, 1), WEIGHT_MIN);
    this.#goodput = before === null ? sample : before + (sample - before) * weight;
    this.#fresh = false;
    this.#sampledMs = nowMs;
    this.#sinceMs = nowMs;
    this.#bytes = 0;
  }
}

/**
 * Maximum number of idle connections that have delivered blocks (`PULLED_MAX`), and that have
 * carried only short requests (`ASKED_MAX`).
 */
const PULLED_MAX = 128;
const ASKED_MAX = 64;

/** A transport to a peer whose connection carries no request. */
interface IdlePath {
  drop(): Promise<void>;
}

/**
 * Keeps idle connections open for reuse. Their number is limited, independent of the number of
 * hosts; above the limit, the least recently used one is closed. Connections that delivered blocks
 * have their own limit, so short requests to many peers do not close them.
 */
export class IdleConnections {
  readonly #pulled = new Set<IdlePath>();
  readonly #asked = new Set<IdlePath>();

  get count(): number {
    return this.#pulled.size + this.#asked.size;
  }

  /** Adds a connection that has become idle. `pulled`: it has delivered blocks. */
  enter(path: IdlePath, pulled: boolean): void {
    this.leave(path);
    const [paths, max] = pulled ? [this.#pulled, PULLED_MAX] : [this.#asked, ASKED_MAX];
    paths.add(path);
    const [oldest] = paths;
    if (paths.size <= max || oldest === undefined) return;
    paths.delete(oldest);
    void oldest.drop();
  }

  /** Removes a connection that is used again or has ended. */
  leave(path: IdlePath): void {
    this.#pulled.delete(path);
    this.#asked.delete(path);
  }
}

/** Milliseconds after which an idle connection is closed. */
const IDLE_MS = 60_000;

/**
 * One transport to one peer. Has at most one current connection, which all requests share. Closes
 * it after a time without requests, or if too many connections are idle.
 */
export class PeerPath {
  readonly transport: Transport;
  readonly breaker: Breaker;
  readonly meter: Meter;
  /**
   * Milliseconds from the request to the first block (`firsts`), and between two blocks of one
   * request (`gaps`).
   */
  readonly firsts = new Latencies();
  readonly gaps = new Latencies();
  blocks = 0;
  bytes = 0;
  /** Value of `bytes` when the current connection was opened. */
  #bytesBefore = 0;
  /**
   * Expiry of the certificate that the peer presented most recently, in milliseconds since 1970.
   */
  certificateEndsMs: number | null = null;
  readonly #peer: Peer;
  readonly #context: FetchContext;
  #connection: PeerConnection | null = null;
  #dialling: Promise<Dialled> | null = null;
  #giveUp: AbortController | null = null;
  /** Number of running requests per connection. */
  readonly #users = new Map<PeerConnection, number>();
  /** Connections that take no new requests. Each is closed when its running requests have ended. */
  readonly #retired = new Set<PeerConnection>();
  #idle: Disposable | null = null;
  #lastRttMs: number | null = null;
  #closed = false;

  constructor(peer: Peer, transport: Transport, breaker: Breaker, context: FetchContext) {
    this.#peer = peer;
    this.#context = context;
    this.transport = transport;
    this.breaker = breaker;
    this.meter = new Meter(context.parts.clock, () => this.rttMs);
  }

  get connection(): PeerConnection | null {
    return this.#connection?.fault === null ? this.#connection : null;
  }

  get dialling(): boolean {
    return this.#dialling !== null;
  }

  get rttMs(): number | null {
    return this.#connection?.rttMs ?? this.#lastRttMs;
  }

  /** Returns the current connection, or opens a new one. Takes at most the dial timeout. */
  open(endpoint: Endpoint): Promise<Dialled> {
    if (this.#closed)
      return Promise.resolve(failed({ kind: "closed", why: "the agent is shutting down" }));
    const connection = this.connection;
    if (connection !== null) return Promise.resolve({ ok: true, connection });
    this.#dialling ??= this.#dial(endpoint).finally(() => {
      this.#dialling = null;
    });
    return this.#dialling;
  }

  /**
   * Marks a connection as used by a request. It is not closed as idle until the result is disposed.
   */
  use(connection: PeerConnection): Disposable {
    this.#users.set(connection, (this.#users.get(connection) ?? 0) + 1);
    if (connection === this.#connection) this.#stopIdling();
    return {
      [Symbol.dispose]: () => {
        const left = this.#users.get(connection)! - 1;
        if (left > 0) {
          this.#users.set(connection, left);
          return;
        }
        this.#users.delete(connection);
        if (this.#retired.delete(connection)) void connection[Symbol.asyncDispose]();
        else if (connection === this.#connection && !this.#closed) this.#closeWhenIdle();
      },
    };
  }

  /**
   * Stops using a connection that is open but delivers nothing. Later requests open another
   * connection.
   */
  retire(connection: PeerConnection): void {
    if (this.#connection === connection) {
      this.#stopIdling();
      this.#connection = null;
      this.#lastRttMs = connection.rttMs ?? this.#lastRttMs;
    }
    if (this.#users.has(connection)) this.#retired.add(connection);
    else void connection[Symbol.asyncDispose]();
  }

  /**
   * Closes the current connection, because it is not trusted any more or leads to an earlier
   * process.
   */
  async drop(): Promise<void> {
    this.#stopIdling();
    const connection = this.#connection;
    this.#connection = null;
    this.#lastRttMs = connection?.rttMs ?? this.#lastRttMs;
    await connection?.[Symbol.asyncDispose]();
  }

  async close(): Promise<void> {
    this.#closed = true;
    this.#stopIdling();
    this.#giveUp?.abort();
    await this.#dialling;
    await this.drop();
    await Promise.all([...this.#retired].map((connection) => connection[Symbol.asyncDispose]()));
  }

  async #dial(endpoint: Endpoint): Promise<Dialled> {
    const { worker } = this.#peer;
    const { parts, limits } = this.#context;
    const giveUp = new AbortController();
    this.#giveUp = giveUp;
    const late = Promise.withResolvers<Dialled>();
    const ms = limits.dialMs;
    using _timer = parts.clock.after(ms, () => {
      const why = `dial timed out after ${Math.round(ms)} ms`;
      late.resolve(failed({ kind: "unreachable", why }));
      giveUp.abort();
    });
    giveUp.signal.addEventListener("abort", () => {
      late.resolve(failed({ kind: "closed", why: "the dial was cancelled" }));
    });
    const dial = this.transport.dial({ ...endpoint, worker }, giveUp.signal);
    const dialled = await Promise.race([dial, late.promise]);
    if (!dialled.ok) {
      void dial.then(async (came) => {
        if (came.ok) await came.connection[Symbol.asyncDispose]();
      });
      return dialled;
    }
    this.#adopt(dialled.connection);
    return dialled;
  }

  #adopt(connection: PeerConnection): void {
    this.#connection = connection;
    this.#bytesBefore = this.bytes;
    this.certificateEndsMs = connection.identity.notAfterMs;
    void connection.ended.then(() => {
      this.#lastRttMs = connection.rttMs ?? this.#lastRttMs;
      if (this.#connection !== connection) return;
      this.#connection = null;
      this.#stopIdling();
    });
    if (!this.#users.has(connection)) this.#closeWhenIdle();
    void this.#greet(connection);
  }

  /**
   * Sends this host's hello on a new connection. The first request is sent without waiting for the
   * reply.
   */
  async #greet(connection: PeerConnection): Promise<void> {
    const { parts, limits } = this.#context;
    const request = { op: "hello", hello: parts.self } as const;
    const called = await connection.call(request, { deadlineMs: limits.dialMs });
    if (!called.ok) return;
    const { answer } = called;
    if (answer.op === "hello" && answer.hello.worker === this.#peer.worker) {
      this.#peer.helloReceived(answer.hello);
      return;
    }
    if (answer.op === "busy") return;
    const why = answer.op === "refused" ? answer.why : "the peer's hello names another worker";
    this.#peer.failed(this, { kind: answer.op === "refused" ? "refused" : "protocol", why });
    if (this.#connection === connection) await this.drop();
  }

  #stopIdling(): void {
    this.#idle?.[Symbol.dispose]();
    this.#idle = null;
    this.#context.idle.leave(this);
  }

  #closeWhenIdle(): void {
    this.#stopIdling();
    this.#idle = this.#context.parts.clock.after(IDLE_MS, () => void this.drop());
    this.#context.idle.enter(this, this.bytes > this.#bytesBefore);
  }
}

function failed(fault: ConnectionFault): Dialled {
  return { ok: false, fault };
}
