import { assert } from "../../core/index.ts";
import type { AliasRow, BlockRow } from "./block-index.ts";

/**
 * Maximum number of changes per batch. A batch is one message to the worker and one transaction.
 */
export const BATCH_ROWS = 1000;

export const CHANGE = { put: 0, remove: 1, touch: 2, alias: 3 } as const;

const BYTES_PER_ROW = 8 + 4 * 3 + 2 + 2 + 32 * 3 + 16;
const BATCH_BYTES = BATCH_ROWS * BYTES_PER_ROW;

/**
 * Changes as columns in one buffer, which is transferred to the worker and back without a copy.
 * Each change sets only the columns that its kind uses; the others contain values of an earlier use
 * of the buffer.
 */
export class ChangeBatch {
  readonly buffer: ArrayBuffer;
  /** XXH3-64 of each block's payload. */
  readonly checksums: BigUint64Array;
  readonly layers: Uint32Array;
  readonly bytes: Uint32Array;
  readonly lastSeen: Uint32Array;
  readonly uses: Uint16Array;
  readonly kinds: Uint8Array;
  /** For a put: variant in the file name. For an alias: its length in bytes. */
  readonly smalls: Uint8Array;
  readonly digests: Uint8Array;
  readonly namespaceKeys: Uint8Array;
  /** For a put: digest of the parent (all zero: none). For an alias: its bytes. */
  readonly links: Uint8Array;
  /** For a put: identifier of the namespace's MAC key, 16 bytes; all zero: none. */
  readonly macKeyIds: Uint8Array;

  constructor(buffer: ArrayBuffer = new ArrayBuffer(BATCH_BYTES)) {
    this.buffer = buffer;
    let at = 0;
    const take = (bytesPerRow: number): [ArrayBuffer, number, number] => {
      const start = at;
      at += BATCH_ROWS * bytesPerRow;
      return [buffer, start, BATCH_ROWS * bytesPerRow];
    };
    const take32 = (): [ArrayBuffer, number, number] => [buffer, take(4)[1], BATCH_ROWS];
    this.checksums = new BigUint64Array(buffer, take(8)[1], BATCH_ROWS);
    this.layers = new Uint32Array(...take32());
    this.bytes = new Uint32Array(...take32());
    this.lastSeen = new Uint32Array(...take32());
    this.uses = new Uint16Array(buffer, take(2)[1], BATCH_ROWS);
    this.kinds = new Uint8Array(...take(1));
    this.smalls = new Uint8Array(...take(1));
    this.digests = new Uint8Array(...take(32));
    this.namespaceKeys = new Uint8Array(...take(32));
    this.links = new Uint8Array(...take(32));
    this.macKeyIds = new Uint8Array(...take(16));
  }
}

/** Returns a view of the 32 bytes of `row` in a column of digests or keys. */
export function key32(column: Uint8Array, row: number): Uint8Array {
  return column.subarray(row * 32, row * 32 + 32);
}

/** Changes that are sent to the worker together. */
export interface ChangeChunk {
  readonly number: number;
  batch: ChangeBatch;
  count: number;
  /** Per row: the string key by which a later change of the same block finds this one. */
  readonly keys: string[];
  /** Sequence numbers of the block writes whose rows, or removals, are in the chunk. */
  readonly sequences: number[];
}

/** Maximum number of buffers kept for reuse. */
const SPARES = 4;
const NO_KEY = new Uint8Array(32);
const NO_MAC_KEY = new Uint8Array(16);

/**
 * Changes not committed yet, as columns in the layout in which they are sent to the worker. A
 * change replaces a pending change of the same block; the order of changes of different blocks does
 * not matter. At most `rowsMax` changes are pending.
 */
export class ChangeLog {
  readonly #rowsMax: number;
  readonly #chunks: ChangeChunk[] = [];
  /** Position of each pending change: chunk number × BATCH_ROWS + row. */
  readonly #places = new Map<string, number>();
  readonly #spares: ArrayBuffer[] = [];
  readonly #keyBytes = Buffer.alloc(36 + 32);
  #chunksMade = 0;
  #rows = 0;

  constructor(rowsMax: number) {
    this.#rowsMax = rowsMax;
  }

  /** Number of pending changes. */
  get count(): number {
    return this.#rows;
  }

  get hasFull(): boolean {
    return this.#chunks[0]?.count === BATCH_ROWS;
  }

  /** Number of the newest chunk that contains changes. More changes may be added to it. */
  get newest(): number {
    return this.#chunksMade;
  }

  /**
   * Takes the oldest chunk if it is full or its number is at most `upTo`; otherwise returns null.
   */
  take(upTo: number): ChangeChunk | null {
    const chunk = this.#chunks[0];
    if (chunk === undefined) return null;
    if (chunk.count < BATCH_ROWS && chunk.number > upTo) return null;
    this.#chunks.shift();
    this.#rows -= chunk.count;
    for (const key of chunk.keys) this.#places.delete(key);
    return chunk;
  }

