import type { WorkerId } from "../../core/index.ts";
import { Peer } from "./peer.ts";
import type { PeerStatus } from "./puller.ts";
import type { Room } from "./room.ts";

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
