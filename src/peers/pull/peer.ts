import type { WorkerId } from "../../core/index.ts";
import type { PeerRecord } from "../directory/index.ts";
import type { PeerHello } from "../messages.ts";
import type { LinkFault, PeerLink } from "../transport.ts";
import { Breaker } from "./breaker.ts";
import { type ChoiceParts, isUsable, orderWays } from "./choice.ts";
import type { Room } from "./room.ts";
import { Way } from "./way.ts";

/** So many answers in a row that came too late, or were wrong within a minute, are a failure. */
const SLOW_MAX = 3;
const CORRUPT_MAX = 3;
const CORRUPT_WITHIN_MS = 60_000;
/** So long it is remembered that it was left alone for wrong answers: the next time is longer. */
const CORRUPT_REMEMBERED_MS = 600_000;

export type Opened =
  | { readonly ok: true; readonly way: Way; readonly link: PeerLink; readonly fresh: boolean }
  | { readonly ok: false; readonly fault: LinkFault };

/** One other host: the ways to it, and what was seen of it. */
export class Peer {
  readonly worker: WorkerId;
  readonly breaker: Breaker;
  readonly ways: readonly Way[];
  /** Bytes that were asked of it or wait to be. */
  loadBytes = 0;
  failures = 0;
  lastFault: string | null = null;
  hello: PeerHello | null = null;
  #slow = 0;
  readonly #corruptMs: number[] = [];
  /** Times it was left alone for wrong answers. */
  #corruptTimes = 0;
  #corruptUntilMs = Number.NEGATIVE_INFINITY;
  #suspectUntilMs = Number.NEGATIVE_INFINITY;
  readonly #room: Room;

  constructor(worker: WorkerId, room: Room) {
    this.worker = worker;
    this.#room = room;
    const breaker = () => new Breaker(room.parts.clock, room.parts.random, () => room.limits);
    this.breaker = breaker();
    this.ways = room.parts.transports.map((transport) => {
      const { clock, self } = room.parts;
      const dialMs = () => room.limits.dialMs;
      const way: Way = new Way({
        ...{ worker, transport, breaker: breaker(), self, clock, dialMs, idle: room.idle },
        events: {
          greeted: (hello) => this.#greeted(hello),
          distrusted: (fault) => this.failed(way, fault),
        },
      });
      return way;
    });
  }

  get record(): PeerRecord | null {
    return this.#room.parts.members.get(this.worker);
  }

  /** The ways that both hosts have, the best first. */
  usable(): Way[] {
    const choice = this.#choice();
    return choice === null ? [] : orderWays(this.ways, choice);
  }

