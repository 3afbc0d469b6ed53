import type { WorkerId } from "../../core/index.ts";
import type { Cost } from "./cost.ts";
import type { Distrust } from "./distrust.ts";
import type { Flight } from "./flight.ts";
import type { Peer } from "./peer.ts";
import type { Peers } from "./peers.ts";

/** One peer is asked for the same block so often at most, whatever it says. */
const ASKS_MAX = 4;
/** Another than the first is asked only where it would have it sooner by this much. */
const CLEARLY = 1.5;
const CLEARLY_MS = 1;
/** A slow one comes behind all others that were asked as often. */
const SUSPECT = 0.5;

/** Whom to ask for a block, of those who are said to have it. */
export class Candidates {
  readonly #peers: Peers;
  readonly #cost: Cost;
  readonly #distrust: Distrust;
  readonly #nowMs: () => number;

  constructor(peers: Peers, cost: Cost, distrust: Distrust, nowMs: () => number) {
    this.#peers = peers;
    this.#cost = cost;
    this.#distrust = distrust;
    this.#nowMs = nowMs;
  }

  /**
   * The one to ask now; null: nobody, now. First those not asked yet, and of these those that are
   * not slow just now; then in the order in which they were named, but rather one with less to do.
   */
  pick(flight: Flight): Peer | null {
    let [choice, fewest]: [Peer[], number] = [[], Number.POSITIVE_INFINITY];
    for (const worker of flight.candidates) {
      const peer = this.#usable(flight, worker);
      if (peer === null) continue;
      const asks = flight.tried(worker).asks + (peer.suspect ? SUSPECT : 0);
      if (asks < fewest) [choice, fewest] = [[], asks];
      if (asks === fewest) choice.push(peer);
    }
    return choice.length > 1 ? this.#soonest(choice, flight.bytes) : (choice[0] ?? null);
  }

  /** Milliseconds until one that was busy may be asked again; null: there is none. */
  waitMs(flight: Flight): number | null {
    const nowMs = this.#nowMs();
    const waits = flight.candidates.flatMap((worker) => {
      const { busyUntilMs, done, asks } = flight.tried(worker);
      return !done && asks < ASKS_MAX && busyUntilMs > nowMs ? busyUntilMs - nowMs : [];
    });
    return waits.length === 0 ? null : Math.min(...waits);
  }

  #soonest(peers: readonly Peer[], bytes: number): Peer {
    let least = Number.POSITIVE_INFINITY;
    for (const peer of peers) {
      least = Math.min(least, this.#cost.estimateMs(peer, bytes) ?? Number.POSITIVE_INFINITY);
    }
    const soon = least * CLEARLY + CLEARLY_MS;
    return peers.find((peer) => (this.#cost.estimateMs(peer, bytes) ?? 0) <= soon)!;
  }

  #usable(flight: Flight, worker: WorkerId): Peer | null {
    const { done, asks, busyUntilMs } = flight.tried(worker);
    if (done || asks >= ASKS_MAX || busyUntilMs > this.#nowMs()) return null;
    for (const ask of flight.asks) if (ask.peer.worker === worker) return null;
    const peer = this.#peers.get(worker);
    if (!peer?.mayBeAsked) return null;
    return this.#distrust.has(worker, flight.key) ? null : peer;
  }
}
