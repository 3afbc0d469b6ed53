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

/** Blocks whose departure is remembered: about 6 MiB. */
const ENTRIES = 2 ** 18;
/** Names of who asked; the oldest is forgotten. */
const NAMES = 1_024;

/**
 * What left last, and why: a table in which a newer departure takes the place of an older one with
 * the same hash. So it is bounded, costs a few stores a departure, and forgets now and then.
 */
export class Departures {
  readonly #prints = new Uint32Array(ENTRIES * 2);
  readonly #atSeconds = new Uint32Array(ENTRIES);
  /** Reason, tier and, from bit 8, one more than the name's place. */
  readonly #facts = new Uint32Array(ENTRIES);
  readonly #names: (string | null)[] = Array.from({ length: NAMES }, () => null);
  readonly #nowSeconds: () => number;
  readonly #key = new Uint32Array(8);
  #nextName = 0;
  #lastName: string | null = null;

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
    const name = cause.by === null ? 0 : this.#placeOf(cause.by) + 1;
    const isSsd = tier === "ssd" ? 0x80 : 0;
    this.#facts[at] = (name << 8) | isSsd | (DEPARTURES.indexOf(cause.reason) + 1);
  }

  /** The latest departure of the block with this key (eight words); null where none is known. */
  find(words: Uint32Array, from: number): Departure | null {
    const at = words[from]! & (ENTRIES - 1);
    const facts = this.#facts[at]!;
    const isSame =
      this.#prints[at * 2] === words[from + 1] && this.#prints[at * 2 + 1] === words[from + 2];
    if (facts === 0 || !isSame) return null;
    const name = facts >>> 8;
    return {
      reason: DEPARTURES[(facts & 0x7f) - 1]!,
      by: name === 0 ? null : this.#names[name - 1]!,
      tier: (facts & 0x80) === 0 ? "ram" : "ssd",
      atSeconds: this.#atSeconds[at]!,
    };
  }

  /** One command names many blocks: the same name in a row takes one place. */
  #placeOf(name: string): number {
    if (name !== this.#lastName) {
      this.#nextName = (this.#nextName + 1) % NAMES;
      this.#names[this.#nextName] = name;
      this.#lastName = name;
    }
    return this.#nextName;
  }
}
