import { assert } from "../../../core/index.ts";
import type { CommandRow, HoldRow, IssuerRow, PartRow } from "./hold-ledger.ts";

/**
 * Rows and changes of the ledger as bytes: how they travel between the threads, and over what a
 * row's seal is. A record is its length (u32), its kind, and its fields; numbers little-endian,
 * strings UTF-8 behind their length, what may be null behind a byte that says so.
 */

export type LedgerRecord =
  | { readonly kind: "hold"; readonly row: HoldRow }
  | { readonly kind: "part"; readonly row: PartRow }
  | { readonly kind: "removeHold"; readonly id: number }
  | { readonly kind: "command"; readonly row: CommandRow }
  | { readonly kind: "issuer"; readonly row: IssuerRow }
  | { readonly kind: "removeIssuer"; readonly issuer: string };

const KIND = { hold: 1, removeHold: 2, command: 3, issuer: 4, part: 5, removeIssuer: 6 } as const;
const HOLD_KINDS = ["pin", "retain", "lease"] as const;
const FIRST_BYTES = 64 * 1024;
const U64_MAX = 2n ** 64n - 1n;

export class RecordWriter {
  #bytes: Buffer<ArrayBuffer>;
  #view: DataView;
  #length = 0;

  /** `buffer` is written over. */
  constructor(buffer: ArrayBuffer = new ArrayBuffer(FIRST_BYTES)) {
    this.#bytes = Buffer.from(buffer);
    this.#view = new DataView(buffer);
  }

  get length(): number {
    return this.#length;
  }

  /** What was written lies from its start to `length`. */
  get buffer(): ArrayBuffer {
    return this.#bytes.buffer;
  }

  /** Takes back all beyond the first `length` bytes. */
  truncate(length: number): void {
    assert(length <= this.#length, "what was written can be taken back");
    this.#length = length;
  }

  /** Records as another writer wrote them. */
  copy(records: Uint8Array): void {
    this.#room(records.length);
    this.#bytes.set(records, this.#length);
    this.#length += records.length;
  }

  /** Each of these answers what a seal covers; good until the next call. */
  hold(row: HoldRow): Uint8Array {
    const start = this.#begin(KIND.hold);
    this.#f64(row.id);
    this.#u8(HOLD_KINDS.indexOf(row.kind));
    this.#string(row.owner);
    this.#orNull(row.name, (name) => this.#string(name));
    this.#orNull(row.deadlineBootMs, (ms) => this.#f64(ms));
    this.#string(row.bootId);
    this.#orNull(row.priority, (priority) => this.#f64(priority));
    this.#orNull(row.idleMs, (ms) => this.#f64(ms));
    this.#f64(row.createdWallMs);
    this.#u32(row.blocks.length);
    this.copy(row.blocks);
    // Left out where it is false: so the seals of rows from before there was this member hold.
    if (row.purges) this.#u8(1);
    return this.#end(start);
  }

  part(row: PartRow): Uint8Array {
    const start = this.#begin(KIND.part);
    this.#f64(row.hold);
    this.#u32(row.part);
    this.#u32(row.blocks.length);
    this.copy(row.blocks);
    return this.#end(start);
  }

  removeHold(id: number): Uint8Array {
    const start = this.#begin(KIND.removeHold);
    this.#f64(id);
    return this.#end(start);
  }

  command(row: CommandRow): Uint8Array {
    const start = this.#begin(KIND.command);
    this.#string(row.issuer);
    this.#string(row.id);
    this.#string(row.receipt);
    return this.#end(start);
  }

  issuer(row: IssuerRow): Uint8Array {
    const start = this.#begin(KIND.issuer);
    this.#string(row.issuer);
    this.#u64(row.epoch);
    this.#u64(row.seq);
    return this.#end(start);
  }

  removeIssuer(issuer: string): Uint8Array {
    const start = this.#begin(KIND.removeIssuer);
    this.#string(issuer);
    return this.#end(start);
  }

  #begin(kind: number): number {
    const start = this.#length;
    this.#u32(0);
    this.#u8(kind);
    return start;
  }

