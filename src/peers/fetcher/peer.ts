import { type Random, randomBelow, type WorkerId } from "../../core/index.ts";
import type { PeerRecord } from "../directory/index.ts";
import type { HardwareReport, PeerHello } from "../messages.ts";
import { type ConnectionFault, type PeerConnection, TRANSPORTS } from "../transport.ts";
import type { FetchLimits, PeerStatus } from "./fetch-options.ts";
import type { FetchContext } from "./fetcher.ts";
import { Breaker, PeerPath } from "./peer-path.ts";

/** One in this many requests uses a transport whose goodput is unknown, in order to measure it. */
const PROBE_ONE_OF = 256;
/**
 * Another transport than the first in hardware order is preferred only if its goodput is higher by
 * this factor.
 */
const CLEARLY = 1.2;

interface ChoiceParts {
  readonly own: HardwareReport;
  readonly peer: HardwareReport | null;
  readonly record: PeerRecord;
  readonly transports: FetchLimits["transports"];
  readonly random: Random;
}

/**
 * Returns the transports that both hosts support, best first: in the configured order; if none is
 * configured, in hardware order (RDMA first), unless another one is clearly faster. Transports
 * whose circuit breaker blocks requests come last.
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

/** Returns whether both hosts support the transport and the configuration permits it. */
function isUsable(
  { transport }: PeerPath,
  { own, peer, record, transports }: ChoiceParts,
): boolean {
  if (transport.unsupported !== null || record.endpoints[transport.name] === undefined)
    return false;
  if (transport.name === "rdma" && !(own.hasRdmaNic && hasRdma(peer, transports))) return false;
  return transports === "auto" || transports.includes(transport.name);
}

/**
 * Returns whether to assume that the peer has RDMA. If its hardware is unknown, only if the
 * operator has configured a list of transports.
 */
