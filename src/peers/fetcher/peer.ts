import { type Random, randomBelow, type WorkerId } from "../../core/index.ts";
import type { PeerRecord } from "../directory/index.ts";
import type { HardwareReport, PeerHello } from "../messages.ts";
import { type LinkFault, type PeerLink, TRANSPORTS } from "../transport.ts";
import type { Room } from "./create-fetcher.ts";
import type { PeerStatus, PullLimits } from "./fetcher.ts";
import { Breaker, Way } from "./peer-path.ts";

/** One of so many requests goes the way of which nothing is known, to learn what it carries. */
const PROBE_ONE_OF = 256;
/** A way is chosen for its speed only where it is faster by this much. */
const CLEARLY = 1.2;

interface ChoiceParts {
  readonly own: HardwareReport;
  readonly peer: HardwareReport | null;
  readonly record: PeerRecord;
  readonly transports: PullLimits["transports"];
  readonly random: Random;
}

/**
 * The ways to a peer, the best first: those this host and the peer have in common. In the order of
 * the configuration; else by what both hosts' hardware has (RDMA first), then by the bytes a second
 * that each carried lately. Those that failed lately come last, however good they were.
 */
function orderWays(ways: readonly Way[], parts: ChoiceParts): Way[] {
  const usable = ways.filter((way) => isUsable(way, parts));
  const { transports } = parts;
  const ranked =
    transports === "auto"
      ? rankBySpeed(usable, parts)
      : usable.sort(by((way) => transports.indexOf(way.transport.name)));
  return ranked.sort(by((way) => (way.breaker.allows ? 0 : 1)));
}

/** Whether both hosts have it, and may use it. */
function isUsable({ transport }: Way, { own, peer, record, transports }: ChoiceParts): boolean {
  if (transport.unsupported !== null || record.endpoints[transport.name] === undefined)
    return false;
  if (transport.name === "rdma" && !(own.hasRdmaNic && hasRdma(peer, transports))) return false;
  return transports === "auto" || transports.includes(transport.name);
}

/** Of a peer that has not said what it has, it is tried only where the operator asks for it. */
function hasRdma(peer: HardwareReport | null, transports: PullLimits["transports"]): boolean {
  return peer === null ? transports !== "auto" : peer.hasRdmaNic;
}

function rankBySpeed(ways: Way[], { random }: ChoiceParts): Way[] {
  const natural = ways.sort(by((way) => TRANSPORTS.indexOf(way.transport.name)));
  const [first, ...others] = natural;
  if (first === undefined || others.length === 0) return natural;
  const known = others.filter((way) => way.meter.goodput !== null);
  const best = known.sort(by((way) => -way.meter.goodput!))[0];
  const speed = first.meter.goodput;
  if (best !== undefined && speed !== null && best.meter.goodput! > speed * CLEARLY)
    return [best, ...natural.filter((way) => way !== best)];
  const unknown = others.find((way) => way.meter.goodput === null && way.breaker.allows);
  if (unknown !== undefined && speed !== null && randomBelow(random, PROBE_ONE_OF) === 0)
    return [unknown, ...natural.filter((way) => way !== unknown)];
  return natural;
}

function by(rank: (way: Way) => number): (a: Way, b: Way) => number {
  return (a, b) => rank(a) - rank(b);
}

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

/** The peers that were asked for anything, as long as they are members. */
export class Peers {
  readonly #room: Room;
  readonly #inFlightBytes: (worker: WorkerId) => number;
  readonly #peers = new Map<WorkerId, Peer>();
  readonly #changes: Disposable;
  readonly #closing = new Set<Promise<void>>();

  constructor(room: Room, inFlightBytes: (worker: WorkerId) => number) {
    this.#room = room;
    this.#inFlightBytes = inFlightBytes;
    this.#changes = room.parts.members.onChange(({ kind, peer }) => {
      const known = this.#peers.get(peer.worker);
      if (known === undefined) return;
      if (kind === "restarted") {
        known.renewed();
        for (const way of known.ways) void way.drop();
      }
      if (kind === "went") this.#forget(known);
    });
  }

  /** Null: not a member, or this host itself. */
  get(worker: WorkerId): Peer | null {
    const known = this.#peers.get(worker);
    if (known !== undefined) return known;
    const { members, self } = this.#room.parts;
    if (worker === self.worker || members.get(worker) === null) return null;
    const peer = new Peer(worker, this.#room);
    this.#peers.set(worker, peer);
    return peer;
  }

  /** Those that may be asked now. */
  reachable(): Peer[] {
    return this.all().filter((peer) => peer.mayBeAsked);
  }

  /** Of these those that may have something of this namespace (key in hex). */
  within(namespace: string): Peer[] {
    return this.reachable().filter((peer) => peer.record?.namespaces?.has(namespace) !== false);
  }

  all(): Peer[] {
    return this.#room.parts.members.list().flatMap(({ worker }) => this.get(worker) ?? []);
  }

  status(): PeerStatus[] {
    return this.all().map((peer) => this.#statusOf(peer));
  }

  async close(): Promise<void> {
    this.#changes[Symbol.dispose]();
    for (const peer of this.#peers.values()) this.#forget(peer);
    await Promise.all(this.#closing);
  }

  #forget(peer: Peer): void {
    this.#peers.delete(peer.worker);
    const closing = peer.close().finally(() => this.#closing.delete(closing));
    this.#closing.add(closing);
  }

  #statusOf(peer: Peer): PeerStatus {
    const { breaker, ways, worker } = peer;
    const linked = ways.filter((way) => way.link !== null);
    const used = linked.sort((a, b) => b.bytes - a.bytes)[0];
    const known = ways.flatMap((way) => way.meter.latest ?? []);
    const dialling = ways.some((way) => way.dialling);
    const live = used !== undefined ? "linked" : dialling ? "dialling" : "idle";
    return {
      worker,
      origin: peer.record?.origin ?? "announced",
      state: breaker.state === "open" ? "down" : live,
      transport: used?.transport.name ?? null,
      goodput: used?.meter.latest ?? (known.length === 0 ? null : Math.max(...known)),
      rttMs: used?.rttMs ?? peer.rttMs,
      breaker: breaker.state,
      cooldownMs: breaker.state === "open" ? breaker.waitMs : null,
      certificateEndsMs: used?.link?.identity.notAfterMs ?? peer.certificateEndsMs,
      inFlightBytes: this.#inFlightBytes(worker),
      pulledBlocks: ways.reduce((sum, way) => sum + way.blocks, 0),
      pulledBytes: ways.reduce((sum, way) => sum + way.bytes, 0),
      failures: peer.failures,
      lastFault: peer.lastFault,
      transportsDown: ways
        .filter((way) => way.breaker.state !== "closed")
        .map((way) => ({ name: way.transport.name, retryMs: way.breaker.waitMs ?? 0 })),
    };
  }
}
