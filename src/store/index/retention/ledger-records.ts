import { assert } from "../../../core/index.ts";
import type { CommandRow, IssuerRow, PartRow, RetentionRow } from "./retention-ledger.ts";

/**
 * Binary encoding of the ledger's rows and changes. It is sent between the threads, and the seal of
 * a row covers it. A record is its length (u32), its kind, and its fields: numbers in
 * little-endian, strings in UTF-8 after their length, nullable fields after a presence byte.
 */

type LedgerRecord =
  | { readonly kind: "hold"; readonly row: RetentionRow }
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

  /** Overwrites `buffer`. */
  constructor(buffer: ArrayBuffer = new ArrayBuffer(FIRST_BYTES)) {
    this.#bytes = Buffer.from(buffer);
    this.#view = new DataView(buffer);
  }

  get length(): number {
    return this.#length;
  }

  /** The records are in the first `length` bytes. */
  get buffer(): ArrayBuffer {
    return this.#bytes.buffer;
  }

  /** Removes everything after the first `length` bytes. */
  truncate(length: number): void {
    assert(length <= this.#length, "truncate does not extend");
    this.#length = length;
  }

  /** Appends records of another writer. */
  copy(records: Uint8Array): void {
    this.#room(records.length);
    this.#bytes.set(records, this.#length);
    this.#length += records.length;
  }

  /** Each of these returns the sealed bytes, valid until the next call. */
  hold(row: RetentionRow): Uint8Array {
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
    // Omitted if false, so that the seals of rows from older versions stay valid.
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
    assert(value >= 0n && value <= U64_MAX, "a number fits into 64 bits");
    this.#room(8);
    this.#view.setBigUint64(this.#length, value, true);
    this.#length += 8;
  }

  #f64(value: number): void {
    assert(Number.isFinite(value), "a number is finite");
    this.#room(8);
    // Turns -0 into 0, because SQLite does not store the sign of zero.
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

/** Reads the output of a `RecordWriter`, in order. Blocks are views, not copies. */
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

  /** The bytes that the seal of the last record covers. */
  get sealed(): Uint8Array {
    return this.#bytes.subarray(this.#start, this.#end);
  }

  #hold(): RetentionRow {
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

/** Changes that are sent to the worker together. */
export interface RecordBatch {
  buffer: ArrayBuffer;
  readonly length: number;
  readonly count: number;
  /** Number of changes, of all changes ever added, up to the end of this batch. */
  readonly through: number;
}

/** A batch of this length takes no further group. */
const BATCH_BYTES = 2 ** 20;
/** Longer buffers are not kept for reuse. */
const SPARE_BYTES_MAX = 4 * BATCH_BYTES;
/** Extra room for removals, so that pins can be removed even if the log is full. */
const REMOVALS_BYTES = 4 * 2 ** 20;

interface OpenBatch {
  readonly writer: RecordWriter;
  count: number;
  /** Length and number of changes up to the end of the last complete group. */
  ended: { readonly length: number; readonly count: number };
}

/**
 * Pending changes, in order and in groups. A group is committed as a whole, or dropped as a whole
 * if it does not fit into `bytesMax`.
 */
export class RecordLog {
  readonly #bytesMax: number;
  readonly #batches: OpenBatch[] = [];
  #spare: ArrayBuffer | null = null;
  #added = 0;
  #count = 0;
  #bytes = 0;
  #dropped = 0;
  /** The current group did not fit: its later changes are dropped too. */
  #isGroupLost = false;
  #group = 1;
  #hasChanges = false;
  #lostGroup = -1;

  constructor(bytesMax: number) {
    this.#bytesMax = bytesMax;
  }

  /** Pending changes. */
  get count(): number {
    return this.#count;
  }

  get dropped(): number {
    return this.#dropped;
  }

  /** Number of changes ever added. */
  get added(): number {
    return this.#added;
  }

  /** Number of the current group, from 1. */
  get group(): number {
    return this.#group;
  }

  /** The last group with changes. 0: none. */
  get lastGroup(): number {
    return this.#hasChanges ? this.#group : this.#group - 1;
  }

  /** The last group that was dropped. -1: none. */
  get lostGroup(): number {
    return this.#lostGroup;
  }

  /** Adds one record, which `write` writes, to the current group. `inFlight`: bytes in flight. */
  add(isRemoval: boolean, inFlight: number, write: (writer: RecordWriter) => void): void {
    this.#hasChanges = true;
    if (this.#isGroupLost) {
      this.#dropped++;
      return;
    }
    const batch = this.#newest();
    const before = batch.writer.length;
    try {
      write(batch.writer);
    } catch (thrown) {
      batch.writer.truncate(before);
      throw thrown;
    }
    this.#bytes += batch.writer.length - before;
    this.#added++;
    this.#count++;
    batch.count++;
    const max = this.#bytesMax + (isRemoval ? REMOVALS_BYTES : 0);
    if (this.#bytes + inFlight > max) this.#loseGroup(batch);
  }

  /** Ends the current group. */
  endGroup(): void {
    if (this.#hasChanges) this.#group++;
    this.#hasChanges = false;
    this.#isGroupLost = false;
    const batch = this.#batches.at(-1);
    if (batch !== undefined) batch.ended = { length: batch.writer.length, count: batch.count };
  }

  /** Takes the oldest complete groups. Null if there is none. */
  take(): RecordBatch | null {
    const batch = this.#batches[0];
    if (batch === undefined || batch.ended.count === 0) return null;
    this.#batches.shift();
    const { writer, count, ended } = batch;
    const { buffer } = writer;
    if (count > ended.count) {
      const rest = new RecordWriter(this.#takeSpare());
      rest.copy(new Uint8Array(buffer, ended.length, writer.length - ended.length));
      const none = { length: 0, count: 0 };
      this.#batches.unshift({ writer: rest, count: count - ended.count, ended: none });
    }
    this.#count -= ended.count;
    this.#bytes -= ended.length;
    const through = this.#added - this.#count;
    return { buffer, length: ended.length, count: ended.count, through };
  }

  /** Reuses the buffer of a committed batch. */
  recycle(buffer: ArrayBuffer): void {
    if (buffer.byteLength <= SPARE_BYTES_MAX) this.#spare = buffer;
  }

  #newest(): OpenBatch {
    const newest = this.#batches.at(-1);
    const isFull = newest !== undefined && newest.ended.length >= BATCH_BYTES;
    // A group must be in one batch, so a new batch begins only after a complete group.
    if (newest !== undefined && !(isFull && newest.count === newest.ended.count)) return newest;
    const none = { length: 0, count: 0 };
    const batch = { writer: new RecordWriter(this.#takeSpare()), count: 0, ended: none };
    this.#batches.push(batch);
    return batch;
  }

  #loseGroup(batch: OpenBatch): void {
    assert(batch === this.#batches.at(-1), "the current group is in the newest batch");
    const { length, count } = batch.ended;
    const lost = batch.count - count;
    this.#bytes -= batch.writer.length - length;
    this.#count -= lost;
    this.#added -= lost;
    this.#dropped += lost;
    batch.writer.truncate(length);
    batch.count = count;
    this.#isGroupLost = true;
    this.#lostGroup = this.#group;
  }

  #takeSpare(): ArrayBuffer | undefined {
    const spare = this.#spare ?? undefined;
    this.#spare = null;
    return spare;
  }
}
