import type { NodeId } from "../core/index.ts";
import type { TableView } from "./blocks/index.ts";

/** Reasons for which a block left a tier of this host. */
export const DEPARTURES = [
  "evicted", // to make room
  "expired", // unused for the configured time
  "purged", // by command
  "pruned",
  "flushed",
  "lease_ended",
  "transient", // purge of transient blocks
  "quarantined", // damaged
  "lost", // file missing or unreadable
  "replaced", // replaced by other bytes under the same key
] as const;
export type DepartureReason = (typeof DEPARTURES)[number];

export interface Cause {
  readonly reason: DepartureReason;
  /** Issuer and command that caused it; null if no command did. */
  readonly by: string | null;
}

export const EVICTED: Cause = { reason: "evicted", by: null };

export interface Departure extends Cause {
  readonly tier: "ram" | "ssd";
  /** Unix time in seconds, as `nowSeconds` of the store. */
  readonly atSeconds: number;
}

/** Entries of one table: 4 MiB. */
const ENTRIES = 2 ** 18;
/** Engine hashes, and page keys, per block under which its departure is stored. */
const ALIASES = 2;
/** Maximum number of remembered issuer names. The oldest is forgotten. */
const NAMES = 1_024;
/** Names are numbered from 1 to this, then from 1 again. */
const NUMBERS = 2 ** 24 - 1;

/**
 * The latest departures of blocks and their reasons. Two hash tables in which a new entry
 * overwrites an older one in the same place: memory is bounded, an entry costs a few stores, and an
 * old entry may be lost.
 */
export class Departures {
  readonly #byKey = new FingerprintTable();
  /**
   * By the first eight bytes of an engine hash or page key, since aliases are removed with the
   * node.
   */
  readonly #byAlias = new FingerprintTable();
  /** The latest names and their numbers, each at index number modulo NAMES. */
  readonly #names: { number: number; name: string }[] = [];
  readonly #nowSeconds: () => number;
  readonly #key = new Uint32Array(8);
  readonly #aliases = new Uint32Array(ALIASES * 2 * 2);
  #number = 0;

  constructor(nowSeconds: () => number) {
    this.#nowSeconds = nowSeconds;
  }

  /** Records a departure. Call before the node may be removed. */
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
   * The latest known departure of the block whose eight-word key begins at `words[from]`, or null.
   * `by` is also null if the name was forgotten.
   */
  find(words: Uint32Array, from: number): Departure | null {
    return this.#lookup(this.#byKey, words[from]!, words[from + 1]!, words[from + 2]!);
  }

  /**
   * The latest known departure of the block that had the engine hash with these low and high 32
   * bits, or a page key that begins with them. Only the latest two aliases of each kind are stored
   * per block.
   */
  findAlias(lo: number, hi: number): Departure | null {
    return this.#lookup(this.#byAlias, placeOf(lo, hi), lo, hi);
  }

  #lookup(
    prints: FingerprintTable,
    place: number,
    first: number,
    second: number,
  ): Departure | null {
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

  /** Reuses the number if the latest name is the same: one command names many blocks. */
  #numberOf(name: string): number {
    const latest = this.#names[this.#number % NAMES];
    if (latest?.name === name) return latest.number;
    this.#number = (this.#number % NUMBERS) + 1;
    this.#names[this.#number % NAMES] = { number: this.#number, name };
    return this.#number;
  }
}

/** Facts by a 64-bit fingerprint, each in one fixed place. A new entry overwrites the place. */
class FingerprintTable {
  readonly #prints = new Uint32Array(ENTRIES * 2);
  readonly atSeconds = new Uint32Array(ENTRIES);
  /** Reason, tier and, from bit 8, the number of the name; 0 for no command. */
  readonly facts = new Uint32Array(ENTRIES);

  put(place: number, first: number, second: number, atSeconds: number, facts: number): void {
    const at = place & (ENTRIES - 1);
    this.#prints[at * 2] = first;
    this.#prints[at * 2 + 1] = second;
    this.atSeconds[at] = atSeconds;
    this.facts[at] = facts;
  }

  /** Index of the entry; -1 if there is none. */
  find(place: number, first: number, second: number): number {
    const at = place & (ENTRIES - 1);
    const isSame = this.#prints[at * 2] === first && this.#prints[at * 2 + 1] === second;
    return isSame && this.facts[at] !== 0 ? at : -1;
  }
}

/** Mixes both words: engine hashes may differ in their high bits alone. */
function placeOf(lo: number, hi: number): number {
  return Math.imul(lo ^ Math.imul(hi, 0x9e3779b1), 0x85ebca6b) >>> 14;
}
