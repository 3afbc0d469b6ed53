import { assert } from "../../../core/index.ts";
import { RecordWriter } from "./records.ts";

/** Changes that travel together. */
export interface RecordBatch {
  buffer: ArrayBuffer;
  readonly length: number;
  readonly count: number;
  /** Of all changes ever taken in, how many are in this batch or before it. */
  readonly through: number;
}

/** A batch that is longer takes no further group. */
const BATCH_BYTES = 2 ** 20;
/** What is longer is not kept for reuse. */
const SPARE_BYTES_MAX = 4 * BATCH_BYTES;
/** What removals may take beyond the bound, so that what was kept can still be let go. */
const REMOVALS_BYTES = 4 * 2 ** 20;

interface OpenBatch {
  readonly writer: RecordWriter;
  count: number;
  /** As far as its groups have ended. */
  ended: { readonly length: number; readonly count: number };
}

/**
 * Changes waiting to be committed, in order and in groups: a group is taken whole or not at all,
 * and dropped whole where it finds no room in `bytesMax`.
 */
export class RecordLog {
  readonly #bytesMax: number;
  readonly #batches: OpenBatch[] = [];
  #spare: ArrayBuffer | null = null;
  #added = 0;
  #count = 0;
  #bytes = 0;
  #dropped = 0;
  /** The group at hand has found no room: what else belongs to it is dropped, too. */
  #isGroupLost = false;
  #group = 1;
  #hasChanges = false;
  #lostGroup = -1;

  constructor(bytesMax: number) {
    this.#bytesMax = bytesMax;
  }

  /** Changes that wait. */
  get count(): number {
    return this.#count;
  }

  get dropped(): number {
    return this.#dropped;
  }

  /** Changes ever taken in. */
  get added(): number {
    return this.#added;
  }

  /** Of the groups, which rise from 1, the one at hand. */
  get group(): number {
    return this.#group;
  }

  /** The last group in which there were changes; 0: none. */
  get lastGroup(): number {
    return this.#hasChanges ? this.#group : this.#group - 1;
  }

  /** The last group that was dropped; -1: none. */
  get lostGroup(): number {
    return this.#lostGroup;
  }

  /** Adds to the group at hand what `write` writes, one record. `inHand`: bytes on their way. */
  add(isRemoval: boolean, inHand: number, write: (writer: RecordWriter) => void): void {
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
    if (this.#bytes + inHand > max) this.#loseGroup(batch);
  }

  /** What comes next begins a new group. */
  endGroup(): void {
    if (this.#hasChanges) this.#group++;
    this.#hasChanges = false;
    this.#isGroupLost = false;
    const batch = this.#batches.at(-1);
    if (batch !== undefined) batch.ended = { length: batch.writer.length, count: batch.count };
  }

  /** The oldest groups that have ended; null where none has. */
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

  /** For the buffer of a batch that has been committed. */
  recycle(buffer: ArrayBuffer): void {
    if (buffer.byteLength <= SPARE_BYTES_MAX) this.#spare = buffer;
  }

  #newest(): OpenBatch {
    const newest = this.#batches.at(-1);
    const isFull = newest !== undefined && newest.ended.length >= BATCH_BYTES;
    // A group lies in one batch: a new one begins only where the last group has ended.
    if (newest !== undefined && !(isFull && newest.count === newest.ended.count)) return newest;
    const none = { length: 0, count: 0 };
    const batch = { writer: new RecordWriter(this.#takeSpare()), count: 0, ended: none };
    this.#batches.push(batch);
    return batch;
  }

  #loseGroup(batch: OpenBatch): void {
    assert(batch === this.#batches.at(-1), "the group at hand is in the newest batch");
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