function hasRdma(peer: HardwareReport | null, transports: FetchLimits["transports"]): boolean {
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

/**
 * Number of consecutive slow replies, and of corrupt blocks within `CORRUPT_WITHIN_MS`, after which
 * the circuit breaker blocks requests to the peer.
 */
const SLOW_MAX = 3;
const CORRUPT_MAX = 3;
const CORRUPT_WITHIN_MS = 60_000;
/**
 * A peer that is blocked for corrupt data again within this many milliseconds is blocked for
 * longer.
 */
const CORRUPT_REMEMBERED_MS = 600_000;

export type Opened =
  | {
      readonly ok: true;
      readonly path: PeerPath;
      readonly connection: PeerConnection;
      readonly fresh: boolean;
    }
  | { readonly ok: false; readonly fault: ConnectionFault };

/** Another host, with its transports and its recent failures. */
export class Peer {
  readonly worker: WorkerId;
  readonly breaker: Breaker;
  readonly paths: readonly PeerPath[];
  /** Payload bytes that are to be fetched from the peer, requested or not yet requested. */
  loadBytes = 0;
  failures = 0;
  lastFault: string | null = null;
  hello: PeerHello | null = null;
  #slow = 0;
  readonly #corruptMs: number[] = [];
  /** Number of times that the peer was blocked for corrupt data. */
  #corruptTimes = 0;
  #corruptUntilMs = Number.NEGATIVE_INFINITY;
  #suspectUntilMs = Number.NEGATIVE_INFINITY;
  readonly #context: FetchContext;

  constructor(worker: WorkerId, context: FetchContext) {
    this.worker = worker;
    this.#context = context;
    const { clock, random, transports } = context.parts;
    const breaker = () => new Breaker(clock, random, () => context.limits);
    this.breaker = breaker();
    this.paths = transports.map((transport) => new PeerPath(this, transport, breaker(), context));
  }

  get record(): PeerRecord | null {
    return this.#context.parts.members.get(this.worker);
  }

  /** Returns the transports that both hosts support, best first. */
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

  /** True if the circuit breaker permits a request and a transport can be used. */
  get mayBeAsked(): boolean {
    const choice = this.#choice();
    return (
      this.breaker.allows && choice !== null && this.paths.some((path) => isUsable(path, choice))
    );
  }

  /** True if the peer was slow recently. Other peers are then preferred. */
  get suspect(): boolean {
    return this.#context.parts.clock.monotonicMs() < this.#suspectUntilMs;
  }

  /** Goodput of the fastest transport in bytes per second. Null if unknown or too old. */
  get goodput(): number | null {
    const known = this.paths.flatMap((path) => path.meter.goodput ?? []);
    return known.length === 0 ? null : Math.max(...known);
  }

  /** Like `goodput`, but null if too little data was measured to count against the peer. */
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
   * Opens a connection over the best transport that is not in `without`. If that fails, tries the
   * next transport at once.
   */
  async open(without: ReadonlySet<PeerPath>): Promise<Opened> {
    let fault: ConnectionFault = { kind: "unreachable", why: "no usable transport is left" };
    let failed = [...without].at(-1) ?? null;
    for (const path of this.usable()) {
      if (without.has(path) || (failed !== null && !path.breaker.allows)) continue;
      const endpoint = this.record?.endpoints[path.transport.name];
      if (endpoint === undefined) continue;
      path.breaker.enter();
      if (failed !== null) {
        this.#context.counters.fallbacks++;
        this.#context.counters.byTransport[failed.transport.name].fallbacks++;
      }
      const fresh = path.connection === null;
      const dialled = await path.open(endpoint);
      if (dialled.ok) return { ok: true, path, connection: dialled.connection, fresh };
      fault = dialled.fault;
      failed = path;
      this.failed(path, fault);
    }
    return { ok: false, fault };
  }

  /** Records that the peer replied, with a block or a refusal. */
  answered(path: PeerPath): void {
    const { parts } = this.#context;
    const { worker } = this;
    this.#slow = 0;
    this.#suspectUntilMs = Number.NEGATIVE_INFINITY;
    if (path.breaker.succeeded())
      parts.onEvent({ kind: "transport_up", worker, transport: path.transport.name });
    // The reply may belong to a request sent before the failure, so it does not close an open
    // breaker.
    if (this.breaker.state !== "open" && this.breaker.succeeded()) {
      this.lastFault = null;
      parts.onEvent({ kind: "breaker_closed", worker });
    }
  }

  /**
   * Records that a transport failed. If no other transport is left, the peer counts as failed.
   * `connection`: the connection that failed, or null if it could not be opened.
   */
  failed(path: PeerPath, fault: ConnectionFault, connection: PeerConnection | null = null): void {
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
    parts.log("debug", "peer request failed", { worker, transport, why });
    if (!this.usable().some((other) => other.breaker.state === "closed")) this.#down(why);
  }

  /** Records that the peer sent a block that failed verification. */
  sentCorrupt(key: string, why: string): void {
    const { worker } = this;
    this.failures++;
    this.lastFault = `corrupt: ${why}`;
    this.#context.parts.onEvent({ kind: "peer_corrupt", worker, key, why });
    const nowMs = this.#context.parts.clock.monotonicMs();
    this.#corruptMs.push(nowMs);
    if (this.#corruptMs.length > CORRUPT_MAX) this.#corruptMs.shift();
    const isOften = this.#corruptMs.length === CORRUPT_MAX;
    if (!isOften || nowMs - this.#corruptMs[0] > CORRUPT_WITHIN_MS) return;
    // The reply that carried the corrupt block also counts as a success, which would reset the
    // cooldown to its minimum. So corrupt replies are counted separately.
    if (nowMs > this.#corruptUntilMs) this.#corruptTimes = 0;
    if (!this.#down(`corrupt: ${why}`, this.#corruptTimes)) return;
    this.#corruptTimes++;
    this.#corruptUntilMs = nowMs + CORRUPT_REMEMBERED_MS;
  }

  /** Records that the peer sent nothing within the 95th percentile of its reply time. */
  late(afterMs: number): void {
    const { parts, limits } = this.#context;
    if (this.suspect) return;
    this.#suspectUntilMs = parts.clock.monotonicMs() + limits.cooldownMs;
    parts.onEvent({ kind: "peer_slow", worker: this.worker, afterMs });
    if (++this.#slow < SLOW_MAX) return;
    this.#slow = 0;
    this.lastFault = "stalled: several slow answers in a row";
    this.failures++;
    this.#down(this.lastFault);
  }

  /** Forgets all faults, because the peer's process was restarted. */
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

  /**
   * Opens the circuit breaker. Returns false if it was open already. `before`: number of earlier
   * failures to assume.
   */
  #down(why: string, before = 0): boolean {
    const cooldownMs = this.breaker.failed(before);
    if (cooldownMs === null) return false;
    this.#corruptMs.length = 0;
    this.#context.parts.onEvent({ kind: "breaker_opened", worker: this.worker, why, cooldownMs });
    return true;
  }

  /** Handles the peer's reply to this host's hello. */
  helloReceived(hello: PeerHello): void {
    const before = this.hello;
    this.hello = hello;
    if (before === null || before.incarnation === hello.incarnation) return;
    this.renewed();
    this.hello = hello;
    this.#context.parts.onEvent({ kind: "peer_restarted", worker: this.worker });
  }
}

/**
 * The peers of which this host has requested something. A peer is removed when the directory does
 * not list it any more.
 */
export class Peers {
  readonly #context: FetchContext;
  readonly #peers = new Map<WorkerId, Peer>();
  readonly #changes: Disposable;
  readonly #closing = new Set<Promise<void>>();

  constructor(context: FetchContext) {
    this.#context = context;
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

  /** Returns the peer. Null if the directory does not list it, or if it is this host. */
  get(worker: WorkerId): Peer | null {
    const known = this.#peers.get(worker);
    if (known !== undefined) return known;
    const { members, self } = this.#context.parts;
    if (worker === self.worker || members.get(worker) === null) return null;
    const peer = new Peer(worker, this.#context);
    this.#peers.set(worker, peer);
    return peer;
  }

  /** Returns the peers to which requests are permitted now. */
  reachable(): Peer[] {
    return this.all().filter((peer) => peer.mayBeAsked);
  }

  /**
   * Returns those reachable peers that may have blocks of this namespace. `namespace`: its key in
   * hex.
   */
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
      inFlightBytes: this.#context.admission.bytesOf(worker),
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
