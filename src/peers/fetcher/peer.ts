import { type Random, randomBelow, type WorkerId } from "../../core/index.ts";
import type { PeerRecord } from "../directory/index.ts";
import type { HardwareReport, PeerHello } from "../messages.ts";
import { type LinkFault, type PeerLink, TRANSPORTS } from "../transport.ts";
import type { FetchContext } from "./create-fetcher.ts";
import type { PeerStatus, PullLimits } from "./fetcher.ts";
import { Breaker, PeerPath } from "./peer-path.ts";

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
function orderPaths(paths: readonly PeerPath[], parts: ChoiceParts): PeerPath[] {
  const usable = paths.filter((path) => isUsable(path, parts));
  const { transports } = parts;
  const ranked =
    transports === "auto"
      ? rankBySpeed(usable, parts)
      : usable.sort(by((path) => transports.indexOf(path.transport.name)));
  return ranked.sort(by((path) => (path.breaker.allows ? 0 : 1)));
}

/** Whether both hosts have it, and may use it. */
function isUsable(
  { transport }: PeerPath,
  { own, peer, record, transports }: ChoiceParts,
): boolean {
  if (transport.unsupported !== null || record.endpoints[transport.name] === undefined)
    return false;
  if (transport.name === "rdma" && !(own.hasRdmaNic && hasRdma(peer, transports))) return false;
  return transports === "auto" || transports.includes(transport.name);
}

/** Of a peer that has not said what it has, it is tried only where the operator asks for it. */
function hasRdma(peer: HardwareReport | null, transports: PullLimits["transports"]): boolean {
  return peer === null ? transports !== "auto" : peer.hasRdmaNic;
}

function rankBySpeed(paths: PeerPath[], { random }: ChoiceParts): PeerPath[] {
  const natural = paths.sort(by((path) => TRANSPORTS.indexOf(path.transport.name)));
  const [first, ...others] = natural;
  if (first === undefined || others.length === 0) return natural;
  const known = others.filter((path) => path.meter.goodput !== null);
  const best = known.sort(by((path) => -path.meter.goodput!))[0];
  const speed = first.meter.goodput;
  if (best !== undefined && speed !== null && best.meter.goodput! > speed * CLEARLY)
    return [best, ...natural.filter((path) => path !== best)];
  const unknown = others.find((path) => path.meter.goodput === null && path.breaker.allows);
  if (unknown !== undefined && speed !== null && randomBelow(random, PROBE_ONE_OF) === 0)
    return [unknown, ...natural.filter((path) => path !== unknown)];
  return natural;
}

function by(rank: (path: PeerPath) => number): (a: PeerPath, b: PeerPath) => number {
  return (a, b) => rank(a) - rank(b);
}

/** So many answers in a row that came too late, or were wrong within a minute, are a failure. */
const SLOW_MAX = 3;
const CORRUPT_MAX = 3;
const CORRUPT_WITHIN_MS = 60_000;
/** So long it is remembered that it was left alone for wrong answers: the next time is longer. */
const CORRUPT_REMEMBERED_MS = 600_000;

export type Opened =
  | {
      readonly ok: true;
      readonly path: PeerPath;
      readonly connection: PeerLink;
      readonly fresh: boolean;
    }
  | { readonly ok: false; readonly fault: LinkFault };

/** One other host: the ways to it, and what was seen of it. */
export class Peer {
  readonly worker: WorkerId;
  readonly breaker: Breaker;
  readonly paths: readonly PeerPath[];
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
  readonly #context: FetchContext;

  constructor(worker: WorkerId, context: FetchContext) {
    this.worker = worker;
    this.#context = context;
    const breaker = () =>
      new Breaker(context.parts.clock, context.parts.random, () => context.limits);
    this.breaker = breaker();
    this.paths = context.parts.transports.map((transport) => {
      const { clock, self } = context.parts;
      const dialMs = () => context.limits.dialMs;
      const path: PeerPath = new PeerPath({
        ...{ worker, transport, breaker: breaker(), self, clock, dialMs, idle: context.idle },
        events: {
          helloReceived: (hello) => this.#helloReceived(hello),
          helloRejected: (fault) => this.failed(path, fault),
        },
      });
      return path;
    });
  }

