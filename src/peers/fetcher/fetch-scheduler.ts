import { assert, type NamespaceIndex, unreachable } from "../../core/index.ts";
import type { Arrival, Unplaced } from "../../store/index.ts";
import type { ItemRefusal } from "../messages.ts";
import type { ItemCame, LinkFault } from "../transport.ts";
import type { Admission } from "./admission.ts";
import { Ask, type Flight, shareArrival } from "./block-fetch.ts";
import type { Candidates, Distrust } from "./candidates.ts";
import type { Room } from "./create-fetcher.ts";
import type { Questions, Searches } from "./discovery.ts";
import { pulledBlockOf, Request, type RequestEvents } from "./fetch-request.ts";
import { PULL_PRIORITIES, type PullOutcome, type PullPriority } from "./fetcher.ts";
import type { Peer } from "./peer.ts";
import type { Way } from "./peer-path.ts";

/** Second questions for each first one: what is slow at one peer must not double the load. */
const EARNED = 0.1;
const KEPT_MAX = 16;

/** Bounds how often a second peer is asked for what a first one was asked for. */
class HedgeTokens {
  #tokens = KEPT_MAX;

  earn(): void {
    this.#tokens = Math.min(this.#tokens + EARNED, KEPT_MAX);
  }

  take(): boolean {
    if (this.#tokens < 1) return false;
    this.#tokens--;
    return true;
  }
}

/** Requests to one peer at the same time, and of those what no engine waits for. */
const REQUESTS_MAX = 16;
const PATIENT_REQUESTS_MAX = 8;
/** Of one request; what is more goes in a second one beside it. */
const REQUEST_BYTES_MAX = 64 << 20;

interface Tray {
  readonly peer: Peer;
  readonly namespace: NamespaceIndex;
  readonly priority: PullPriority;
  readonly asks: Ask[];
}

/**
 * Gathers what is asked of one peer at the same time into requests: all that was admitted in one
 * turn of the loop, and what had to wait because the peer has enough requests to answer.
 */
class Outbox {
  readonly #itemsMax: () => number;
  readonly #send: (asks: Ask[]) => Promise<void>;
  readonly #trays = new Map<string, Tray>();
  /** A host that went and came again is another peer under the same name. */
  readonly #numbers = new WeakMap<Peer, number>();
  #peers = 0;
  readonly #underWay = new Map<Peer, number>();
  #planned = false;

  /** `send` resolves when the request is over, and never rejects. */
  constructor(itemsMax: () => number, send: (asks: Ask[]) => Promise<void>) {
    this.#itemsMax = itemsMax;
    this.#send = send;
  }

  add(ask: Ask): void {
    const { namespace, priority } = ask.flight;
    const name = `${PULL_PRIORITIES.indexOf(priority)} ${namespace} ${this.#numberOf(ask.peer)}`;
    const tray = this.#trays.get(name);
    if (tray === undefined)
      this.#trays.set(name, { peer: ask.peer, namespace, priority, asks: [ask] });
    else tray.asks.push(ask);
    this.#plan();
  }

  /** Whom it is for is more urgent than when it was added. */
  hasten(ask: Ask): void {
    for (const { asks } of this.#trays.values()) {
      const at = asks.indexOf(ask);
      if (at < 0) continue;
      asks.splice(at, 1);
      this.add(ask);
      return;
    }
  }

  #numberOf(peer: Peer): number {
    const known = this.#numbers.get(peer);
    if (known !== undefined) return known;
    this.#numbers.set(peer, ++this.#peers);
    return this.#peers;
  }

  #plan(): void {
    if (this.#planned) return;
    this.#planned = true;
    queueMicrotask(() => {
      this.#planned = false;
      this.#flush();
    });
  }

  /** The urgent first; within one urgency in the order in which they came. */
  #flush(): void {
    const trays = [...this.#trays].sort(([a], [b]) => a.charCodeAt(0) - b.charCodeAt(0));
    for (const [name, tray] of trays) {
      while (tray.asks.length > 0 && this.#mayBegin(tray)) this.#begin(tray);
      if (tray.asks.length === 0) this.#trays.delete(name);
    }
  }

  #mayBegin({ peer, priority }: Tray): boolean {
    const max = priority === "acquire" ? REQUESTS_MAX : PATIENT_REQUESTS_MAX;
    return (this.#underWay.get(peer) ?? 0) < max;
  }

  #begin(tray: Tray): void {
    const asks: Ask[] = [];
    let bytes = 0;
    while (tray.asks.length > 0 && asks.length < this.#itemsMax()) {
      const ask = tray.asks[0]!;
      if (asks.length > 0 && bytes + ask.bytes > REQUEST_BYTES_MAX) break;
      tray.asks.shift();
      if (ask.over) continue;
      bytes += ask.bytes;
      asks.push(ask);
    }
    if (asks.length === 0) return;
    this.#underWay.set(tray.peer, (this.#underWay.get(tray.peer) ?? 0) + 1);
    void this.#send(asks).then(() => this.#ended(tray.peer));
  }

