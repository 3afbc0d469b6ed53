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
/** Value of `tier` in a `cleared` change that clears all tiers of a target. */
export const PREFIX_TIERS_ALL = 3;

const CHANGE_BYTES = STRUCTS.PrefixChange.size;
const CHANGE_FIELDS = STRUCTS.PrefixChange.fields;
const RECORD_WORDS = CHANGE_BYTES / 4;
const CHANGES_MAX = 1024;
const HASHES_MAX = 2 ** 15;

/**
 * One change of the prefix index: blocks that a target stored, removed, or cleared in one memory
 * tier.
 */
export interface PrefixChange {
  readonly kind: number;
  readonly target: number;
  readonly tier: number;
  /** Hash of the block before the first stored block. Only used by `stored`. */
  readonly parent: bigint;
}

/** A batch of changes for the prefix index, in the binary format of the native library. */
export class PrefixChanges {
  readonly records = nativeBuffer(CHANGES_MAX * CHANGE_BYTES).bytes;
  readonly hashes = new BigUint64Array(new ArrayBuffer(HASHES_MAX * 8));
  readonly #words = new Uint32Array(this.records.buffer);
  readonly #parents = new BigUint64Array(this.records.buffer);
  count = 0;
  hashCount = 0;

  /** Number of hashes that still fit into the batch. 0 if no further change fits. */
  get room(): number {
    return this.count === CHANGES_MAX ? 0 : HASHES_MAX - this.hashCount;
  }

  /** Adds a change. The caller must have checked with `room` that the hashes fit. */
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
    if (hashes.length === 1) this.hashes[this.hashCount] = hashes[0];
    else this.hashes.set(hashes, this.hashCount);
    this.hashCount += hashes.length;
  }

  clear(): void {
    this.count = 0;
    this.hashCount = 0;
  }
}

/** Number of different target ids. */
const TARGETS = 2 ** 16;
const TIERS = 3;
/** Passed instead of a target id to dump all targets. */
const ALL_TARGETS = 2 ** 32 - 1;
const INFO_BYTES = 256;

/**
 * Number of blocks that each target has in each memory tier. Row `i` of all arrays belongs to
 * target `targets[i]`.
 */
export interface PrefixColumns {
  readonly targets: Uint16Array;
  readonly device: Uint32Array;
  readonly host: Uint32Array;
  readonly disk: Uint32Array;
}

/**
 * Position of each prompt's result in `PrefixColumns`: its first row, its number of rows, and the
 * number of blocks (from the start of the prompt) that the index knows exactly.
 */
export interface PrefixRows {
  readonly starts: Uint32Array;
  readonly counts: Uint32Array;
  readonly exact: Uint32Array;
}

/** `PrefixColumns` in native memory, with the struct through which the library finds the arrays. */
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
    return this.#words[STRUCTS.PrefixColumns.fields.exact.offset / 4];
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

/**
 * A prefix index in native memory: which targets hold which blocks of a prompt. It stores ids and
 * hashes without interpreting them.
 */
export class PrefixTable implements Disposable {
  readonly #native: Native;
  readonly #handle: number;
  readonly #info = nativeBuffer(INFO_BYTES).bytes;
  readonly #one = new Columns(TARGETS);
  #many = new Columns(TARGETS);
  #rows = new Rows(64);
  #isOpen = true;

  /**
   * `bytes`: memory for the index. `seed`: secret value that prevents an attacker from choosing
   * colliding hashes.
   */
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

  /** Applies the changes to the index and empties the batch. */
  apply(changes: PrefixChanges): void {
    const { count, hashCount, records, hashes } = changes;
    const call = this.#native.symbols.hearth_prefix_apply;
    const code = call(this.#handle, records, count, hashes, hashCount);
    changes.clear();
    this.#native.check("hearth_prefix_apply", code);
  }

  /**
   * Finds the targets that have blocks of the prompt with these block hashes. Returns the number of
   * rows of `columns` that are filled.
   */
  match(hashes: BigUint64Array): number {
    const call = this.#native.symbols.hearth_prefix_match;
    const code = call(this.#handle, this.#one.struct.bytes, hashes, hashes.length);
    return this.#native.check("hearth_prefix_match", code);
  }

  /** Result of the latest `match`. */
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

  /**
   * Returns the targets that hold each block, at most `max` per block. Encoding: see
   * `hearth_prefix_holders`.
   */
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

  /**
   * Writes the next part of the dump to `page`. Returns the number of bytes written, 0 at the end
   * of the dump.
   */
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

  /**
   * Loads one page written by `saveNext`. Returns false, and discards everything loaded, if the
   * page is invalid.
   */
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

/**
 * Parameters of the hashes by which Dynamo identifies blocks: XXH3-64, where a block's sequence
 * hash also covers the preceding blocks.
 */
export interface SequenceHashing {
  readonly blockTokens: number;
  /** Seed of each block's local hash, which covers only the block's own tokens. */
  readonly seed: bigint;
  /** Sequence hash of the block that precedes the tokens. Null at the start of a prompt. */
  readonly parent?: bigint | null;
  /**
   * Number of tokens that a local hash covers, from the start of its block. Larger than a block for
   * EAGLE. Default: `blockTokens`.
   */
  readonly windowTokens?: number;
}

const CHAIN_FIELDS = STRUCTS.ChainRequest.fields;
const REQUEST = nativeBuffer(STRUCTS.ChainRequest.size).bytes;
const VIEW = new DataView(REQUEST.buffer);

/**
 * Returns the number of blocks that can be hashed. A block counts if all `windowTokens` tokens from
 * its start are present.
 */
export function blocksOfTokens(
  tokens: number,
  { blockTokens, windowTokens = blockTokens }: SequenceHashing,
): number {
  return tokens < windowTokens ? 0 : Math.floor((tokens - windowTokens) / blockTokens) + 1;
}

/**
 * Computes the local hash and the sequence hash of each full block of a prompt. Both arrays in
 * `into` must be long enough. Returns the number of blocks.
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
 * Computes 64-bit hashes of a prompt's full blocks: the first eight bytes, little-endian, of each
 * block's `BlockKey` for all layers under a namespace key. Returns the number of blocks.
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
