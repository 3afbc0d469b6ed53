import type { Clock } from "../../core/index.ts";
import type { PulledBlock } from "../../store/index.ts";
import type { FrameHeader } from "../messages.ts";
import type { ConnectionFault, ItemResult, PeerConnection } from "../transport.ts";
import type { Attempt, RequestHandle } from "./block-fetch.ts";
import type { FetchScheduler } from "./fetch-scheduler.ts";
import type { FetchContext } from "./fetcher.ts";
import type { Opened, Peer } from "./peer.ts";
import type { PeerPath } from "./peer-path.ts";

/**
 * Minimum payload bytes that count as progress. Otherwise a peer could keep slots reserved by
 * sending single bytes.
 */
const PROGRESS_BYTES = 64 << 10;
/**
 * Milliseconds after which a reply counts as slow (`UNKNOWN_MS`) while too few replies were
 * measured, and minimum of this time (`SLOW_MS_MIN`).
 */
const UNKNOWN_MS = 250;
const SLOW_MS_MIN = 3;
/**
 * If a timer fires this many milliseconds late, this process was suspended, so the delay does not
 * count against the peer.
 */
const STOOD_STILL_MS = 5;
/** Milliseconds given to process received data after this process was suspended. */
const CATCH_UP_MS = 10;

interface ProgressEvents {
  /**
   * Returns the 95th percentile of the milliseconds until the first reply, or between two replies.
   * Null if unknown.
   */
  usualMs(first: boolean): number | null;
  /** Returns the maximum milliseconds without progress. */
  timeoutMs(): number;
  /** Called once for each reply that takes too long. `silent`: no payload has arrived either. */
  slow(silent: boolean, afterMs: number): void;
  stalled(afterMs: number): void;
}

/** Detects a request whose replies are slow, or that has stalled. */
class ProgressMonitor {
  readonly #clock: Clock;
  readonly #watch: ProgressEvents;
  #timer: Disposable | null = null;
  #startMs = 0;
  #answerMs = 0;
  #progressMs = 0;
  #bytes = 0;
  #dueMs = 0;
  #silent = true;
  #slowReported = false;
  #answered = false;

  constructor(clock: Clock, watch: ProgressEvents) {
    this.#clock = clock;
    this.#watch = watch;
  }

  start(): Disposable {
    this.#startMs = this.#clock.monotonicMs();
    this.#answerMs = this.#startMs;
    this.#progressMs = this.#startMs;
    this.#arm();
    return { [Symbol.dispose]: () => this.#timer?.[Symbol.dispose]() };
  }

  /**
   * Records that the request was sent, possibly again over another transport. Restarts the time
   * measurement.
   */
  sent(): void {
    this.#progressMs = this.#clock.monotonicMs();
    this.#answerMs = this.#progressMs;
  }

  moved(bytes: number): void {
    this.#silent = false;
    this.#bytes += bytes;
    if (this.#bytes < PROGRESS_BYTES) return;
    this.#bytes = 0;
    this.#progressMs = this.#clock.monotonicMs();
  }

  /**
   * Records the reply for one block. Returns the milliseconds since the request or since the
   * previous reply; `first`: it was the first reply.
   */
  answer(): { readonly first: boolean; readonly ms: number } {
    const nowMs = this.#clock.monotonicMs();
    const waited = { first: !this.#answered, ms: nowMs - this.#answerMs };
    this.#answered = true;
    this.#silent = true;
    this.#bytes = 0;
    this.#answerMs = nowMs;
    this.#progressMs = nowMs;
    if (this.#slowReported) {
      this.#slowReported = false;
      this.#timer?.[Symbol.dispose]();
      this.#arm();
    }
    return waited;
  }

  #slowMs(): number {
    const timeoutMs = this.#watch.timeoutMs();
    const usualMs = this.#watch.usualMs(!this.#answered) ?? Math.min(UNKNOWN_MS, timeoutMs / 4);
    return Math.min(Math.max(usualMs, SLOW_MS_MIN), timeoutMs);
  }

  #arm(leastMs = 1): void {
    const nowMs = this.#clock.monotonicMs();
    const stallMs = this.#progressMs + this.#watch.timeoutMs() - nowMs;
    const slowMs = this.#slowReported ? stallMs : this.#answerMs + this.#slowMs() - nowMs;
    const ms = Math.max(Math.min(stallMs, slowMs), leastMs);
    this.#dueMs = nowMs + ms;
    this.#timer = this.#clock.after(ms, () => this.#check());
  }

  #check(): void {
    const nowMs = this.#clock.monotonicMs();
    const stoodMs = nowMs - this.#dueMs;
    if (stoodMs > STOOD_STILL_MS) {
      this.#progressMs = Math.min(this.#progressMs + stoodMs, nowMs);
      this.#answerMs = Math.min(this.#answerMs + stoodMs, nowMs);
      this.#arm(CATCH_UP_MS);
      return;
    }
    if (nowMs - this.#progressMs >= this.#watch.timeoutMs()) {
      this.#watch.stalled(nowMs - this.#progressMs);
      return;
    }
    if (!this.#slowReported && nowMs - this.#answerMs >= this.#slowMs()) {
      this.#slowReported = true;
      this.#watch.slow(this.#silent, nowMs - this.#startMs);
    }
    this.#arm();
  }
}