  get record(): PeerRecord | null {
    return this.#context.parts.members.get(this.worker);
  }

  /** The ways that both hosts have, the best first. */
  usable(): PeerPath[] {
    const choice = this.#choice();
    return choice === null ? [] : orderPaths(this.paths, choice);
  }

  #choice(): ChoiceParts | null {
    const { record } = this;
    if (record === null) return null;
    const { parts, limits } = this.#context;
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
    return (
      this.breaker.allows && choice !== null && this.paths.some((path) => isUsable(path, choice))
    );
  }

  /** Others are asked first: it took too long lately. */
  get suspect(): boolean {
    return this.#context.parts.clock.monotonicMs() < this.#suspectUntilMs;
  }

  /** Of the way that is used, or was fastest; null: not known, or long ago. */
  get goodput(): number | null {
    const known = this.paths.flatMap((path) => path.meter.goodput ?? []);
    return known.length === 0 ? null : Math.max(...known);
  }

  /** Where enough came to say so. */
  get provenGoodput(): number | null {
    const known = this.paths.flatMap((path) => path.meter.provenGoodput ?? []);
    return known.length === 0 ? null : Math.max(...known);
  }

  get rttMs(): number | null {
    const known = this.paths.flatMap((path) => path.rttMs ?? []);
    return known.length === 0 ? null : Math.min(...known);
  }

  get certificateEndsMs(): number | null {
    return this.paths.find((path) => path.certificateEndsMs !== null)?.certificateEndsMs ?? null;
  }

  /**
   * A link on the best way that works now, but none of `without`. Where one does not, the next is
   * tried at once.
   */
  async open(without: ReadonlySet<PeerPath>): Promise<Opened> {
    let fault: LinkFault = { kind: "unreachable", why: "no transport is left to it" };
    let failed = [...without].at(-1) ?? null;
    for (const path of this.usable()) {
      if (without.has(path) || (failed !== null && !path.breaker.allows)) continue;
      const endpoint = this.record?.endpoints[path.transport.name];
      if (endpoint === undefined) continue;
      path.breaker.enter();
      if (failed !== null) this.#context.counters.fellBack(failed.transport.name);
      const fresh = path.connection === null;
      const dialled = await path.open(endpoint);
      if (dialled.ok) return { ok: true, path, connection: dialled.connection, fresh };
      fault = dialled.fault;
      failed = path;
      this.failed(path, fault);
    }
    return { ok: false, fault };
  }

  /** It answered, if only that it has nothing. */
  answered(path: PeerPath): void {
    const { parts } = this.#context;
    const { worker } = this;
    this.#slow = 0;
    this.#suspectUntilMs = Number.NEGATIVE_INFINITY;
    if (path.breaker.succeeded())
      parts.onEvent({ kind: "transport_up", worker, transport: path.transport.name });
    // What was asked before it failed says nothing about it now.
    if (this.breaker.state !== "open" && this.breaker.succeeded()) {
      this.lastFault = null;
      parts.onEvent({ kind: "breaker_closed", worker });
    }
  }

  /** One way failed; where no other is left, the peer has. `link`: what it was asked over. */
  failed(path: PeerPath, fault: LinkFault, connection: PeerLink | null = null): void {
    if (connection !== null && fault.kind === "stalled") path.retire(connection);
    if (fault.kind === "closed" || fault.kind === "aborted") return;
    const why = `${fault.kind}: ${fault.why}`;
    this.failures++;
    this.lastFault = `${path.transport.name} ${why}`;
    const { parts } = this.#context;
    const { worker } = this;
    const transport = path.transport.name;
    const cooldownMs = path.breaker.failed();
    if (cooldownMs !== null)
      parts.onEvent({ kind: "transport_down", worker, transport, why, cooldownMs });
    parts.log("debug", "a peer did not answer as it should", { worker, transport, why });
    if (!this.usable().some((other) => other.breaker.state === "closed")) this.#down(why);
  }

  /** It sent what was not asked for. */
  sentCorrupt(key: string, why: string): void {
    const { worker } = this;
    this.failures++;
    this.lastFault = `corrupt: ${why}`;
    this.#context.parts.onEvent({ kind: "peer_corrupt", worker, key, why });
    const nowMs = this.#context.parts.clock.monotonicMs();
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
    const { parts, limits } = this.#context;
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
    for (const path of this.paths) path.breaker.reset();
    this.#slow = 0;
    this.#corruptMs.length = 0;
    this.#corruptTimes = 0;
    this.#suspectUntilMs = Number.NEGATIVE_INFINITY;
    this.lastFault = null;
    this.hello = null;
  }

  async close(): Promise<void> {
    await Promise.all(this.paths.map((path) => path.close()));
  }

  /** False: it is left alone already. `before`: times this came before. */
  #down(why: string, before = 0): boolean {
    const cooldownMs = this.breaker.failed(before);
    if (cooldownMs === null) return false;
    this.#corruptMs.length = 0;
    this.#context.parts.onEvent({ kind: "breaker_opened", worker: this.worker, why, cooldownMs });
    return true;
  }

  #helloReceived(hello: PeerHello): void {
    const before = this.hello;
    this.hello = hello;
    if (before === null || before.incarnation === hello.incarnation) return;
    this.renewed();
    this.hello = hello;
    this.#context.parts.onEvent({ kind: "peer_restarted", worker: this.worker });
  }
}