  /** Keeps the buffer of a committed chunk for reuse. */
  recycle(buffer: ArrayBuffer): void {
    if (this.#spares.length < SPARES) this.#spares.push(buffer);
  }

  /** Adds or replaces a block's row. Like the methods below, returns false if the log is full. */
  put(row: BlockRow): boolean {
    const at = this.#place(this.#blockKey(row.digest, row.layer), this.#rowsMax);
    if (at === null) return false;
    const { chunk, row: to } = at;
    const { batch } = chunk;
    this.#name(chunk, to, CHANGE.put, row.digest, row.layer);
    batch.namespaceKeys.set(row.namespaceKey, to * 32);
    batch.links.set(row.parent ?? NO_KEY, to * 32);
    batch.macKeyIds.set(row.macKeyId ?? NO_MAC_KEY, to * 16);
    batch.bytes[to] = row.bytes;
    batch.checksums[to] = row.checksum;
    batch.smalls[to] = row.variant;
    batch.lastSeen[to] = row.lastSeen;
    batch.uses[to] = row.uses;
    if (row.sequence > 0) chunk.sequences.push(row.sequence);
    return true;
  }

  remove(digest: Uint8Array, layer: number): boolean {
    const at = this.#place(this.#blockKey(digest, layer), this.#rowsMax);
    if (at === null) return false;
    this.#name(at.chunk, at.row, CHANGE.remove, digest, layer);
    return true;
  }

  /**
   * Records a use of a block. Returns false if the log is half full, to leave room for more
   * important changes.
   */
  touch(digest: Uint8Array, layer: number, lastSeen: number, uses: number): boolean {
    const at = this.#place(this.#blockKey(digest, layer), this.#rowsMax / 2);
    if (at === null) return false;
    const { chunk, row, isNew } = at;
    if (isNew) this.#name(chunk, row, CHANGE.touch, digest, layer);
    chunk.batch.lastSeen[row] = lastSeen;
    chunk.batch.uses[row] = uses;
    return true;
  }

  putAlias({ namespaceKey, layer, digest, alias }: AliasRow): boolean {
    assert(alias.length === 8 || alias.length === 32, "an alias of 8 or 32 bytes");
    this.#blockKey(digest, layer);
    this.#keyBytes.set(alias, 36);
    const key = this.#keyBytes.toString("latin1", 0, 36 + alias.length);
    const at = this.#place(key, this.#rowsMax);
    if (at === null) return false;
    this.#name(at.chunk, at.row, CHANGE.alias, digest, layer);
    at.chunk.batch.namespaceKeys.set(namespaceKey, at.row * 32);
    at.chunk.batch.links.set(alias, at.row * 32);
    at.chunk.batch.smalls[at.row] = alias.length;
    return true;
  }

  #blockKey(digest: Uint8Array, layer: number): string {
    assert(digest.length === 32, "a digest of 32 bytes");
    this.#keyBytes.set(digest);
    this.#keyBytes.writeUInt32LE(layer, 32);
    return this.#keyBytes.toString("latin1", 0, 36);
  }

  #name(chunk: ChangeChunk, row: number, kind: number, digest: Uint8Array, layer: number): void {
    chunk.batch.kinds[row] = kind;
    chunk.batch.layers[row] = layer;
    chunk.batch.digests.set(digest, row * 32);
  }

  /**
   * Returns the position of the pending change of `key`, or a new position at the end. Null: the
   * log is full.
   */
  #place(key: string, rowsMax: number): { chunk: ChangeChunk; row: number; isNew: boolean } | null {
    const known = this.#places.get(key);
    if (known !== undefined) {
      const number = Math.floor(known / BATCH_ROWS);
      const chunk = this.#chunks[number - this.#chunks[0].number];
      return { chunk, row: known % BATCH_ROWS, isNew: false };
    }
    if (this.#rows >= rowsMax) return null;
    let chunk = this.#chunks.at(-1);
    if (chunk === undefined || chunk.count === BATCH_ROWS) chunk = this.#newChunk();
    const row = chunk.count++;
    this.#rows++;
    chunk.keys.push(key);
    this.#places.set(key, chunk.number * BATCH_ROWS + row);
    return { chunk, row, isNew: true };
  }

  #newChunk(): ChangeChunk {
    const batch = new ChangeBatch(this.#spares.pop() ?? new ArrayBuffer(BATCH_BYTES));
    const chunk = { number: ++this.#chunksMade, batch, count: 0, keys: [], sequences: [] };
    this.#chunks.push(chunk);
    return chunk;
  }
}