/**
 * Milliseconds added to the deadline given to the transport. This class then ends a late request
 * before the transport does, so that the peer is not blamed.
 */
const BEHIND_END_MS = 500;

type Working = Extract<Opened, { ok: true }>;

/**
 * One request to one peer for several blocks. Reserves slots before it asks, continues over the
 * next transport if one fails, and gives up after too long without progress. A slot is freed only
 * when the transport reports that nothing writes to it.
 */
export class FetchRequest implements RequestHandle {
  readonly #context: FetchContext;
  readonly #scheduler: FetchScheduler;
  readonly #peer: Peer;
  readonly #attempts: readonly Attempt[];
  readonly #stop = new AbortController();
  readonly #monitor: ProgressMonitor;
  /**
   * Why this host stopped the request. Null if it did not, or stopped it because no caller wants
   * the blocks.
   */
  #fault: ConnectionFault | null = null;
  #heard = false;
  #used: { readonly path: PeerPath; readonly connection: PeerConnection } | null = null;

  constructor(context: FetchContext, scheduler: FetchScheduler, attempts: readonly Attempt[]) {
    this.#context = context;
    this.#scheduler = scheduler;
    this.#attempts = attempts;
    this.#peer = attempts[0].peer;
    for (const attempt of attempts) attempt.request = this;
    this.#monitor = new ProgressMonitor(context.parts.clock, {
      usualMs: (first) => this.#usualMs(first),
      timeoutMs: () => context.limits.progressMs,
      slow: (silent, afterMs) => this.#slow(silent, afterMs),
      stalled: (ms) => this.#stalled(ms),
    });
  }

  /** Runs the request. Never rejects. Resolves when every slot is free or committed. */
  async run(): Promise<void> {
    using _late = this.#context.parts.clock.after(this.#leftMs(), () => this.#late());
    using _pulse = this.#monitor.start();
    const fault = await this.#tryPaths();
    for (const attempt of this.#attempts) {
      attempt.landing?.abandon();
      attempt.landing = null;
      attempt.request = null;
    }
    if (!this.#heard) {
      this.#peer.breaker.withdraw();
      this.#used?.path.breaker.withdraw();
    }
    for (const attempt of this.#waiting()) this.#fail(attempt, fault ?? NO_ANSWER);
  }

  reconsider(): void {
    if (this.#waiting().every((attempt) => !attempt.fetch.wanted)) this.#stop.abort();
  }

  async #tryPaths(): Promise<ConnectionFault | null> {
    if (this.#peer.breaker.state === "open") return IN_COOLDOWN;
    const tried = new Set<PeerPath>();
    for (let redials = 0; ; ) {
      const opened = await this.#open(tried);
      if (!opened.ok) return opened.fault;
      if (tried.size > 0) this.#note("continuing over another transport", opened.path);
      const attempts = this.#place();
      if (attempts.length === 0) return null;
      const fault = await this.#pull(opened, attempts);
      if (fault === null || this.#stop.signal.aborted) return fault;
      if (fault.kind === "aborted" || fault.kind === "closed") return fault;
      // If a reused connection has ended before any reply, the peer may be fine: dial once more.
      if (fault.kind === "broken" && !opened.fresh && !this.#heard && redials++ === 0) continue;
      this.#peer.failed(opened.path, fault, opened.connection);
      this.#heard = true;
      tried.add(opened.path);
      if (fault.kind === "stalled") return fault;
    }
  }

  async #open(tried: ReadonlySet<PeerPath>): Promise<Opened> {
    if (this.#stop.signal.aborted) return { ok: false, fault: this.#fault ?? ABORTED };
    const stopped = Promise.withResolvers<Opened>();
    const stop = () => stopped.resolve({ ok: false, fault: this.#fault ?? ABORTED });
    this.#stop.signal.addEventListener("abort", stop, { once: true });
    const opened = await Promise.race([this.#peer.open(tried), stopped.promise]);
    this.#stop.signal.removeEventListener("abort", stop);
    if (!opened.ok && opened.fault.kind !== "aborted") this.#heard = true;
    return opened;
  }

  /**
   * Reserves a slot for each block that has none. Ends the attempts for blocks that are unwanted or
   * get no slot, and returns the others.
   */
  #place(): Attempt[] {
    const { blocks } = this.#context.parts;
    const { mirrorPulls } = this.#context.limits;
    return this.#waiting().filter((attempt) => {
      const { fetch } = attempt;
      if (!fetch.wanted) {
        attempt.end();
        return false;
      }
      if (attempt.landing !== null) return true;
      const { namespace, digest, layer } = fetch;
      const keep = mirrorPulls || fetch.priority !== "acquire";
      const landing = blocks.land(namespace, digest, layer, attempt.bytes, keep);
      if (typeof landing === "string") {
        attempt.end();
        this.#scheduler.unplaced(attempt, landing);
        return false;
      }
      attempt.landing = landing;
      return true;
    });
  }

  async #pull(
    { path, connection }: Working,
    attempts: readonly Attempt[],
  ): Promise<ConnectionFault | null> {
    using _use = path.use(connection);
    this.#used = { path, connection };
    path.meter.begin();
    this.#monitor.sent();
    for (const attempt of attempts)
      attempt.fetch.trace.step("asked", { ...this.#where(path), bytes: attempt.bytes });
    const fault = await connection.pull({
      namespace: attempts[0].fetch.namespaceKey,
      items: attempts.map(({ fetch, bytes, generation, landing }) => ({
        digest: fetch.digest,
        layer: fetch.layer,
        bytesMax: bytes,
        generation,
        offset: landing!.offset,
      })),
      deadlineMs: this.#leftMs() + BEHIND_END_MS,
      signal: this.#stop.signal,
      onBytes: (_, bytes) => {
        path.meter.moved(bytes);
        this.#monitor.moved(bytes);
      },
      onItem: (index, result) => this.#answer(attempts[index], result, path),
    });
    path.meter.end();
    return fault;
  }

  #answer(attempt: Attempt, result: ItemResult, path: PeerPath): void {
    this.#heard = true;
    this.#peer.answered(path);
    const waited = this.#monitor.answer();
    if (result.kind !== "came") {
      if (attempt.over) return;
      attempt.end();
      this.#scheduler.declined(attempt, result);
      return;
    }
    (waited.first ? path.firsts : path.gaps).add(waited.ms);
    path.blocks++;
    path.bytes += result.header.bytes;
    // Accepts the block even if this host has abandoned the attempt.
    attempt.end();
    this.#scheduler.came(attempt, result, path);
  }

  #slow(silent: boolean, afterMs: number): void {
    if (silent) this.#peer.late(afterMs);
    const late = this.#waiting().filter((attempt) => !attempt.hedged && attempt.fetch.wanted);
    if (late.length > 0 && this.#scheduler.mayHedge())
      for (const attempt of late) this.#scheduler.slow(attempt);
  }

  #stalled(ms: number): void {
    this.#giveUp({ kind: "stalled", why: `no data for ${Math.round(ms)} ms` });
  }

  #late(): void {
    this.#giveUp({ kind: "aborted", why: "deadline passed" });
  }

  /**
   * Stops the request and fails its attempts, so that other peers can be asked at once. Slots stay
   * reserved until the transport has stopped.
   */
  #giveUp(fault: ConnectionFault): void {
    if (this.#stop.signal.aborted) return;
    this.#fault = fault;
    this.#stop.abort();
    if (fault.kind === "stalled" && this.#used !== null) {
      this.#peer.failed(this.#used.path, fault, this.#used.connection);
      this.#heard = true;
    }
    for (const attempt of this.#waiting()) this.#fail(attempt, fault);
  }

  #fail(attempt: Attempt, fault: ConnectionFault): void {
    attempt.end();
    this.#scheduler.failed(attempt, fault);
  }

  /** Returns the attempts that have not been answered or abandoned. */
  #waiting(): Attempt[] {
    return this.#attempts.filter((attempt) => !attempt.over);
  }

  /** Returns the milliseconds until the latest deadline of all attempts. */
  #leftMs(): number {
    const { parts, limits } = this.#context;
    const untilMs = Math.max(...this.#attempts.map((attempt) => attempt.fetch.deadlineMs));
    const graceMs = limits.mirrorPulls ? limits.progressMs : 0;
    return Math.max(untilMs - parts.clock.monotonicMs() + graceMs, 0);
  }

  #usualMs(first: boolean): number | null {
    const path = this.#used?.path ?? this.#peer.usable()[0];
    return (first ? path?.firsts : path?.gaps)?.p95 ?? null;
  }

  #note(what: string, path: PeerPath): void {
    for (const attempt of this.#waiting()) attempt.fetch.trace.step(what, this.#where(path));
  }

  #where(path: PeerPath) {
    return { peer: this.#peer.worker, transport: path.transport.name };
  }
}

const ABORTED: ConnectionFault = { kind: "aborted", why: "no caller wants the block any more" };
const IN_COOLDOWN: ConnectionFault = {
  kind: "unreachable",
  why: "the peer is in cooldown after a failure",
};
const NO_ANSWER: ConnectionFault = {
  kind: "protocol",
  why: "the request ended without an answer for the block",
};

/** Returns the fields of a block's header that the store needs. */
export function pulledBlockOf(header: FrameHeader): PulledBlock {
  const { digest, layer, namespace, bytes, checksum, mac, parent, transient, aliases } = header;
  return { digest, layer, namespace, bytes, checksum, mac, parent, transient, aliases };
}
