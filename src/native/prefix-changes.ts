import { STRUCTS } from "./abi.gen.ts";
import { nativeBuffer } from "./buffers.ts";

export const PREFIX_CHANGE = { stored: 0, storedFirst: 1, removed: 2, cleared: 3 } as const;
/** Of `cleared`: all of them. */
export const PREFIX_TIERS_ALL = 3;

const { size, fields } = STRUCTS.PrefixChange;
const RECORD_WORDS = size / 4;
const CHANGES_MAX = 1024;
const HASHES_MAX = 2 ** 15;

/** One change, as numbers. */
export interface PrefixChange {
  readonly kind: number;
  readonly target: number;
  readonly tier: number;
  /** Of `stored`. */
  readonly parent: bigint;
}

/** Changes on their way to the native index, in the form in which they cross. */
export class PrefixChanges {
  readonly records = nativeBuffer(CHANGES_MAX * size).bytes;
  readonly hashes = new BigUint64Array(new ArrayBuffer(HASHES_MAX * 8));
  readonly #words = new Uint32Array(this.records.buffer);
  readonly #parents = new BigUint64Array(this.records.buffer);
  count = 0;
  hashCount = 0;

  /** How many more hashes fit; 0 where no further change does. */
  get room(): number {
    return this.count === CHANGES_MAX ? 0 : HASHES_MAX - this.hashCount;
  }

  /** There is room for its hashes. */
  add({ kind, target, tier, parent }: PrefixChange, hashes: BigUint64Array | null): void {
    const at = this.count * RECORD_WORDS;
    const words = this.#words;
    this.#parents[(at + fields.parent.offset / 4) / 2] = parent;
    words[at + fields.target.offset / 4] = target;
    words[at + fields.tier.offset / 4] = tier;
    words[at + fields.kind.offset / 4] = kind;
    words[at + fields.count.offset / 4] = hashes?.length ?? 0;
    this.count++;
    if (hashes === null) return;
    if (hashes.length === 1) this.hashes[this.hashCount] = hashes[0]!;
    else this.hashes.set(hashes, this.hashCount);
    this.hashCount += hashes.length;
  }

  clear(): void {
    this.count = 0;
    this.hashCount = 0;
  }
}
