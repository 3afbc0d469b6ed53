/** Most changes in one batch: one transaction, one message. */
export const BATCH_ROWS = 1000;

export const CHANGE = { put: 0, remove: 1, touch: 2, alias: 3 } as const;

const BYTES_PER_ROW = 8 + 4 * 3 + 2 + 2 + 32 * 3 + 16;
export const BATCH_BYTES = BATCH_ROWS * BYTES_PER_ROW;

/**
 * Changes as columns in one buffer, which goes to the worker and comes back without a copy. A
 * change fills the columns its kind needs; what lies in the others is of an earlier use.
 */
export class ChangeBatch {
  readonly buffer: ArrayBuffer;
  /** XXH3-64 of the payload. */
  readonly checksums: BigUint64Array;
  readonly layers: Uint32Array;
  readonly bytes: Uint32Array;
  readonly lastSeen: Uint32Array;
  readonly uses: Uint16Array;
  readonly kinds: Uint8Array;
  /** Of a put its variant, of an alias its length. */
  readonly smalls: Uint8Array;
  readonly digests: Uint8Array;
  readonly namespaceKeys: Uint8Array;
  /** Of a put its parent (zeros: none), of an alias its bytes. */
  readonly links: Uint8Array;
  /** Of a put the MAC key of its namespace, 16 bytes; zeros: none. */
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

/** The 32 bytes of row `row` in a column of digests or keys, not copied. */
export function key32(column: Uint8Array, row: number): Uint8Array {
  return column.subarray(row * 32, row * 32 + 32);
}
