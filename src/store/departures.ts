import type { NodeId } from "../core/index.ts";
import type { TableView } from "./blocks/index.ts";

/** Reasons why a block was removed from RAM or SSD of this host. */
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
  /** Issuer and command that removed the block; null if no command did. */
  readonly by: string | null;
}

export const EVICTED: Cause = { reason: "evicted", by: null };

export interface Departure extends Cause {
  readonly tier: "ram" | "ssd";
  /** Unix time of the removal, in seconds, on the store's clock (`nowSeconds`). */
  readonly atSeconds: number;
}

/** Entries per fingerprint table. One table takes 4 MiB. */
const ENTRIES = 2 ** 18;
/** Number of engine hashes, and of page keys, per block under which its removal is recorded. */
const ALIASES = 2;
/** Maximum number of issuer names kept. A new name replaces the oldest. */
const NAMES = 1_024;
/** Issuer names are numbered from 1 to this value and then from 1 again. */
const NUMBERS = 2 ** 24 - 1;

/**
 * Removal records: the latest removal of each block from RAM or SSD, with its reason. Stored in two
 * hash tables of fixed size without collision handling: a new record overwrites the record in the
 * same table entry, so memory is bounded and old records may be lost.
 */
export class Departures {
  readonly #byKey = new FingerprintTable();
  /**
   * Removal records by the first eight bytes of an engine hash or page key. The block table forgets
   * these aliases when it removes the node.
   */
  readonly #byAlias = new FingerprintTable();
  /** The latest issuer names. The name with number `n` is at index `n % NAMES`. */
  readonly #names: { number: number; name: string }[] = [];
  readonly #nowSeconds: () => number;
  readonly #key = new Uint32Array(8);
  readonly #aliases = new Uint32Array(ALIASES * 2 * 2);
  #number = 0;

  constructor(nowSeconds: () => number) {
    this.#nowSeconds = nowSeconds;
  }

  /**
   * Records that a block was removed from a tier. Call while the node is still in the block table.
   */
  note(table: TableView, node: NodeId, tier: "ram" | "ssd", cause: Cause): void {
    const key = this.#key;
    const aliases = this.#aliases;
    const number = cause.by === null ? 0 : this.#numberOf(cause.by);
    const isSsd = tier === "ssd" ? 0x80 : 0;
    const facts = (number << 8) | isSsd | (DEPARTURES.indexOf(cause.reason) + 1);
    const atSeconds = this.#nowSeconds();
    table.readKey(node, key, 0);
    this.#byKey.put(key[0], key[1], key[2], atSeconds, facts);
    const count = table.readAliasStarts(node, aliases, ALIASES);
    for (let i = 0; i < count; i++) {
      const lo = aliases[i * 2];
      const hi = aliases[i * 2 + 1];
      this.#byAlias.put(placeOf(lo, hi), lo, hi, atSeconds, facts);
    }
  }

  /**
   * Returns the latest removal record of the block whose eight-word key begins at `words[from]`, or
   * null if there is none. `by` is also null if the issuer's name was replaced by newer names.
   */
  find(words: Uint32Array, from: number): Departure | null {
    return this.#lookup(this.#byKey, words[from], words[from + 1], words[from + 2]);
  }

  /**
   * Returns the latest removal record of the block that had the engine hash with these low and high
   * 32 bits, or a page key that begins with them; null if there is none. Only the latest two engine
   * hashes and page keys of a block are recorded.
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
    const facts = prints.facts[at];
    const number = facts >>> 8;
    const named = this.#names[number % NAMES];
    return {
      reason: DEPARTURES[(facts & 0x7f) - 1],
      by: named?.number === number ? named.name : null,
      tier: (facts & 0x80) === 0 ? "ram" : "ssd",
      atSeconds: prints.atSeconds[at],
    };
  }

  /**
   * Returns the number of an issuer name. Assigns a new number unless the name is the latest one,
   * since one command usually removes many blocks.
   */
  #numberOf(name: string): number {
    const latest = this.#names[this.#number % NAMES];
    if (latest?.name === name) return latest.number;
    this.#number = (this.#number % NUMBERS) + 1;
    this.#names[this.#number % NAMES] = { number: this.#number, name };
    return this.#number;
  }
}

/**
 * Hash table of removal records by 64-bit fingerprint. Each fingerprint has one fixed entry; a new
 * record overwrites it.
 */
class FingerprintTable {
  readonly #prints = new Uint32Array(ENTRIES * 2);
  readonly atSeconds = new Uint32Array(ENTRIES);
  /**
   * Bits 0 to 6: reason, from 1; 0 if the entry is empty. Bit 7: set for SSD. From bit 8: number of
   * the issuer's name; 0 for no command.
   */
  readonly facts = new Uint32Array(ENTRIES);

  put(place: number, first: number, second: number, atSeconds: number, facts: number): void {
    const at = place & (ENTRIES - 1);
    this.#prints[at * 2] = first;
    this.#prints[at * 2 + 1] = second;
    this.atSeconds[at] = atSeconds;
    this.facts[at] = facts;
  }

  /** Returns the index of the entry with this fingerprint, or -1. */
  find(place: number, first: number, second: number): number {
    const at = place & (ENTRIES - 1);
    const isSame = this.#prints[at * 2] === first && this.#prints[at * 2 + 1] === second;
    return isSame && this.facts[at] !== 0 ? at : -1;
  }
}

/**
 * Returns the table position of an alias. Mixes both words, because engine hashes may differ in
 * their high 32 bits alone.
 */
function placeOf(lo: number, hi: number): number {
  return Math.imul(lo ^ Math.imul(hi, 0x9e3779b1), 0x85ebca6b) >>> 14;
}