  #end(start: number): Uint8Array {
    this.#view.setUint32(start, this.#length - start - 4, true);
    return this.#bytes.subarray(start + 4, this.#length);
  }

  #room(more: number): void {
    const needed = this.#length + more;
    if (needed <= this.#bytes.length) return;
    const grown = Buffer.from(new ArrayBuffer(Math.max(needed, 2 * this.#bytes.length)));
    grown.set(this.#bytes.subarray(0, this.#length));
    this.#bytes = grown;
    this.#view = new DataView(grown.buffer);
  }

  #u8(value: number): void {
    this.#room(1);
    this.#view.setUint8(this.#length, value);
    this.#length += 1;
  }

  #u32(value: number): void {
    this.#room(4);
    this.#view.setUint32(this.#length, value, true);
    this.#length += 4;
  }

  #u64(value: bigint): void {
    assert(value >= 0n && value <= U64_MAX, "a number of 64 bits");
    this.#room(8);
    this.#view.setBigUint64(this.#length, value, true);
    this.#length += 8;
  }

  #f64(value: number): void {
    assert(Number.isFinite(value), "a number");
    this.#room(8);
    // Without the sign of a zero, which SQLite does not keep.
    this.#view.setFloat64(this.#length, value + 0, true);
    this.#length += 8;
  }

  #string(value: string): void {
    this.#room(4 + 3 * value.length);
    const bytes = this.#bytes.write(value, this.#length + 4, "utf8");
    this.#u32(bytes);
    this.#length += bytes;
  }

  #orNull<Value>(value: Value | null, write: (value: Value) => void): void {
    this.#u8(value === null ? 0 : 1);
    if (value !== null) write(value);
  }
}

/** Reads what a `RecordWriter` wrote, in order; blocks are not copied. */
export class RecordReader {
  readonly #bytes: Buffer;
  readonly #view: DataView;
  #at = 0;
  #start = 0;
  #end = 0;

  constructor(buffer: ArrayBuffer, length: number) {
    this.#bytes = Buffer.from(buffer, 0, length);
    this.#view = new DataView(buffer, 0, length);
  }

  /** Null at the end. */
  next(): LedgerRecord | null {
    assert(this.#at === this.#end, "a record is read whole");
    if (this.#at === this.#bytes.length) return null;
    const bytes = this.#u32();
    this.#start = this.#at;
    this.#end = this.#at + bytes;
    switch (this.#u8()) {
      case KIND.hold:
        return { kind: "hold", row: this.#hold() };
      case KIND.part: {
        const [hold, part] = [this.#f64(), this.#u32()];
        return { kind: "part", row: { hold, part, blocks: this.#take(this.#u32()) } };
      }
      case KIND.removeHold:
        return { kind: "removeHold", id: this.#f64() };
      case KIND.removeIssuer:
        return { kind: "removeIssuer", issuer: this.#string() };
      case KIND.command: {
        const [issuer, id, receipt] = [this.#string(), this.#string(), this.#string()];
        return { kind: "command", row: { issuer, id, receipt } };
      }
      default: {
        const [issuer, epoch, seq] = [this.#string(), this.#u64(), this.#u64()];
        return { kind: "issuer", row: { issuer, epoch, seq } };
      }
    }
  }

  /** What the seal of the record read last covers. */
  get sealed(): Uint8Array {
    return this.#bytes.subarray(this.#start, this.#end);
  }

  #hold(): HoldRow {
    return {
      id: this.#f64(),
      kind: HOLD_KINDS[this.#u8()]!,
      owner: this.#string(),
      name: this.#orNull(() => this.#string()),
      deadlineBootMs: this.#orNull(() => this.#f64()),
      bootId: this.#string(),
      priority: this.#orNull(() => this.#f64()),
      idleMs: this.#orNull(() => this.#f64()),
      createdWallMs: this.#f64(),
      blocks: this.#take(this.#u32()),
      purges: this.#at < this.#end && this.#u8() === 1,
    };
  }

  #u8(): number {
    return this.#bytes[this.#at++]!;
  }

  #u32(): number {
    this.#at += 4;
    return this.#view.getUint32(this.#at - 4, true);
  }

  #u64(): bigint {
    this.#at += 8;
    return this.#view.getBigUint64(this.#at - 8, true);
  }

  #f64(): number {
    this.#at += 8;
    return this.#view.getFloat64(this.#at - 8, true);
  }

  #take(bytes: number): Uint8Array {
    this.#at += bytes;
    return this.#bytes.subarray(this.#at - bytes, this.#at);
  }

  #string(): string {
    const bytes = this.#u32();
    this.#at += bytes;
    return this.#bytes.toString("utf8", this.#at - bytes, this.#at);
  }

  #orNull<Value>(read: () => Value): Value | null {
    return this.#u8() === 0 ? null : read();
  }
}