  #choice(): ChoiceParts | null {
    const { record } = this;
    if (record === null) return null;
    const { parts, limits } = this.#room;
    return {
      own: parts.self.hardware,
      peer: this.hello?.hardware ?? record.hardware,
      record,
      transports: limits.transports,
      random: parts.random,
    };
  }

  /** Its breaker lets one in, and there is a way to it. */
  get mayBeAsked(): boolean {
    const choice = this.#choice();
    return this.breaker.allows && choice !== null && this.ways.some((way) => isUsable(way, choice));
  }

  /** Others are asked first: it took too long lately. */
  get suspect(): boolean {
    return this.#room.parts.clock.monotonicMs() < this.#suspectUntilMs;
  }

  /** Of the way that is used, or was fastest; null: not known, or long ago. */
  get goodput(): number | null {
    const known = this.ways.flatMap((way) => way.meter.goodput ?? []);
    return known.length === 0 ? null : Math.max(...known);
  }

  /** Where enough came to say so. */
  get provenGoodput(): number | null {
    const known = this.ways.flatMap((way) => way.meter.provenGoodput ?? []);
    return known.length === 0 ? null : Math.max(...known);
  }

  get rttMs(): number | null {
    const known = this.ways.flatMap((way) => way.rttMs ?? []);
    return known.length === 0 ? null : Math.min(...known);
  }

  get certificateEndsMs(): number | null {
    return this.ways.find((way) => way.certificateEndsMs !== null)?.certificateEndsMs ?? null;
  }

  /**
   * A link on the best way that works now, but none of `without`. Where one does not, the next is
   * tried at once.
   */
  async open(without: ReadonlySet<Way>): Promise<Opened> {
    let fault: LinkFault = { kind: "unreachable", why: "no transport is left to it" };
    let failed = [...without].at(-1) ?? null;
    for (const way of this.usable()) {
      if (without.has(way) || (failed !== null && !way.breaker.allows)) continue;
      const endpoint = this.record?.endpoints[way.transport.name];
      if (endpoint === undefined) continue;
      way.breaker.enter();
      if (failed !== null) this.#room.tallies.fellBack(failed.transport.name);
      const fresh = way.link === null;
      const dialled = await way.open(endpoint);
      if (dialled.ok) return { ok: true, way, link: dialled.link, fresh };
      fault = dialled.fault;
      failed = way;
      this.failed(way, fault);
    }
    return { ok: false, fault };
  }

  /** It answered, if only that it has nothing. */
  answered(way: Way): void {
    const { parts } = this.#room;
    const { worker } = this;
    this.#slow = 0;
    this.#suspectUntilMs = Number.NEGATIVE_INFINITY;
    if (way.breaker.succeeded())
      parts.onEvent({ kind: "transport_up", worker, transport: way.transport.name });
    // What was asked before it failed says nothing about it now.
    if (this.breaker.state !== "open" && this.breaker.succeeded()) {
      this.lastFault = null;
      parts.onEvent({ kind: "breaker_closed", worker });
    }
  }

  /** One way failed; where no other is left, the peer has. `link`: what it was asked over. */
  failed(way: Way, fault: LinkFault, link: PeerLink | null = null): void {
    if (link !== null && fault.kind === "stalled") way.retire(link);
    if (fault.kind === "closed" || fault.kind === "aborted") return;
    const why = `${fault.kind}: ${fault.why}`;
    this.failures++;
    this.lastFault = `${way.transport.name} ${why}`;
    const { parts } = this.#room;
    const { worker } = this;
    const transport = way.transport.name;
    const cooldownMs = way.breaker.failed();
    if (cooldownMs !== null)
      parts.onEvent({ kind: "transport_down", worker, transport, why, cooldownMs });
    parts.log("debug", "a peer did not answer as it should", { worker, transport, why });
    if (!this.usable().some((other) => other.breaker.state === "closed")) this.#down(why);
  }

  /** It sent what was not asked for. */
  lied(key: string, why: string): void {
    const { worker } = this;
    this.failures++;
    this.lastFault = `corrupt: ${why}`;
    this.#room.parts.onEvent({ kind: "peer_corrupt", worker, key, why });
    const nowMs = this.#room.parts.clock.monotonicMs();
    this.#corruptMs.push(nowMs);
    if (this.#corruptMs.length > CORRUPT_MAX) this.#corruptMs.shift();
    const isOften = this.#corruptMs.length === CORRUPT_MAX;
    if (!isOften || nowMs - this.#corruptMs[0]! > CORRUPT_WITHIN_MS) return;
    // Each wrong answer is an answer, which would make it start from the shortest cooldown.
    if (nowMs > this.#corruptUntilMs) this.#corruptTimes = 0;
    if (!this.#down(`corrupt: ${why}`, this.#corruptTimes)) return;
    this.#corruptTimes++;
    this.#corruptUntilMs = nowMs + CORRUPT_REMEMBERED_MS;
  }

  /** Nothing came for longer than it nearly ever takes. */
  late(afterMs: number): void {
    const { parts, limits } = this.#room;
    if (this.suspect) return;
    this.#suspectUntilMs = parts.clock.monotonicMs() + limits.cooldownMs;
    parts.onEvent({ kind: "peer_slow", worker: this.worker, afterMs });
    if (++this.#slow < SLOW_MAX) return;
    this.#slow = 0;
    this.lastFault = "stalled: nothing came, several times in a row";
    this.failures++;
    this.#down(this.lastFault);
  }

  /** Another process answers under its name: what was held against the old one is forgotten. */
  renewed(): void {
    this.breaker.reset();
    for (const way of this.ways) way.breaker.reset();
    this.#slow = 0;
    this.#corruptMs.length = 0;
    this.#corruptTimes = 0;
    this.#suspectUntilMs = Number.NEGATIVE_INFINITY;
    this.lastFault = null;
    this.hello = null;
  }

  async close(): Promise<void> {
    await Promise.all(this.ways.map((way) => way.close()));
  }

  /** False: it is left alone already. `before`: times this came before. */
  #down(why: string, before = 0): boolean {
    const cooldownMs = this.breaker.failed(before);
    if (cooldownMs === null) return false;
    this.#corruptMs.length = 0;
    this.#room.parts.onEvent({ kind: "breaker_opened", worker: this.worker, why, cooldownMs });
    return true;
  }

  #greeted(hello: PeerHello): void {
    const before = this.hello;
    this.hello = hello;
    if (before === null || before.incarnation === hello.incarnation) return;
    this.renewed();
    this.hello = hello;
    this.#room.parts.onEvent({ kind: "peer_restarted", worker: this.worker });
  }
}
