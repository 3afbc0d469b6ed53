import type { Clock } from "../../core/index.ts";
import type { PulledBlock, Unplaced } from "../../store/index.ts";
import type { FrameHeader, ItemRefusal } from "../messages.ts";
import type { ItemCame, ItemResult, LinkFault, PeerLink } from "../transport.ts";
import type { Ask, Carrier } from "./block-fetch.ts";
import type { Room } from "./create-fetcher.ts";
import type { Opened, Peer } from "./peer.ts";
import type { Way } from "./peer-path.ts";

/** Less than this is no progress: a peer that sends byte by byte holds its places as a dead one. */
const PROGRESS_BYTES = 64 << 10;
/** Where it is not known how long answers take, and the least that is told apart. */
const UNKNOWN_MS = 250;
const SLOW_MS_MIN = 3;
/** A timer that fires so much later says that this process stood still, not that the peer did. */
const STOOD_STILL_MS = 5;
/** Then what came meanwhile is looked at first. */
const CATCH_UP_MS = 10;

interface PulseWatch {
  /** How long the first answer, or the next, takes at most as a rule; null: not known. */
  usualMs(first: boolean): number | null;
  /** Without progress for so long it has stalled. */
  patienceMs(): number;
  /** Once for each answer that takes too long; `silent`: not even bytes came. */
  slow(silent: boolean, afterMs: number): void;
  stalled(afterMs: number): void;
}

/** Watches whether a request goes on. */
class Pulse {
  readonly #clock: Clock;
  readonly #watch: PulseWatch;
  #timer: Disposable | null = null;
  #startMs = 0;
  #answerMs = 0;
  #progressMs = 0;
  #bytes = 0;
  #dueMs = 0;
  #silent = true;
  #told = false;
  #answered = false;

  constructor(clock: Clock, watch: PulseWatch) {
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
    if (this.#told) {
      this.#told = false;
      this.#timer?.[Symbol.dispose]();
      this.#arm();
    }
    return waited;
  }

  #slowMs(): number {
    const patienceMs = this.#watch.patienceMs();
    const usualMs = this.#watch.usualMs(!this.#answered) ?? Math.min(UNKNOWN_MS, patienceMs / 4);
    return Math.min(Math.max(usualMs, SLOW_MS_MIN), patienceMs);
  }

  #arm(leastMs = 1): void {
    const nowMs = this.#clock.monotonicMs();
    const stallMs = this.#progressMs + this.#watch.patienceMs() - nowMs;
    const slowMs = this.#told ? stallMs : this.#answerMs + this.#slowMs() - nowMs;
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
    if (nowMs - this.#progressMs >= this.#watch.patienceMs()) {
      this.#watch.stalled(nowMs - this.#progressMs);
      return;
    }
    if (!this.#told && nowMs - this.#answerMs >= this.#slowMs()) {
      this.#told = true;
      this.#watch.slow(this.#silent, nowMs - this.#startMs);
    }
    this.#arm();
  }
}

/** What becomes of the blocks of a request: one of these for each, and no other after it, but: */
export interface RequestEvents {
  /** It lies whole at its place. May follow `failed`: given up, and it came all the same. */
  came(ask: Ask, came: ItemCame, way: Way): void;
  declined(ask: Ask, how: ItemRefusal): void;
  /** It was not asked for at all: RAM gave no place, or needs none. */
  unplaced(ask: Ask, why: Unplaced): void;
  /** No answer; whether it is the peer's fault is in the peer's books already. */
  failed(ask: Ask, fault: LinkFault): void;
  /** A request takes longer than it should: whether others may be asked for what it is to bring. */
  mayHedge(): boolean;
  /** Of such a request. */
  slow(ask: Ask): void;
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
export class Request implements Carrier {
  readonly #room: Room;
  readonly #events: RequestEvents;
  readonly #peer: Peer;
  readonly #asks: readonly Ask[];
  readonly #stop = new AbortController();
  readonly #pulse: Pulse;
  /** Why it was stopped; null: it was not, or nobody wanted it any more. */
  #fault: LinkFault | null = null;
  #heard = false;
  #used: { readonly way: Way; readonly link: PeerLink } | null = null;