/** The peers that were asked for anything, as long as they are members. */
export class Peers {
  readonly #context: FetchContext;
  readonly #inFlightBytes: (worker: WorkerId) => number;
  readonly #peers = new Map<WorkerId, Peer>();
  readonly #changes: Disposable;
  readonly #closing = new Set<Promise<void>>();

  constructor(context: FetchContext, inFlightBytes: (worker: WorkerId) => number) {
    this.#context = context;
    this.#inFlightBytes = inFlightBytes;
    this.#changes = context.parts.members.onChange(({ kind, peer }) => {
      const known = this.#peers.get(peer.worker);
      if (known === undefined) return;
      if (kind === "restarted") {
        known.renewed();
        for (const path of known.paths) void path.drop();
      }
      if (kind === "went") this.#forget(known);
    });
  }

  /** Null: not a member, or this host itself. */
  get(worker: WorkerId): Peer | null {
    const known = this.#peers.get(worker);
    if (known !== undefined) return known;
    const { members, self } = this.#context.parts;
    if (worker === self.worker || members.get(worker) === null) return null;
    const peer = new Peer(worker, this.#context);
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
    return this.#context.parts.members.list().flatMap(({ worker }) => this.get(worker) ?? []);
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
    const { breaker, paths, worker } = peer;
    const linked = paths.filter((path) => path.connection !== null);
    const used = linked.sort((a, b) => b.bytes - a.bytes)[0];
    const known = paths.flatMap((path) => path.meter.latest ?? []);
    const dialling = paths.some((path) => path.dialling);
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
      certificateEndsMs: used?.connection?.identity.notAfterMs ?? peer.certificateEndsMs,
      inFlightBytes: this.#inFlightBytes(worker),
      pulledBlocks: paths.reduce((sum, path) => sum + path.blocks, 0),
      pulledBytes: paths.reduce((sum, path) => sum + path.bytes, 0),
      failures: peer.failures,
      lastFault: peer.lastFault,
      transportsDown: paths
        .filter((path) => path.breaker.state !== "closed")
        .map((path) => ({ name: path.transport.name, retryMs: path.breaker.waitMs ?? 0 })),
    };
  }
}
