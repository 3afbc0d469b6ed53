import type { Clock } from "../../core/index.ts";
import type { PulledBlock, Unplaced } from "../../store/index.ts";
import type { FrameHeader, ItemRefusal } from "../messages.ts";
import type { ItemCame, ItemResult, LinkFault, PeerLink } from "../transport.ts";
import type { Attempt, RequestHandle } from "./block-fetch.ts";
import type { FetchContext } from "./create-fetcher.ts";
import type { Opened, Peer } from "./peer.ts";
import type { PeerPath } from "./peer-path.ts";

/** Less than this is no progress: a peer that sends byte by byte holds its places as a dead one. */
const PROGRESS_BYTES = 64 << 10;
/** Where it is not known how long answers take, and the least that is told apart. */
const UNKNOWN_MS = 250;
const SLOW_MS_MIN = 3;
/** A timer that fires so much later says that this process stood still, not that the peer did. */
const STOOD_STILL_MS = 5;
/** Then what came meanwhile is looked at first. */
const CATCH_UP_MS = 10;

interface ProgressEvents {
  /** How long the first answer, or the next, takes at most as a rule; null: not known. */
  usualMs(first: boolean): number | null;
  /** Without progress for so long it has stalled. */
  timeoutMs(): number;
  /** Once for each answer that takes too long; `silent`: not even bytes came. */
  slow(silent: boolean, afterMs: number): void;
  stalled(afterMs: number): void;
}

/** Watches whether a request goes on. */
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
  #list = false;
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

  /** It goes out, for the first time or once more: from now on the peer's answer is waited for. */
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

  /** A block was answered: how long that took, from the request or from the answer before. */
  answer(): { readonly first: boolean; readonly ms: number } {
    const nowMs = this.#clock.monotonicMs();
    const waited = { first: !this.#answered, ms: nowMs - this.#answerMs };
    this.#answered = true;
    this.#silent = true;
    this.#bytes = 0;
    this.#answerMs = nowMs;
    this.#progressMs = nowMs;
    if (this.#list) {
      this.#list = false;
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
    const slowMs = this.#list ? stallMs : this.#answerMs + this.#slowMs() - nowMs;
    const ms = Math.max(Math.min(stallMs, slowMs), leastMs);
    this.#dueMs = nowMs + ms;
    this.#timer = this.#clock.after(ms, () => this.#look());
  }

  #look(): void {
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
    if (!this.#list && nowMs - this.#answerMs >= this.#slowMs()) {
      this.#list = true;
      this.#watch.slow(this.#silent, nowMs - this.#startMs);
    }
    this.#arm();
  }
}

/** What becomes of the blocks of a request: one of these for each, and no other after it, but: */
export interface RequestEvents {
  /** It lies whole at its place. May follow `failed`: given up, and it came all the same. */
  came(attempt: Attempt, came: ItemCame, path: PeerPath): void;
  declined(attempt: Attempt, how: ItemRefusal): void;
  /** It was not asked for at all: RAM gave no place, or needs none. */
  unplaced(attempt: Attempt, why: Unplaced): void;
  /** No answer; whether it is the peer's fault is in the peer's books already. */
  failed(attempt: Attempt, fault: LinkFault): void;
  /** A request takes longer than it should: whether others may be asked for what it is to bring. */
  mayHedge(): boolean;
  /** Of such a request. */
  slow(attempt: Attempt): void;
}

/**
 * Its transport is given so much longer than it has: what ends because nobody waits any more is
 * then ended from here, and held against nobody.
 */
const BEHIND_END_MS = 500;

type Working = Extract<Opened, { ok: true }>;

/**
 * Some blocks asked of one peer at once. Takes the places in RAM before it asks; goes over to the
 * next transport where one fails; gives up when nothing comes for too long. A place is free again
 * only when its transport says that nothing writes to it any more.
 */
export class FetchRequest implements RequestHandle {
  readonly #context: FetchContext;
  readonly #events: RequestEvents;
  readonly #peer: Peer;
  readonly #attempts: readonly Attempt[];
  readonly #stop = new AbortController();
  readonly #monitor: ProgressMonitor;
  /** Why it was stopped; null: it was not, or nobody wanted it any more. */
  #fault: LinkFault | null = null;
  #heard = false;
  #used: { readonly path: PeerPath; readonly connection: PeerLink } | null = null;

