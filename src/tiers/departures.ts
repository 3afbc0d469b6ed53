import type { TableView } from "../blocks/index.ts";
import type { NodeId } from "../core/index.ts";

/** Why a block left a tier of this host. */
export const DEPARTURES = [
  "evicted", // its room was needed
  "expired", // nobody used it for so long
  "purged", // somebody asked for it
  "pruned",
  "flushed",
  "lease_ended",
  "transient", // reasoning that was purged
  "quarantined", // its bytes were not what they should be
  "lost", // its file is gone or unreadable
  "replaced", // other bytes came under its name
] as const;
export type DepartureReason = (typeof DEPARTURES)[number];

export interface Cause {
  readonly reason: DepartureReason;
  /** Who asked for it: issuer and command; null where nobody did. */
  readonly by: string | null;
}

export const EVICTED: Cause = { reason: "evicted", by: null };

export interface Departure extends Cause {
  readonly tier: "ram" | "ssd";
  /** On the store's clock, as `nowSeconds`. */
  readonly atSeconds: number;
}

/** Blocks whose departure is remembered: 4 MiB. */
const ENTRIES = 2 ** 18;
/** Names of who asked; the oldest is forgotten. */
const NAMES = 1_024;
/** Names are numbered from 1 to this, and from 1 again. */
const NUMBERS = 2 ** 24 - 1;

/**
 * What left last, and why: a table in which a newer departure takes the place of an older one with
 * the same hash. So it is bounded, costs a few stores a departure, and forgets now and then.
 */
export class Departures {
  readonly #prints = new Uint32Array(ENTRIES * 2);
  readonly #atSeconds = new Uint32Array(ENTRIES);
  /** Reason, tier and, from bit 8, the number of the name; 0: nobody asked for it. */
  readonly #facts = new Uint32Array(ENTRIES);
  /** The latest names and their numbers, each at the remainder of its number. */
  readonly #names: { number: number; name: string }[] = [];
  readonly #nowSeconds: () => number;
  readonly #key = new Uint32Array(8);
  #number = 0;

  constructor(nowSeconds: () => number) {
    this.#nowSeconds = nowSeconds;
  }

  /** Before the node may vanish. */
  note(table: TableView, node: NodeId, tier: "ram" | "ssd", cause: Cause): void {
    table.readKey(node, this.#key, 0);
    const at = this.#key[0]! & (ENTRIES - 1);
    this.#prints[at * 2] = this.#key[1]!;
    this.#prints[at * 2 + 1] = this.#key[2]!;
    this.#atSeconds[at] = this.#nowSeconds();
    const number = cause.by === null ? 0 : this.#numberOf(cause.by);
    const isSsd = tier === "ssd" ? 0x80 : 0;
    this.#facts[at] = (number << 8) | isSsd | (DEPARTURES.indexOf(cause.reason) + 1);
  }

  /**
   * The latest departure of the block whose key's eight words start at `words[from]`; null where
   * none is known. `by` is null, too, where the name is forgotten.
   */
  find(words: Uint32Array, from: number): Departure | null {
    const at = words[from]! & (ENTRIES - 1);
    const facts = this.#facts[at]!;
    const isSame =
      this.#prints[at * 2] === words[from + 1] && this.#prints[at * 2 + 1] === words[from + 2];
    if (facts === 0 || !isSame) return null;
    const number = facts >>> 8;
    const named = this.#names[number % NAMES];
    return {
      reason: DEPARTURES[(facts & 0x7f) - 1]!,
      by: named?.number === number ? named.name : null,
      tier: (facts & 0x80) === 0 ? "ram" : "ssd",
      atSeconds: this.#atSeconds[at]!,
    };
  }

  /** One command names many blocks: the same name in a row has one number. */
  #numberOf(name: string): number {
    const latest = this.#names[this.#number % NAMES];
    if (latest?.name === name) return latest.number;
    this.#number = (this.#number % NUMBERS) + 1;
    this.#names[this.#number % NAMES] = { number: this.#number, name };
    return this.#number;
  }
}
