import { assert } from "../core/index.ts";
import { STATUS, STRUCTS } from "./abi.gen.ts";
import {
  type NativeBuffer,
  nativeBuffer,
  readStruct,
  type StructValue,
  writeStruct,
} from "./memory.ts";
import type { Native } from "./native.ts";

export const PREFIX_CHANGE = { stored: 0, storedFirst: 1, removed: 2, cleared: 3 } as const;
/** Tier value of `cleared` that means all tiers. */
export const PREFIX_TIERS_ALL = 3;

const CHANGE_BYTES = STRUCTS.PrefixChange.size;
const CHANGE_FIELDS = STRUCTS.PrefixChange.fields;
const RECORD_WORDS = CHANGE_BYTES / 4;
const CHANGES_MAX = 1024;
const HASHES_MAX = 2 ** 15;

/** One change of the index. */
export interface PrefixChange {
  readonly kind: number;
  readonly target: number;
  readonly tier: number;
  /** Only for `stored`. */
  readonly parent: bigint;
}

/** A batch of changes for the native index, in its binary format. */
export class PrefixChanges {
  readonly records = nativeBuffer(CHANGES_MAX * CHANGE_BYTES).bytes;
  readonly hashes = new BigUint64Array(new ArrayBuffer(HASHES_MAX * 8));
  readonly #words = new Uint32Array(this.records.buffer);
  readonly #parents = new BigUint64Array(this.records.buffer);
  count = 0;
  hashCount = 0;

  /** How many more hashes fit. 0 if no further change fits. */
  get room(): number {
    return this.count === CHANGES_MAX ? 0 : HASHES_MAX - this.hashCount;
  }