  constructor(context: FetchContext, events: RequestEvents, attempts: readonly Attempt[]) {
    this.#context = context;
    this.#events = events;
    this.#attempts = attempts;
    this.#peer = attempts[0]!.peer;
    for (const attempt of attempts) attempt.request = this;
    this.#monitor = new ProgressMonitor(context.parts.clock, {
      usualMs: (first) => this.#usualMs(first),
      timeoutMs: () => context.limits.progressMs,
      slow: (silent, afterMs) => this.#slow(silent, afterMs),
      stalled: (ms) => this.#stalled(ms),
    });
  }

  /** Never rejects; resolves when all places are free or committed. */
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

  async #tryPaths(): Promise<LinkFault | null> {
    if (this.#peer.breaker.state === "open") return IN_COOLDOWN;
    const tried = new Set<PeerPath>();
    for (let redials = 0; ; ) {
      const opened = await this.#open(tried);
      if (!opened.ok) return opened.fault;
      if (tried.size > 0) this.#note("goes on over another transport", opened.path);
      const attempts = this.#place();
      if (attempts.length === 0) return null;
      const fault = await this.#pull(opened, attempts);
      if (fault === null || this.#stop.signal.aborted) return fault;
      if (fault.kind === "aborted" || fault.kind === "closed") return fault;
      // An old link that has ended says nothing about the peer: it is dialled once more.
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

  /** Takes the places that are not taken yet; what needs none is answered. */
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
        this.#events.unplaced(attempt, landing);
        return false;
      }
      attempt.landing = landing;
      return true;
    });
  }

  async #pull(
    { path, connection }: Working,
    attempts: readonly Attempt[],
  ): Promise<LinkFault | null> {
    using _use = path.use(connection);
    this.#used = { path, connection };
    path.meter.begin();
    this.#monitor.sent();
    for (const attempt of attempts)
      attempt.fetch.trace.step("asked", { ...this.#where(path), bytes: attempt.bytes });
    const fault = await connection.pull({
      namespace: attempts[0]!.fetch.namespaceKey,
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
      onItem: (index, result) => this.#answer(attempts[index]!, result, path),
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
      this.#events.declined(attempt, result);
      return;
    }
    (waited.first ? path.firsts : path.gaps).add(waited.ms);
    path.blocks++;
    path.bytes += result.header.bytes;
    // Given up or not: it is there, and whoever wants it still may have it.
    attempt.end();
    this.#events.came(attempt, result, path);
  }

  #slow(silent: boolean, afterMs: number): void {
    if (silent) this.#peer.late(afterMs);
    const late = this.#waiting().filter((attempt) => !attempt.hedged && attempt.fetch.wanted);
    if (late.length > 0 && this.#events.mayHedge())
      for (const attempt of late) this.#events.slow(attempt);
  }

  #stalled(ms: number): void {
    this.#giveUp({ kind: "stalled", why: `nothing came for ${Math.round(ms)} ms` });
  }

  #late(): void {
    this.#giveUp({ kind: "aborted", why: "its time is over" });
  }

  /** Others may be asked at once; the places stay taken until the transport is done. */
  #giveUp(fault: LinkFault): void {
    if (this.#stop.signal.aborted) return;
    this.#fault = fault;
    this.#stop.abort();
    if (fault.kind === "stalled" && this.#used !== null) {
      this.#peer.failed(this.#used.path, fault, this.#used.connection);
      this.#heard = true;
    }
    for (const attempt of this.#waiting()) this.#fail(attempt, fault);
  }

  #fail(attempt: Attempt, fault: LinkFault): void {
    attempt.end();
    this.#events.failed(attempt, fault);
  }

  /** What is not answered yet. */
  #waiting(): Attempt[] {
    return this.#attempts.filter((attempt) => !attempt.over);
  }

  /** Time that is left for it, as for the one with the most patience. */
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

const ABORTED: LinkFault = { kind: "aborted", why: "nobody wants it any more" };
const IN_COOLDOWN: LinkFault = { kind: "unreachable", why: "it failed shortly before" };
const NO_ANSWER: LinkFault = { kind: "protocol", why: "the pull ended without an answer" };

/** What the tiers are told of a frame. */
export function pulledBlockOf(header: FrameHeader): PulledBlock {
  const { digest, layer, namespace, bytes, checksum, mac, parent, transient, aliases } = header;
  return { digest, layer, namespace, bytes, checksum, mac, parent, transient, aliases };
}
