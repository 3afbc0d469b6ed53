import type { Landing } from "../../store/index.ts";
import type { Grant, Ticket } from "./admission.ts";
import type { Flight } from "./flight.ts";
import type { Peer } from "./peer.ts";

/** What a request does for an ask as long as it is part of it. */
export interface Carrier {
  /** Whom it is for may not want it any more. */
  reconsider(): void;
}

/** The question for one block to one peer, from its place in the queue to the answer. */
export class Ask {
  readonly flight: Flight;
  readonly peer: Peer;
  /** Somebody else was asked before and takes long. */
  readonly hedge: boolean;
  /** What may come at most, as soon as it is known. */
  bytes = 0;
  /** Of the copy that this peer said it has; 0: any. */
  generation = 0n;
  ticket: Ticket | null = null;
  /** Its share of the bytes under way, until it was answered. */
  grant: Grant | null = null;
  /** Its place in RAM, until it is committed or nothing can write to it any more. */
  landing: Landing | null = null;
  carrier: Carrier | null = null;
  /** Somebody else was asked because this took long. */
  hedged = false;
  /** Nothing more is expected of it. */
  over = false;
  readonly #trial: boolean;

  constructor(flight: Flight, peer: Peer, hedge: boolean) {
    this.flight = flight;
    this.peer = peer;
    this.hedge = hedge;
    this.#trial = peer.breaker.state === "trial";
  }

  load(bytes: number): void {
    this.peer.loadBytes += bytes - this.bytes;
    this.bytes = bytes;
  }

  /** It was answered, given up, or is in vain. What it wrote to stays taken. */
  end(): void {
    if (this.over) return;
    this.over = true;
    this.flight.asks.delete(this);
    this.peer.loadBytes -= this.bytes;
    this.ticket?.leave();
    this.grant?.release();
    this.grant = null;
    if (this.#trial && this.carrier === null) this.peer.breaker.withdraw();
  }
}