  #ended(peer: Peer): void {
    const left = this.#underWay.get(peer)! - 1;
    if (left === 0) this.#underWay.delete(peer);
    else this.#underWay.set(peer, left);
    if (this.#trays.size > 0) this.#plan();
  }
}

/** A block is asked for so often at most, of whomever. */
const ASKS_MAX = 12;
/** A peer that does not say for so long how long a block is is not the only one to be asked. */
const MEASURE_SLOW_MS = 250;

interface Came {
  readonly arrival: Arrival;
  readonly bytes: number;
}

export interface MachineParts {
  readonly room: Room;
  readonly admission: Admission;
  readonly candidates: Candidates;
  readonly searches: Searches;
  readonly questions: Questions;
  readonly distrust: Distrust;
  /** It is over; nobody will join it any more. */
  ended(flight: Flight): void;
}

/** Takes each block from one peer to the next until it has come or nobody has it. */
export class Machine implements RequestEvents {
  readonly #parts: MachineParts;
  readonly #outbox: Outbox;
  readonly #tokens = new HedgeTokens();
  readonly #requests = new Set<Promise<void>>();

  constructor(parts: MachineParts) {
    this.#parts = parts;
    const { room } = parts;
    this.#outbox = new Outbox(
      () => room.limits.itemsMax,
      (asks) => this.#send(asks),
    );
  }

  /** Resolves when nothing writes to a place in RAM any more. */
  async settled(): Promise<void> {
    while (this.#requests.size > 0) await Promise.all(this.#requests);
  }

  /** Whom to ask next, or how it ended. */
  advance(flight: Flight): void {
    const { candidates } = this.#parts;
    if (flight.settled !== null || flight.searching) return;
    if (!flight.awaited) {
      if (flight.asks.size > 0) return;
      this.settle(flight, flight.mirror ? "late" : "aborted", "nobody waits for it");
      return;
    }
    if (flight.asked >= ASKS_MAX) {
      if (flight.asks.size === 0) this.settle(flight, flight.reason, "asked often enough");
      return;
    }
    const peer = candidates.pick(flight);
    if (peer !== null) {
      this.#ask(flight, peer, false);
      return;
    }
    if (flight.asks.size > 0) return;
    if (flight.search !== "over") {
      void this.#search(flight);
      return;
    }
    const waitMs = candidates.waitMs(flight);
    if (waitMs !== null && this.#leftMs(flight) > waitMs) {
      this.#wait(flight, waitMs);
      return;
    }
    this.settle(flight, flight.reason, this.#words(flight));
  }

  /** Nobody waits for it any more. What is on its way may come, for whoever asks next. */
  unwanted(flight: Flight, late: boolean): void {
    if (flight.settled !== null) return;
    const coming = [...flight.asks].some((ask) => ask.landing !== null);
    if (late && coming && this.#parts.room.limits.mirrorPulls) {
      flight.mirror = true;
      flight.trace.step("late: what still comes is kept");
      return;
    }
    this.settle(flight, late ? "late" : "aborted", "");
  }

  /** All of it goes first from now on. */
  hasten(flight: Flight): void {
    for (const ask of flight.asks) {
      ask.ticket?.hasten(flight.priority);
      if (ask.grant !== null && ask.carrier === null) this.#outbox.hasten(ask);
    }
  }

  settle(flight: Flight, outcome: PullOutcome, why: string, came?: Came): void {
    assert(flight.settled === null, "a pull ends once");
    flight.settled = outcome;
    flight.timer?.[Symbol.dispose]();
    flight.timer = null;
    flight.trace.end(outcome, came?.bytes ?? 0, why);
    this.#parts.room.tallies.ended(outcome);
    this.#parts.ended(flight);
    const waiters = flight.takeWaiters();
    const kind = outcome === "full" || outcome === "late" ? outcome : "miss";
    const arrivals = came === undefined ? null : shareArrival(came.arrival, waiters.length);
    for (const [index, [call, place]] of waiters.entries())
      call.deliver(place, arrivals === null ? { kind } : { kind: "ok", arrival: arrivals[index]! });
    for (const ask of [...flight.asks]) {
      if (ask.carrier === null) ask.end();
      else ask.carrier.reconsider();
    }
  }

  came(ask: Ask, came: ItemCame, way: Way): void {
    const { flight, peer } = ask;
    const landing = ask.landing;
    assert(landing !== null, "what came has a place");
    ask.landing = null;
    if (flight.settled !== null) {
      landing.abandon();
      return;
    }
    const { header } = came;
    const where = { peer: peer.worker, transport: way.transport.name, bytes: header.bytes };
    if (ask.generation !== 0n && header.generation !== ask.generation) {
      landing.abandon();
      this.#lied(ask, "another generation than it said it has");
      return;
    }
    const committed = landing.commit(pulledBlockOf(header), came.checksum);
    switch (committed.kind) {
      case "ok":
        this.#parts.room.tallies.came(way.transport.name, header.bytes);
        if (ask.hedge) this.#parts.room.tallies.hedgesWon++;
        flight.trace.step(ask.hedge ? "came, sooner than from the first" : "came", where);
        this.settle(flight, "ok", "", { arrival: committed.arrival, bytes: header.bytes });
        return;
      case "corrupt":
        this.#lied(ask, committed.why);
        return;
      case "unwanted":
        this.settle(flight, "aborted", committed.why);
        return;
      default:
        unreachable(committed, "committed");
    }
  }

  declined(ask: Ask, how: ItemRefusal): void {
    const { flight, peer } = ask;
    const { parts } = this.#parts.room;
    const where = { peer: peer.worker };
    flight.trace.step(wordsOf(how), where);
    switch (how.kind) {
      case "absent":
        flight.reason = "absent";
        flight.strike(peer.worker);
        parts.whereabouts.wasWrong(peer.worker, flight.namespaceKey, flight.keyBytes);
        break;
      case "busy": {
        flight.reason = "busy";
        flight.busy(peer.worker, how.retryAfterMs, parts.clock.monotonicMs());
        break;
      }
      case "tooLong":
        flight.reason = "failed";
        if (how.bytes <= ask.bytes || !flight.measure(how)) flight.strike(peer.worker);
        break;
      case "refused":
        flight.reason = "failed";
        flight.strike(peer.worker);
        break;
      default:
        unreachable(how, "refusal");
    }
    this.advance(flight);
  }

  unplaced(ask: Ask, why: Unplaced): void {
    const { flight } = ask;
    if (flight.settled !== null) return;
    if (why === "full") {
      this.settle(flight, "full", "RAM has no room for it");
      return;
    }
    if (why === "present" || why === "removed") {
      const told = why === "present" ? "it is here meanwhile" : "it was removed here lately";
      this.settle(flight, "aborted", told);
      return;
    }
    this.#disbelieve(ask, "too long for this arena");
  }

  /** Such a length cannot be: it was the peer's word, or there is no use in asking others. */
  #disbelieve({ flight, peer }: Ask, why: string): void {
    flight.reason = "failed";
    if (!flight.forget()) {
      this.settle(flight, "failed", why);
      return;
    }
    flight.trace.step(why, { peer: peer.worker });
    flight.strike(peer.worker);
    this.advance(flight);
  }

  failed(ask: Ask, fault: LinkFault): void {
    const { flight, peer } = ask;
    if (flight.settled !== null) return;
    if (fault.kind !== "aborted" && fault.kind !== "closed") flight.reason = "failed";
    flight.trace.step(`${fault.kind}: ${fault.why}`, { peer: peer.worker });
    this.advance(flight);
  }

  mayHedge(): boolean {
    return this.#tokens.take();
  }

  slow(ask: Ask): void {
    const { flight } = ask;
    ask.hedged = true;
    if (!flight.wanted || flight.asks.size > 1) return;
    const { candidates, searches } = this.#parts;
    let peer = candidates.pick(flight);
    // Whoever named the first one may have named nobody else: others are known beside that.
    while (peer === null && searches.isReady(flight)) {
      void searches.step(flight);
      peer = candidates.pick(flight);
    }
    if (peer === null || flight.tried(peer.worker).asks > 0) return;
    this.#parts.room.tallies.hedges++;
    flight.trace.step("slow: asks a second one", { peer: peer.worker });
    this.#ask(flight, peer, true);
  }

  #lied(ask: Ask, why: string): void {
    const { flight, peer } = ask;
    const { tallies } = this.#parts.room;
    this.#parts.distrust.add(peer.worker, flight.key);
    flight.strike(peer.worker);
    flight.reason = "corrupt";
    flight.trace.step(`corrupt: ${why}`, { peer: peer.worker });
    tallies.corrupt++;
    peer.lied(flight.key, why);
    this.advance(flight);
  }

  #ask(flight: Flight, peer: Peer, hedge: boolean): void {
    if (!peer.breaker.enter()) {
      this.advance(flight);
      return;
    }
    const { blocks } = this.#parts.room.parts;
    flight.askedOf(peer.worker);
    const ask = new Ask(flight, peer, hedge);
    flight.asks.add(ask);
    const bytes = flight.bytes || blocks.usualBytes(flight.namespace, flight.layer);
    if (bytes > 0) this.#enter(ask, bytes);
    else void this.#measure(ask);
  }

  /** Nothing says how long it is: its owner is asked first. */
  async #measure(ask: Ask): Promise<void> {
    const { flight, peer } = ask;
    const { clock } = this.#parts.room.parts;
    using _slow = clock.after(MEASURE_SLOW_MS, () => this.slow(ask));
    const has = await this.#parts.questions.has(peer, flight, this.#leftMs(flight));
    const others = [...flight.asks].some((other) => other !== ask && other.bytes > 0);
    if (ask.over || others || flight.settled !== null) return ask.end();
    if (has !== null && has.tiers !== 0 && has.bytes > 0) {
      flight.measure(has);
      ask.generation = has.generation;
      return this.#enter(ask, has.bytes);
    }
    ask.end();
    if (has !== null) return this.declined(ask, { kind: "absent" });
    this.failed(ask, { kind: "broken", why: "it did not say how long the block is" });
  }

  #enter(ask: Ask, bytes: number): void {
    const { flight, peer } = ask;
    const { admission } = this.#parts;
    ask.load(bytes);
    const refused = () => {
      ask.end();
      if (flight.settled !== null || flight.asks.size > 0) return;
      if (bytes > admission.longest) this.#disbelieve(ask, "longer than may be under way");
      else this.settle(flight, "full", "too many wait");
    };
    const { priority, namespace } = flight;
    const ticket = admission.enter({
      ...{ priority, namespace, bytes, peer: peer.worker, refused },
      admitted: (grant) => {
        ask.grant = grant;
        this.#outbox.add(ask);
      },
    });
    if (ticket === null) refused();
    else ask.ticket = ticket;
  }

  async #send(asks: Ask[]): Promise<void> {
    this.#tokens.earn();
    const run = new Request(this.#parts.room, this, asks).run();
    this.#requests.add(run);
    await run.finally(() => this.#requests.delete(run));
  }

  async #search(flight: Flight): Promise<void> {
    const { searches } = this.#parts;
    if (searches.isReady(flight)) {
      void searches.step(flight);
      return this.advance(flight);
    }
    flight.searching = true;
    await searches.step(flight);
    flight.searching = false;
    this.advance(flight);
  }

  #wait(flight: Flight, ms: number): void {
    if (flight.timer !== null) return;
    flight.trace.step(`waits ${Math.round(ms)} ms for one that is busy`);
    flight.timer = this.#parts.room.parts.clock.after(ms, () => {
      flight.timer = null;
      this.advance(flight);
    });
  }

  #leftMs({ deadlineMs }: Flight): number {
    return Math.max(deadlineMs - this.#parts.room.parts.clock.monotonicMs(), 0);
  }

  #words({ candidates }: Flight): string {
    return candidates.length === 0 ? "nobody is known to have it" : "nobody is left to be asked";
  }
}

function wordsOf(how: ItemRefusal): string {
  switch (how.kind) {
    case "absent":
      return "absent";
    case "busy":
      return `busy for ${how.retryAfterMs} ms`;
    case "tooLong":
      return `it has ${how.bytes} bytes, longer than expected`;
    case "refused":
      return `refused: ${how.why}`;
    default:
      return unreachable(how, "refusal");
  }
}
