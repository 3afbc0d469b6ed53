import type { NodeId } from "../core/index.ts";
import type { TableView } from "./blocks/index.ts";

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

/** Departures a table remembers: 4 MiB, taken as they come. */
const ENTRIES = 2 ** 18;
/** Engine hashes, and page keys, of one block under which its departure is found. */
const ALIASES = 2;
/** Names of who asked; the oldest is forgotten. */
const NAMES = 1_024;
/** Names are numbered from 1 to this, and from 1 again. */
const NUMBERS = 2 ** 24 - 1;

/**
 * What left last, and why: tables in which a newer departure takes the place of an older one with
 * the same hash. So they are bounded, cost a few stores a departure, and forget now and then.
 */
export class Departures {
  readonly #byKey = new Prints();
  /** By the first eight bytes of an engine hash or page key, which go with the node. */
  readonly #byAlias = new Prints();
  /** The latest names and their numbers, each at the remainder of its number. */
  readonly #names: { number: number; name: string }[] = [];
  readonly #nowSeconds: () => number;
  readonly #key = new Uint32Array(8);
  readonly #aliases = new Uint32Array(ALIASES * 2 * 2);
  #number = 0;

  constructor(nowSeconds: () => number) {
    this.#nowSeconds = nowSeconds;
  }

  /** Before the node may vanish. */
  note(table: TableView, node: NodeId, tier: "ram" | "ssd", cause: Cause): void {
    const key = this.#key;
    const aliases = this.#aliases;
    const number = cause.by === null ? 0 : this.#numberOf(cause.by);
    const isSsd = tier === "ssd" ? 0x80 : 0;
    const facts = (number << 8) | isSsd | (DEPARTURES.indexOf(cause.reason) + 1);
    const atSeconds = this.#nowSeconds();
    table.readKey(node, key, 0);
    this.#byKey.put(key[0]!, key[1]!, key[2]!, atSeconds, facts);
    const count = table.readAliasStarts(node, aliases, ALIASES);
    for (let i = 0; i < count; i++) {
      const lo = aliases[i * 2]!;
      const hi = aliases[i * 2 + 1]!;
      this.#byAlias.put(placeOf(lo, hi), lo, hi, atSeconds, facts);
    }
  }

  /**
   * The latest departure of the block whose key's eight words start at `words[from]`; null where
   * none is known. `by` is null, too, where the name is forgotten.
   */
  find(words: Uint32Array, from: number): Departure | null {
    return this.#tell(this.#byKey, words[from]!, words[from + 1]!, words[from + 2]!);
  }

  /**
   * The same of the block that had the engine hash with these low and high 32 bits, or the page key
   * that begins with them. Only the latest two of each kind are remembered of a block.
   */
  findAlias(lo: number, hi: number): Departure | null {
    return this.#tell(this.#byAlias, placeOf(lo, hi), lo, hi);
  }

  #tell(prints: Prints, place: number, first: number, second: number): Departure | null {
    const at = prints.find(place, first, second);
    if (at < 0) return null;
    const facts = prints.facts[at]!;
    const number = facts >>> 8;
    const named = this.#names[number % NAMES];
    return {
      reason: DEPARTURES[(facts & 0x7f) - 1]!,
      by: named?.number === number ? named.name : null,
      tier: (facts & 0x80) === 0 ? "ram" : "ssd",
      atSeconds: prints.atSeconds[at]!,
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

/** Facts by 64 bits of a name, each at a place that its name has; the newest stays. */
class Prints {
  readonly #prints = new Uint32Array(ENTRIES * 2);
  readonly atSeconds = new Uint32Array(ENTRIES);
  /** Reason, tier and, from bit 8, the number of the name; 0: nobody asked for it. */
  readonly facts = new Uint32Array(ENTRIES);

  put(place: number, first: number, second: number, atSeconds: number, facts: number): void {
    const at = place & (ENTRIES - 1);
    this.#prints[at * 2] = first;
    this.#prints[at * 2 + 1] = second;
    this.atSeconds[at] = atSeconds;
    this.facts[at] = facts;
  }

  /** Where it is; -1: it is not. */
  find(place: number, first: number, second: number): number {
    const at = place & (ENTRIES - 1);
    const isSame = this.#prints[at * 2] === first && this.#prints[at * 2 + 1] === second;
    return isSame && this.facts[at] !== 0 ? at : -1;
  }
}

/** Engine hashes may be any numbers, also ones that differ in their high bits alone. */
function placeOf(lo: number, hi: number): number {
  return Math.imul(lo ^ Math.imul(hi, 0x9e3779b1), 0x85ebca6b) >>> 14;
}
