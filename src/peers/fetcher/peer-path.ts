import { type Clock, type Random, randomBelow, type WorkerId } from "../../core/index.ts";
import type { PeerHello } from "../messages.ts";
import type { Dialled, Endpoint, LinkFault, PeerLink, Transport } from "../transport.ts";
import type { BreakerState } from "./fetcher.ts";

/** Of the cooldown, at random: hosts that lost the same peer do not come back to it as one. */
const JITTER = 0.25;

interface Cooldowns {
  readonly cooldownMs: number;
  readonly cooldownMaxMs: number;
}

/**
 * Leaves alone what failed. After a failure nothing may enter for a while, then one may try; its
 * success closes the breaker, its failure opens it again for twice as long.
 */
export class Breaker {
  readonly #clock: Clock;
  readonly #random: Random;
  readonly #limits: () => Cooldowns;
  #state: BreakerState = "closed";
  #inRow = 0;
  /** While open the end of the cooldown; while in trial until when its result is waited for. */
  #untilMs = 0;

  constructor(clock: Clock, random: Random, limits: () => Cooldowns) {
    this.#clock = clock;
    this.#random = random;
    this.#limits = limits;
  }

  get state(): BreakerState {
    return this.#state;
  }

  /** Until the next trial; null: nothing has to wait. */
  get waitMs(): number | null {
    if (this.#state === "closed") return null;
    return Math.max(this.#untilMs - this.#clock.monotonicMs(), 0);
  }

  /** Whether `enter` would let one in. */
  get allows(): boolean {
    return this.#state === "closed" || this.#clock.monotonicMs() >= this.#untilMs;
  }

  /** False: leave it alone. A trial that is never heard of again gives way after a cooldown. */
  enter(): boolean {
    if (!this.allows) return false;
    if (this.#state === "closed") return true;
    this.#state = "trial";
    this.#untilMs = this.#clock.monotonicMs() + this.#limits().cooldownMaxMs;
    return true;
  }

  /** It came to nothing for reasons that are not the other side's: the next may try. */
  withdraw(): void {
    if (this.#state !== "trial") return;
    this.#state = "open";
    this.#untilMs = this.#clock.monotonicMs();
  }

  /** True where this closed it. */
  succeeded(): boolean {
    const was = this.#state;
    this.#state = "closed";
    this.#inRow = 0;
    return was !== "closed";
  }

  /**
   * The cooldown in milliseconds where this opened it; null where it was open already. `before`: at
   * least so many failures came before this one.
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

  /** As new: another process answers now under the same name. */
  reset(): void {
    this.#state = "closed";
    this.#inRow = 0;
  }
}

const KEPT = 128;
/** With fewer there is no telling what is usual. */
const KNOWN_MIN = 8;
const QUANTILE = 0.95;

/** The latest waits for something, in milliseconds, and how long it takes at most as a rule. */
class Latencies {
  readonly #ring = new Float64Array(KEPT);
  #count = 0;
  #p95: number | null = null;
  #stale = false;

  add(ms: number): void {
    this.#ring[this.#count++ % KEPT] = ms;
    this.#stale = true;
  }

  /** 95th percentile of the latest; null: too few are known. */
  get p95(): number | null {
    if (!this.#stale) return this.#p95;
    this.#stale = false;
    const kept = Math.min(this.#count, KEPT);
    if (kept < KNOWN_MIN) return this.#p95;
    const sorted = this.#ring.slice(0, kept).sort();
    this.#p95 = sorted[Math.min(Math.ceil(kept * QUANTILE), kept) - 1]!;
    return this.#p95;
  }
}

/** A sample is taken after so many bytes, or where the other side has nothing more to do. */
const SAMPLE_BYTES = 1 << 20;
/** What is shorter says more of the way than of its width. */
const SAMPLE_BYTES_MIN = 16 << 10;
const SAMPLE_MS_MIN = 2;
/** Weight of a whole sample; shorter ones have less, but not less than this. */
const WEIGHT = 0.25;
const WEIGHT_MIN = 0.02;
/** Of the time of a request, at least so much carried bytes, however long the round trip is. */
const CARRYING_MIN = 0.1;
/** After so long without a sample nothing is known any more. */
const STALE_MS = 60_000;
/** One short block may have met anything: so much says what the way carries. */
const ENOUGH_BYTES = 1 << 20;
const ENOUGH_SAMPLES = 3;

/**
 * Bytes a second on one way to one peer, over the times in which something was under way. Requests
 * at the same time share it, so it is what the way carries, not what one request sees; the round
 * trip that comes before the first byte is left out.
 */
class Meter {
  readonly #clock: Clock;
  readonly #rttMs: () => number | null;
  /** The next sample begins with a request, not in the middle of one. */
  #fresh = true;
  #users = 0;
  #sinceMs = 0;
  #bytes = 0;
  #goodput: number | null = null;
  #sampledMs = 0;
  /** Since nothing was known. */
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

  /** Of the latest pulls, however old; null before the first. */
  get latest(): number | null {
    return this.#goodput;
  }

  /** Null: not known, or so long ago that it may be otherwise now. */
  get goodput(): number | null {
    const old = this.#clock.monotonicMs() - this.#sampledMs > STALE_MS;
    return old ? null : this.#goodput;
  }

  /** Null as well where too little came to hold it against the peer. */
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

/** Links that brought blocks, and those over which only questions went. */
const PULLED_MAX = 128;
const ASKED_MAX = 64;

/** A way whose link nobody uses now. */
interface IdlePath {
  drop(): Promise<void>;
}

/**
 * Links that nobody uses stay open for the next one, but no more than this host and those it asks
 * can bear, however many hosts there are. Those not used for longest are closed, and a link that
 * brought blocks does not give way to one that was opened for a question.
 */
export class IdleConnections {
  readonly #pulled = new Set<IdlePath>();
  readonly #asked = new Set<IdlePath>();

  get count(): number {
    return this.#pulled.size + this.#asked.size;
  }

  /** Nobody uses its link any more. `pulled`: the link brought blocks. */
  enter(path: IdlePath, pulled: boolean): void {
    this.leave(path);
    const [paths, max] = pulled ? [this.#pulled, PULLED_MAX] : [this.#asked, ASKED_MAX];
    paths.add(path);
    const [oldest] = paths;
    if (paths.size <= max || oldest === undefined) return;
    paths.delete(oldest);
    void oldest.drop();
  }

  /** Its link is used, or over. */
  leave(path: IdlePath): void {
    this.#pulled.delete(path);
    this.#asked.delete(path);
  }
}

/** A link on which nothing was asked for so long is closed. */
const IDLE_MS = 60_000;

export interface PeerPathEvents {
  /** The other side said who it is. */
  helloReceived(hello: PeerHello): void;
  /** Its answer to our hello makes no sense. */
  helloRejected(fault: LinkFault): void;
}

export interface PeerPathOptions {
  readonly worker: WorkerId;
  readonly transport: Transport;
  readonly breaker: Breaker;
  readonly self: PeerHello;
  readonly clock: Clock;
  readonly dialMs: () => number;
  readonly idle: IdleConnections;
  readonly events: PeerPathEvents;
}

/**
 * One transport to one peer: at most one link, dialled once for all who want it, closed when nobody
 * used it for a while, or others are used more.
 */
export class PeerPath {
  readonly transport: Transport;
  readonly breaker: Breaker;
  readonly meter: Meter;
  /** From asking to the first block, and between two blocks of one request; milliseconds. */
  readonly firsts = new Latencies();
  readonly gaps = new Latencies();
  blocks = 0;
  bytes = 0;
  /** Before the link of now. */
  #bytesBefore = 0;
  /** Of the certificate that was shown last, in milliseconds since 1970. */
  certificateEndsMs: number | null = null;
  readonly #parts: PeerPathOptions;
  #connection: PeerLink | null = null;
  #dialling: Promise<Dialled> | null = null;
  #giveUp: AbortController | null = null;
  /** Requests under way, by link. */
  readonly #users = new Map<PeerLink, number>();
  /** Not used for new requests; closed after those under way. */
  readonly #retired = new Set<PeerLink>();
  #idle: Disposable | null = null;
  #lastRttMs: number | null = null;
  #closed = false;

  constructor(parts: PeerPathOptions) {
    this.#parts = parts;
    this.transport = parts.transport;
    this.breaker = parts.breaker;
    this.meter = new Meter(parts.clock, () => this.rttMs);
  }

  get connection(): PeerLink | null {
    return this.#connection?.fault === null ? this.#connection : null;
  }

  get dialling(): boolean {
    return this.#dialling !== null;
  }

  get rttMs(): number | null {
    return this.#connection?.rttMs ?? this.#lastRttMs;
  }

  /** The link, dialled where there is none. Bounded by the time a dial may take. */
  open(endpoint: Endpoint): Promise<Dialled> {
    if (this.#closed) return Promise.resolve(failed({ kind: "closed", why: "this host stops" }));
    const connection = this.connection;
    if (connection !== null) return Promise.resolve({ ok: true, connection });
    this.#dialling ??= this.#dial(endpoint).finally(() => {
      this.#dialling = null;
    });
    return this.#dialling;
  }

  /** A request begins on a link, which stays open at least until the answer is disposed. */
  use(connection: PeerLink): Disposable {
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
   * Nothing comes over this link, though it may not know yet that it has ended: what is asked from
   * now on is asked over another one.
   */
  retire(connection: PeerLink): void {
    if (this.#connection === connection) {
      this.#stopIdling();
      this.#connection = null;
      this.#lastRttMs = connection.rttMs ?? this.#lastRttMs;
    }
    if (this.#users.has(connection)) this.#retired.add(connection);
    else void connection[Symbol.asyncDispose]();
  }

  /** The link is given up, as one that cannot be trusted or leads to another process. */
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
    const { worker, transport, clock, dialMs } = this.#parts;
    const giveUp = new AbortController();
    this.#giveUp = giveUp;
    const late = Promise.withResolvers<Dialled>();
    const ms = dialMs();
    using _timer = clock.after(ms, () => {
      const why = `no answer to the dial within ${Math.round(ms)} ms`;
      late.resolve(failed({ kind: "unreachable", why }));
      giveUp.abort();
    });
    giveUp.signal.addEventListener("abort", () => {
      late.resolve(failed({ kind: "closed", why: "the dial was given up" }));
    });
    const dial = transport.dial({ ...endpoint, worker }, giveUp.signal);
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

  #adopt(connection: PeerLink): void {
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

  /** Says who we are beside the first request, which does not wait for it. */
  async #greet(connection: PeerLink): Promise<void> {
    const { self, dialMs, events, worker } = this.#parts;
    const called = await connection.call({ op: "hello", hello: self }, { deadlineMs: dialMs() });
    if (!called.ok) return;
    const { answer } = called;
    if (answer.op === "hello" && answer.hello.worker === worker) {
      events.helloReceived(answer.hello);
      return;
    }
    if (answer.op === "busy") return;
    const why = answer.op === "refused" ? answer.why : "its hello is of somebody else";
    events.helloRejected({ kind: answer.op === "refused" ? "refused" : "protocol", why });
    if (this.#connection === connection) await this.drop();
  }

  #stopIdling(): void {
    this.#idle?.[Symbol.dispose]();
    this.#idle = null;
    this.#parts.idle.leave(this);
  }

  #closeWhenIdle(): void {
    this.#stopIdling();
    this.#idle = this.#parts.clock.after(IDLE_MS, () => void this.drop());
    this.#parts.idle.enter(this, this.bytes > this.#bytesBefore);
  }
}

function failed(fault: LinkFault): Dialled {
  return { ok: false, fault };
}