  constructor(room: Room, events: RequestEvents, asks: readonly Ask[]) {
    this.#room = room;
    this.#events = events;
    this.#asks = asks;
    this.#peer = asks[0]!.peer;
    for (const ask of asks) ask.carrier = this;
    this.#pulse = new Pulse(room.parts.clock, {
      usualMs: (first) => this.#usualMs(first),
      patienceMs: () => room.limits.progressMs,
      slow: (silent, afterMs) => this.#slow(silent, afterMs),
      stalled: (ms) => this.#stalled(ms),
    });
  }

  /** Never rejects; resolves when all places are free or committed. */
  async run(): Promise<void> {
    using _late = this.#room.parts.clock.after(this.#leftMs(), () => this.#late());
    using _pulse = this.#pulse.start();
    const fault = await this.#attempts();
    for (const ask of this.#asks) {
      ask.landing?.abandon();
      ask.landing = null;
      ask.carrier = null;
    }
    if (!this.#heard) {
      this.#peer.breaker.withdraw();
      this.#used?.way.breaker.withdraw();
    }
    for (const ask of this.#waiting()) this.#fail(ask, fault ?? NOTHING_SAID);
  }

  reconsider(): void {
    if (this.#waiting().every((ask) => !ask.flight.wanted)) this.#stop.abort();
  }

  async #attempts(): Promise<LinkFault | null> {
    if (this.#peer.breaker.state === "open") return LEFT_ALONE;
    const tried = new Set<Way>();
    for (let redials = 0; ; ) {
      const opened = await this.#open(tried);
      if (!opened.ok) return opened.fault;
      if (tried.size > 0) this.#note("goes on over another transport", opened.way);
      const asks = this.#place();
      if (asks.length === 0) return null;
      const fault = await this.#pull(opened, asks);
      if (fault === null || this.#stop.signal.aborted) return fault;
      if (fault.kind === "aborted" || fault.kind === "closed") return fault;
      // An old link that has ended says nothing about the peer: it is dialled once more.
      if (fault.kind === "broken" && !opened.fresh && !this.#heard && redials++ === 0) continue;
      this.#peer.failed(opened.way, fault, opened.link);
      this.#heard = true;
      tried.add(opened.way);
      if (fault.kind === "stalled") return fault;
    }
  }

  async #open(tried: ReadonlySet<Way>): Promise<Opened> {
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
  #place(): Ask[] {
    const { blocks } = this.#room.parts;
    const { mirrorPulls } = this.#room.limits;
    return this.#waiting().filter((ask) => {
      const { flight } = ask;
      if (!flight.wanted) {
        ask.end();
        return false;
      }
      if (ask.landing !== null) return true;
      const { namespace, digest, layer } = flight;
      const keep = mirrorPulls || flight.priority !== "acquire";
      const landing = blocks.land(namespace, digest, layer, ask.bytes, keep);
      if (typeof landing === "string") {
        ask.end();
        this.#events.unplaced(ask, landing);
        return false;
      }
      ask.landing = landing;
      return true;
    });
  }

  async #pull({ way, link }: Working, asks: readonly Ask[]): Promise<LinkFault | null> {
    using _use = way.use(link);
    this.#used = { way, link };
    way.meter.begin();
    this.#pulse.sent();
    for (const ask of asks)
      ask.flight.trace.step("asked", { ...this.#where(way), bytes: ask.bytes });
    const fault = await link.pull({
      namespace: asks[0]!.flight.namespaceKey,
      items: asks.map(({ flight, bytes, generation, landing }) => ({
        digest: flight.digest,
        layer: flight.layer,
        bytesMax: bytes,
        generation,
        offset: landing!.offset,
      })),
      deadlineMs: this.#leftMs() + BEHIND_END_MS,
      signal: this.#stop.signal,
      onBytes: (_, bytes) => {
        way.meter.moved(bytes);
        this.#pulse.moved(bytes);
      },
      onItem: (index, result) => this.#answer(asks[index]!, result, way),
    });
    way.meter.end();
    return fault;
  }

  #answer(ask: Ask, result: ItemResult, way: Way): void {
    this.#heard = true;
    this.#peer.answered(way);
    const waited = this.#pulse.answer();
    if (result.kind !== "came") {
      if (ask.over) return;
      ask.end();
      this.#events.declined(ask, result);
      return;
    }
    (waited.first ? way.firsts : way.gaps).add(waited.ms);
    way.blocks++;
    way.bytes += result.header.bytes;
    // Given up or not: it is there, and whoever wants it still may have it.
    ask.end();
    this.#events.came(ask, result, way);
  }

  #slow(silent: boolean, afterMs: number): void {
    if (silent) this.#peer.late(afterMs);
    const late = this.#waiting().filter((ask) => !ask.hedged && ask.flight.wanted);
    if (late.length > 0 && this.#events.mayHedge()) for (const ask of late) this.#events.slow(ask);
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
      this.#peer.failed(this.#used.way, fault, this.#used.link);
      this.#heard = true;
    }
    for (const ask of this.#waiting()) this.#fail(ask, fault);
  }

  #fail(ask: Ask, fault: LinkFault): void {
    ask.end();
    this.#events.failed(ask, fault);
  }

  /** What is not answered yet. */
  #waiting(): Ask[] {
    return this.#asks.filter((ask) => !ask.over);
  }

  /** Time that is left for it, as for the one with the most patience. */
  #leftMs(): number {
    const { parts, limits } = this.#room;
    const untilMs = Math.max(...this.#asks.map((ask) => ask.flight.deadlineMs));
    const graceMs = limits.mirrorPulls ? limits.progressMs : 0;
    return Math.max(untilMs - parts.clock.monotonicMs() + graceMs, 0);
  }

  #usualMs(first: boolean): number | null {
    const way = this.#used?.way ?? this.#peer.usable()[0];
    return (first ? way?.firsts : way?.gaps)?.p95 ?? null;
  }

  #note(what: string, way: Way): void {
    for (const ask of this.#waiting()) ask.flight.trace.step(what, this.#where(way));
  }

  #where(way: Way) {
    return { peer: this.#peer.worker, transport: way.transport.name };
  }
}

const ABORTED: LinkFault = { kind: "aborted", why: "nobody wants it any more" };
const LEFT_ALONE: LinkFault = { kind: "unreachable", why: "it failed shortly before" };
const NOTHING_SAID: LinkFault = { kind: "protocol", why: "the pull ended without an answer" };

/** What the tiers are told of a frame. */
export function pulledBlockOf(header: FrameHeader): PulledBlock {
  const { digest, layer, namespace, bytes, checksum, mac, parent, transient, aliases } = header;
  return { digest, layer, namespace, bytes, checksum, mac, parent, transient, aliases };
}
