import type { NamespaceIndex, WorkerId } from "../../core/index.ts";
import { LAYER_ALL } from "../../core/index.ts";
import type { WantedBlock } from "../messages.ts";
import type { Cost, Load } from "./cost.ts";
import type { Distrust } from "./distrust.ts";
import type { Flight } from "./flight.ts";
import type { Peer } from "./peer.ts";
import type { Peers } from "./peers.ts";
import type { Room } from "./room.ts";

const KEY_WORDS = 8;
const KEY_BYTES = 32;
/** Of a run that does not seem to pay, when it is tried nevertheless; at least one block. */
const PROBE_BYTES = 1 << 20;

export interface ProspectParts {
  readonly room: Room;
  readonly peers: Peers;
  readonly cost: Cost;
  readonly distrust: Distrust;
}

/** Whether it may pay to ask at all; from what is known, and at once. */
export class Prospects {
  readonly #room: Room;
  readonly #peers: Peers;
  readonly #cost: Cost;
  readonly #distrust: Distrust;

  constructor({ room, peers, cost, distrust }: ProspectParts) {
    this.#room = room;
    this.#peers = peers;
    this.#cost = cost;
    this.#distrust = distrust;
  }

  /** See `PeerTier`. */
  promising(namespace: NamespaceIndex, keys: Uint32Array, from: number, count: number): number {
    const namespaceKey = this.#room.parts.namespaces.keyOf(namespace);
    if (namespaceKey === null) return 0;
    const at = keys.byteOffset + from * KEY_WORDS * 4;
    const bytes = new Uint8Array(keys.buffer, at, count * KEY_BYTES);
    const usable = new Map<WorkerId, Peer | null>();
    const shares = new Map<Peer, number>();
    const usual = this.#room.parts.blocks.usualBytes(namespace, LAYER_ALL);
    let run = 0;
    for (; run < count; run++) {
      const peer = this.#holder(namespaceKey, bytes, run * KEY_BYTES, usable);
      if (peer === null) break;
      shares.set(peer, (shares.get(peer) ?? 0) + usual);
    }
    if (run === 0 || this.#cost.whyNot(namespace, run, loadsOf(shares)) === null) return run;
    const some = Math.min(Math.max(Math.floor(PROBE_BYTES / usual), 1), run);
    return this.#cost.mayProbe ? some : 0;
  }

  /** Why engines do better without these blocks, in words; null: they may pay, or are tried. */
  tooDear(namespace: NamespaceIndex, flights: readonly Flight[]): string | null {
    if (flights.length === 0 || this.#cost.computeMs(namespace, 1) === null) return null;
    const shares = new Map<Peer, number>();
    const usable = new Map<WorkerId, Peer | null>();
    for (const { candidates, namespaceKey, keyBytes, layer } of flights) {
      const source = candidates.map((worker) => this.#usable(worker, usable)).find(Boolean);
      const peer = source ?? this.#holder(namespaceKey, keyBytes, 0, usable);
      if (peer === null) continue;
      const bytes = this.#room.parts.blocks.usualBytes(namespace, layer);
      shares.set(peer, (shares.get(peer) ?? 0) + bytes);
    }
    const prefixes = new Set(flights.map(({ digest }) => digest.toHex())).size;
    const why = this.#cost.whyNot(namespace, prefixes, loadsOf(shares));
    return why !== null && this.#cost.takeProbe() ? null : why;
  }

  /** Why these would not be pulled for an engine now, in words; null: they would. */
  whyNot(
    namespace: NamespaceIndex,
    blocks: readonly WantedBlock[],
    keys: Uint8Array,
  ): string | null {
    const namespaceKey = this.#room.parts.namespaces.keyOf(namespace);
    if (namespaceKey === null) return "its namespace is not known here";
    const all = this.#peers.all();
    if (all.length === 0) return "no other host is known";
    if (all.every((peer) => !peer.breaker.allows)) return "no other host answers now";
    const shares = new Map<Peer, number>();
    const usable = new Map<WorkerId, Peer | null>();
    for (const [index, { layer }] of blocks.entries()) {
      const peer = this.#holder(namespaceKey, keys, index * KEY_BYTES, usable);
      if (peer === null) {
        if (shares.size > 0) break;
        return "no host that answers is known to have it";
      }
      const bytes = this.#room.parts.blocks.usualBytes(namespace, layer);
      shares.set(peer, (shares.get(peer) ?? 0) + bytes);
    }
    const prefixes = new Set(blocks.map(({ digest }) => digest.toHex())).size;
    return this.#cost.whyNot(namespace, prefixes, loadsOf(shares));
  }

  /** The likeliest one that may be asked for the key at `at`. */
  #holder(
    namespaceKey: Uint8Array,
    keys: Uint8Array,
    at: number,
    usable: Map<WorkerId, Peer | null>,
  ): Peer | null {
    for (const worker of this.#room.parts.whereabouts.holders(namespaceKey, keys, at)) {
      const peer = this.#usable(worker, usable);
      if (peer === null) continue;
      if (this.#distrust.empty) return peer;
      if (!this.#distrust.has(worker, keys.subarray(at, at + KEY_BYTES).toHex())) return peer;
    }
    return null;
  }

  #usable(worker: WorkerId, known: Map<WorkerId, Peer | null>): Peer | null {
    let peer = known.get(worker);
    if (peer === undefined) {
      const candidate = this.#peers.get(worker);
      peer = candidate?.mayBeAsked ? candidate : null;
      known.set(worker, peer);
    }
    return peer;
  }
}

function loadsOf(shares: ReadonlyMap<Peer, number>): Load[] {
  return [...shares].map(([peer, bytes]) => ({ peer, bytes }));
}