  /** The caller checks that there is room for the hashes. */
  add({ kind, target, tier, parent }: PrefixChange, hashes: BigUint64Array | null): void {
    const at = this.count * RECORD_WORDS;
    const words = this.#words;
    this.#parents[(at + CHANGE_FIELDS.parent.offset / 4) / 2] = parent;
    words[at + CHANGE_FIELDS.target.offset / 4] = target;
    words[at + CHANGE_FIELDS.tier.offset / 4] = tier;
    words[at + CHANGE_FIELDS.kind.offset / 4] = kind;
    words[at + CHANGE_FIELDS.count.offset / 4] = hashes?.length ?? 0;
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

/** Number of possible targets. */
const TARGETS = 2 ** 16;
const TIERS = 3;
/** Target of a dump of all targets. */
const ALL_TARGETS = 2 ** 32 - 1;
const INFO_BYTES = 256;

/** Blocks of each target per tier, as parallel columns. */
export interface PrefixColumns {
  readonly targets: Uint16Array;
  readonly device: Uint32Array;
  readonly host: Uint32Array;
  readonly disk: Uint32Array;
}

/**
 * For each prompt: its first row in the columns, its number of rows, and how many of them are
 * exact.
 */
export interface PrefixRows {
  readonly starts: Uint32Array;
  readonly counts: Uint32Array;
  readonly exact: Uint32Array;
}

/** Columns in native memory, with the struct that contains their addresses. */
class Columns {
  readonly columns: PrefixColumns;
  readonly struct: NativeBuffer = nativeBuffer(STRUCTS.PrefixColumns.size);
  readonly #words: Uint32Array;
  readonly #kept: NativeBuffer;

  constructor(room: number) {
    const kept = nativeBuffer(room * (2 + TIERS * 4));
    this.#kept = kept;
    const at = (column: number) => column * room * 4;
    const words = (column: number) => new Uint32Array(kept.bytes.buffer, at(column), room);
    this.columns = {
      device: words(0),
      host: words(1),
      disk: words(2),
      targets: new Uint16Array(kept.bytes.buffer, at(TIERS), room),
    };
    const address = (column: number) => BigInt(kept.address + at(column));
    const value = { room, exact: 0, targets: address(TIERS) };
    const tiers = { device: address(0), host: address(1), disk: address(2) };
    writeStruct("PrefixColumns", { ...value, ...tiers }, this.struct.bytes);
    this.#words = new Uint32Array(this.struct.bytes.buffer);
  }

  get room(): number {
    return this.#kept.bytes.length / (2 + TIERS * 4);
  }

  get exact(): number {
    return this.#words[STRUCTS.PrefixColumns.fields.exact.offset / 4]!;
  }
}

class Rows {
  readonly rows: PrefixRows;
  readonly room: number;
  readonly struct: NativeBuffer = nativeBuffer(STRUCTS.PrefixRows.size);
  readonly #kept: NativeBuffer;

  constructor(room: number) {
    this.room = room;
    const kept = nativeBuffer(room * 12);
    this.#kept = kept;
    const words = (row: number) => new Uint32Array(this.#kept.bytes.buffer, row * room * 4, room);
    const address = (row: number) => BigInt(kept.address + row * room * 4);
    this.rows = { starts: words(0), counts: words(1), exact: words(2) };
    const value = { starts: address(0), counts: address(1), exact: address(2) };
    writeStruct("PrefixRows", value, this.struct.bytes);
  }
}

/** A native prefix index. It handles numbers and bytes without interpreting them. */
export class PrefixTable implements Disposable {
  readonly #native: Native;
  readonly #handle: number;
  readonly #info = nativeBuffer(INFO_BYTES).bytes;
  readonly #one = new Columns(TARGETS);
  #many = new Columns(TARGETS);
  #rows = new Rows(64);
  #isOpen = true;

  /** `seed` is secret, so that an attacker cannot choose colliding hashes. */
  constructor(native: Native, options: { readonly bytes: number; readonly seed: bigint }) {
    this.#native = native;
    const request = { bytes: BigInt(options.bytes), seed: options.seed };
    const info = native.exchange("hearth_prefix_create", ["PrefixRequest", request], "PrefixInfo");
    this.#handle = Number(info.handle);
  }

  info(): StructValue<"PrefixInfo"> {
    this.#native.call("hearth_prefix_info", this.#handle, this.#info);
    return readStruct("PrefixInfo", this.#info);
  }

  /** Applies the changes and empties the batch. */
  apply(changes: PrefixChanges): void {
    const { count, hashCount, records, hashes } = changes;
    const call = this.#native.symbols.hearth_prefix_apply;
    const code = call(this.#handle, records, count, hashes, hashCount);
    changes.clear();
    this.#native.check("hearth_prefix_apply", code);
  }

  /** Number of rows of `columns` that the match filled. */
  match(hashes: BigUint64Array): number {
    const call = this.#native.symbols.hearth_prefix_match;
    const code = call(this.#handle, this.#one.struct.bytes, hashes, hashes.length);
    return this.#native.check("hearth_prefix_match", code);
  }

  /** Result of the last `match`. */
  get columns(): PrefixColumns {
    return this.#one.columns;
  }

  get exact(): number {
    return this.#one.exact;
  }

  matchMany(hashes: BigUint64Array, ends: Uint32Array): PrefixColumns & PrefixRows {
    assert((ends.at(-1) ?? 0) <= hashes.length, "prompts end within the hashes");
    if (this.#rows.room < ends.length) this.#rows = new Rows(2 * ends.length);
    const call = this.#native.symbols.hearth_prefix_match_many;
    while (true) {
      const columns = this.#many.struct.bytes;
      const rows = this.#rows.struct.bytes;
      const code = call(this.#handle, columns, hashes, ends, ends.length, rows);
      if (code !== STATUS.full) {
        this.#native.check("hearth_prefix_match_many", code);
        return { ...this.#many.columns, ...this.#rows.rows };
      }
      this.#many = new Columns(this.#many.room * 2);
    }
  }

  /** Encoded as documented at `hearth_prefix_holders`. */
  holders(hashes: BigUint64Array, max: number): Uint32Array {
    const call = this.#native.symbols.hearth_prefix_holders;
    for (let room = 4096; ; room *= 2) {
      const words = new Uint32Array(new ArrayBuffer(room * 4));
      const code = call(this.#handle, hashes, hashes.length, max, words, room);
      if (code === STATUS.full) continue;
      return words.subarray(0, this.#native.check("hearth_prefix_holders", code));
    }
  }

  digests(target: number): StructValue<"PrefixDigests"> {
    this.#native.call("hearth_prefix_sums", this.#handle, target, this.#info);
    return readStruct("PrefixDigests", this.#info);
  }

  beginDump(target: number = ALL_TARGETS): void {
    this.#native.call("hearth_prefix_dump", this.#handle, target);
  }

  /** Writes whole runs to `page`. 0 at the end of the dump. */
  dumpNext(page: Uint8Array): number {
    return this.#native.call("hearth_prefix_dump_next", this.#handle, page, page.length);
  }

  beginSave(): void {
    this.#native.call("hearth_prefix_save", this.#handle);
  }

  saveNext(page: Uint8Array): number {
    return this.#native.call("hearth_prefix_save_next", this.#handle, page, page.length);
  }

  endSave(): void {
    if (!this.#isOpen) return;
    this.#native.call("hearth_prefix_save_end", this.#handle);
  }

  /** False if the page is not a saved page; the loaded content is discarded then. */
  load(page: Uint8Array): boolean {
    const call = this.#native.symbols.hearth_prefix_load;
    return this.#loaded("hearth_prefix_load", call(this.#handle, page, page.length));
  }

  endLoad(): boolean {
    const code = this.#native.symbols.hearth_prefix_load_end(this.#handle);
    return this.#loaded("hearth_prefix_load_end", code);
  }

  #loaded(call: string, code: number): boolean {
    if (code === STATUS.forged) return false;
    this.#native.check(call, code);
    return true;
  }

  [Symbol.dispose](): void {
    if (!this.#isOpen) return;
    this.#isOpen = false;
    this.#native.call("hearth_prefix_close", this.#handle);
  }
}

/** Parameters of sequence hashes: Dynamo's chain of XXH3-64 over the tokens. */
export interface SequenceHashing {
  readonly blockTokens: number;
  /** Seed of each block's own (local) hash. */
  readonly seed: bigint;
  /** Sequence hash before the first block. Null if the block is the first of a prompt. */
  readonly parent?: bigint | null;
  /**
   * Tokens that a local hash covers from the start of its block: more than a block for EAGLE.
   * Default: `blockTokens`.
   */
  readonly windowTokens?: number;
}

const CHAIN_FIELDS = STRUCTS.ChainRequest.fields;
const REQUEST = nativeBuffer(STRUCTS.ChainRequest.size).bytes;
const VIEW = new DataView(REQUEST.buffer);

/** Number of blocks in `tokens` tokens. A block counts if its whole window is present. */
export function blocksOfTokens(
  tokens: number,
  { blockTokens, windowTokens = blockTokens }: SequenceHashing,
): number {
  return tokens < windowTokens ? 0 : Math.floor((tokens - windowTokens) / blockTokens) + 1;
}

/**
 * Computes the local and the sequence hash of each full block of a prompt. Both arrays must have
 * room. Returns the number of blocks.
 */
export function sequenceHashes(
  native: Native,
  tokens: Uint32Array,
  hashing: SequenceHashing,
  into: { readonly local: BigUint64Array; readonly sequence: BigUint64Array },
): number {
  const count = blocksOfTokens(tokens.length, hashing);
  const { local, sequence } = into;
  assert(local.length >= count && sequence.length >= count, "room for every hash");
  if (count === 0) return 0;
  const { blockTokens, seed, parent = null, windowTokens = blockTokens } = hashing;
  VIEW.setBigUint64(CHAIN_FIELDS.seed.offset, seed, true);
  VIEW.setBigUint64(CHAIN_FIELDS.parent.offset, parent ?? 0n, true);
  VIEW.setUint32(CHAIN_FIELDS.token_count.offset, tokens.length, true);
  VIEW.setUint32(CHAIN_FIELDS.block_tokens.offset, blockTokens, true);
  VIEW.setUint32(CHAIN_FIELDS.window_tokens.offset, windowTokens, true);
  VIEW.setUint32(CHAIN_FIELDS.has_parent.offset, parent === null ? 0 : 1, true);
  const call = native.symbols.hearth_sequence_hashes;
  return native.check("hearth_sequence_hashes", call(REQUEST, tokens, local, sequence, count));
}

/**
 * Computes, for each full block, the first eight bytes (little-endian) of its BlockKey (layer: all)
 * under a namespace's key. Returns the number of blocks.
 */
export function keyHashes(
  native: Native,
  namespaceKey: Uint8Array,
  tokens: Uint32Array,
  blockTokens: number,
  into: BigUint64Array,
): number {
  const count = Math.floor(tokens.length / blockTokens);
  assert(namespaceKey.length === 32 && into.length >= count, "a key, and room for every hash");
  if (count === 0) return 0;
  const call = native.symbols.hearth_key_hashes;
  const code = call(namespaceKey, tokens, tokens.length, blockTokens, into, count);
  return native.check("hearth_key_hashes", code);
}
