import { assert } from "../core/index.ts";
import { STATUS, STRUCTS } from "./abi.gen.ts";
import { type NativeBuffer, nativeBuffer } from "./buffers.ts";
import { readStruct, type StructValue, writeStruct } from "./layout.ts";
import type { Native } from "./native.ts";
import type { PrefixChanges } from "./prefix-changes.ts";

/** What a target can be numbered with, at most. */
const TARGETS = 2 ** 16;
const TIERS = 3;
/** Of a dump that is not of one target. */
const ALL_TARGETS = 2 ** 32 - 1;
const INFO_BYTES = 256;

/** How many blocks the target in the same place has on each tier. */
export interface PrefixColumns {
  readonly targets: Uint16Array;
  readonly device: Uint32Array;
  readonly host: Uint32Array;
  readonly disk: Uint32Array;
}

/** For each prompt: its first place in the columns, how many it has, up to where that is exact. */
export interface PrefixRows {
  readonly starts: Uint32Array;
  readonly counts: Uint32Array;
  readonly exact: Uint32Array;
}

/** Columns in native memory, and the struct that says where. */
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

/** The native prefix index by its handle: numbers and bytes, nothing of what they mean. */
export class PrefixTable implements Disposable {
  readonly #native: Native;
  readonly #handle: number;
  readonly #info = nativeBuffer(INFO_BYTES).bytes;
  readonly #one = new Columns(TARGETS);
  #many = new Columns(TARGETS);
  #rows = new Rows(64);
  #isOpen = true;

  /** `seed` is secret, so that nobody can choose hashes that collide. */
  constructor(native: Native, options: { readonly bytes: number; readonly seed: bigint }) {
    this.#native = native;
    const request = { bytes: BigInt(options.bytes), seed: options.seed };
    const info = native.exchange("hearth_prefix_create", ["PrefixRequest", request], "PrefixInfo");
    this.#handle = Number(info.handle);
  }

  info(): StructValue<"PrefixInfo"> {
    const call = this.#native.symbols.hearth_prefix_info;
    this.#native.check("hearth_prefix_info", call(this.#handle, this.#info));
    return readStruct("PrefixInfo", this.#info);
  }

  /** Carries them out and empties the list. */
  apply(changes: PrefixChanges): void {
    const { count, hashCount, records, hashes } = changes;
    const call = this.#native.symbols.hearth_prefix_apply;
    const code = call(this.#handle, records, count, hashes, hashCount);
    changes.clear();
    this.#native.check("hearth_prefix_apply", code);
  }

  /** How many places of `columns` are the answer. */
  match(hashes: BigUint64Array): number {
    const call = this.#native.symbols.hearth_prefix_match;
    const code = call(this.#handle, this.#one.struct.bytes, hashes, hashes.length);
    return this.#native.check("hearth_prefix_match", code);
  }

  /** Of the last `match`. */
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

  /** As the library says it: see `hearth_prefix_holders`. */
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
    const call = this.#native.symbols.hearth_prefix_sums;
    this.#native.check("hearth_prefix_sums", call(this.#handle, target, this.#info));
    return readStruct("PrefixDigests", this.#info);
  }

  beginDump(target: number = ALL_TARGETS): void {
    const call = this.#native.symbols.hearth_prefix_dump;
    this.#native.check("hearth_prefix_dump", call(this.#handle, target));
  }

  /** Whole runs into `page`; 0 at the end. */
  dumpNext(page: Uint8Array): number {
    const call = this.#native.symbols.hearth_prefix_dump_next;
    const code = call(this.#handle, page, page.length);
    return this.#native.check("hearth_prefix_dump_next", code);
  }

  beginSave(): void {
    const code = this.#native.symbols.hearth_prefix_save(this.#handle);
    this.#native.check("hearth_prefix_save", code);
  }

  saveNext(page: Uint8Array): number {
    const call = this.#native.symbols.hearth_prefix_save_next;
    const code = call(this.#handle, page, page.length);
    return this.#native.check("hearth_prefix_save_next", code);
  }

  endSave(): void {
    if (!this.#isOpen) return;
    const code = this.#native.symbols.hearth_prefix_save_end(this.#handle);
    this.#native.check("hearth_prefix_save_end", code);
  }

  /** False: it is not what was saved, and nothing is left of it. */
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
    const code = this.#native.symbols.hearth_prefix_close(this.#handle);
    this.#native.check("hearth_prefix_close", code);
  }
}
