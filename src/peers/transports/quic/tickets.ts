import type { Clock } from "../../../core/index.ts";
import type { PeerIdentity } from "../../trust.ts";

/** What lets the next connection to a peer begin with a request. A secret: in memory only. */
export interface Ticket {
  readonly ticket: Uint8Array;
  /** Shows the other side that our address is real; null: it gave none. */
  readonly token: Uint8Array | null;
  /** The certificate that the peer showed, in DER: the connection will not show it again. */
  readonly certificate: Uint8Array;
  readonly identity: PeerIdentity;
}

const TICKETS_MAX = 1_024;

/** Tickets of peers that we spoke to shortly before. */
export class Tickets {
  readonly #clock: Clock;
  readonly #kept = new Map<string, { readonly ticket: Ticket; readonly expiry: Disposable }>();

  constructor(clock: Clock) {
    this.#clock = clock;
  }

  get size(): number {
    return this.#kept.size;
  }

  /** Keeps it for `ms`, instead of the one that there was. */
  keep(name: string, ticket: Ticket, ms: number): void {
    this.drop(name);
    if (ms <= 0 || this.#kept.size >= TICKETS_MAX) return;
    const expiry = this.#clock.after(ms, () => void this.#kept.delete(name));
    this.#kept.set(name, { ticket, expiry });
  }

  find(name: string): Ticket | null {
    return this.#kept.get(name)?.ticket ?? null;
  }

  drop(name: string): void {
    this.#kept.get(name)?.expiry[Symbol.dispose]();
    this.#kept.delete(name);
  }

  clear(): void {
    for (const name of [...this.#kept.keys()]) this.drop(name);
  }
}
