import type {
  Rdma,
  RdmaPort,
  RdmaQueuePair,
  RdmaQueuePairSettings,
} from "../../../native/index.ts";
import { type PairedRail, RAILS_MAX, type Rail } from "./control.ts";

/**
 * A port of the peer, and the port of this host that is most likely to reach it, judging by their
 * addresses.
 */
export interface RailPair {
  /** Index of the peer's port in its list. */
  readonly rail: number;
  readonly port: RdmaPort;
}

/** First bytes of a GID that contains an IPv4 address. */
const MAPPED = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff];
const SUBNET_BYTES = 8;

/**
 * Returns the ports to offer to peers: those with the fewest connections first, so that peers
 * spread over the ports, then the fastest first.
 */
export function usablePorts(
  ports: readonly RdmaPort[],
  linksOn: (port: number) => number,
): RdmaPort[] {
  return ports
    .filter(({ state }) => state === "active")
    .sort((a, b) => linksOn(a.index) - linksOn(b.index) || b.speed - a.speed || a.index - b.index);
}

/**
 * Pairs ports of the peer with ports of this host. Returns at most `wanted` pairs, with each port
 * in one pair. Prefers pairs whose addresses have the longest common prefix, because they are most
 * likely in one network; then the peer's order, then this host's order.
 */
export function pairRails(
  theirs: readonly Rail[],
  ours: readonly RdmaPort[],
  wanted: number,
): RailPair[] {
  const pairs = theirs
    .flatMap((rail, index) =>
      ours
        .filter((port) => mayReach(rail, port))
        .map((port) => ({ rail: index, port, alike: bitsAlike(rail.gid, port.gid) })),
    )
    .sort((a, b) => b.alike - a.alike);
  const chosen: RailPair[] = [];
  for (const { rail, port } of pairs) {
    if (chosen.length === wanted) break;
    if (chosen.some((one) => one.rail === rail || one.port === port)) continue;
    chosen.push({ rail, port });
  }
  return chosen;
}

function mayReach(a: Rail, b: Rail): boolean {
  if (a.linkLayer !== b.linkLayer || a.isRoceV2 !== b.isRoceV2) return false;
  if (a.linkLayer === "infiniband") return bitsAlike(a.gid, b.gid) >= 8 * SUBNET_BYTES;
  return isMapped(a.gid) === isMapped(b.gid);
}

function isMapped(gid: Uint8Array): boolean {
  return MAPPED.every((byte, index) => gid[index] === byte);
}

function bitsAlike(a: Uint8Array, b: Uint8Array): number {
  const at = a.findIndex((byte, index) => byte !== b[index]);
  return at < 0 ? 8 * a.length : 8 * at + Math.clz32((a[at] ^ b[at]) << 24);
}

/** Queue pair created for a port of the peer. `rail`: index of that port in the peer's list. */
export interface MadeRail {
  readonly rail: number;
  readonly connection: RdmaQueuePair;
}

/** Creates the queue pairs of all connections, and spreads them over this host's ports. */
export class RailConnections {
  readonly #rdma: Rdma;
  readonly #settings: RdmaQueuePairSettings;
  /** Maximum number of queue pairs per connection. */
  readonly #rails: number;
  /** Number of open queue pairs by index of this host's port. */
  readonly #on = new Map<number, number>();
  /** Queue pairs that have not been closed. */
  readonly #all = new Set<RdmaQueuePair>();

  constructor(rdma: Rdma, settings: RdmaQueuePairSettings, rails: number) {
    this.#rdma = rdma;
    this.#settings = settings;
    this.#rails = rails;
  }

  get wanted(): number {
    return this.#rails;
  }

  /** Returns the ports to offer to a server, best first. */
  offered(): RdmaPort[] {
    const ports = usablePorts(this.#rdma.ports(), (port) => this.#on.get(port) ?? 0);
    return ports.slice(0, RAILS_MAX);
  }

  /**
   * Creates queue pairs for the ports that a client offers. Empty if no port of this host reaches
   * one of them. Throws NativeError.
   */
  answer(rails: readonly Rail[], wanted: number): MadeRail[] {
    const pairs = pairRails(rails, this.offered(), Math.min(wanted, this.#rails));
    return this.#make(pairs.map(({ rail, port }) => ({ rail, port: port.index })));
  }

  /**
   * Creates queue pairs for those that a server has created, and connects them. Throws NativeError.
   */
  connect(offered: readonly RdmaPort[], pairs: readonly PairedRail[]): RdmaQueuePair[] {
    const made = this.#make(pairs.map(({ rail }) => ({ rail, port: offered[rail].index })));
    try {
      for (const [index, { connection }] of made.entries())
        connection.connect(pairs[index].address);
    } catch (thrown) {
      for (const { connection } of made) void connection[Symbol.asyncDispose]();
      throw thrown;
    }
    return made.map(({ connection }) => connection);
  }

  #make(wanted: readonly { readonly rail: number; readonly port: number }[]): MadeRail[] {
    const made: MadeRail[] = [];
    try {
      for (const { rail, port } of wanted) made.push({ rail, connection: this.#connection(port) });
    } catch (thrown) {
      for (const { connection } of made) void connection[Symbol.asyncDispose]();
      throw thrown;
    }
    return made;
  }

  #connection(port: number): RdmaQueuePair {
    const connection = this.#rdma.link(port, this.#settings);
    const count = (by: 1 | -1) => this.#on.set(port, (this.#on.get(port) ?? 0) + by);
    count(1);
    this.#all.add(connection);
    void connection.ended.then(() => {
      count(-1);
      this.#all.delete(connection);
    });
    return connection;
  }

  /** Closes all queue pairs. Resolves when that is done. */
  async close(): Promise<void> {
    await Promise.all([...this.#all].map((connection) => connection[Symbol.asyncDispose]()));
  }
}
