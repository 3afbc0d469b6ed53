import { assert } from "../../../core/index.ts";

/**
 * Seals of index rows. A seal is XXH3-64 of all columns of a row and the key of its namespace, so
 * that a flipped bit in the row or in the table of namespaces is detected. XXH3 detects accidents,
 * not attacks: an attacker who can write the index can write the blocks too.
 */

export interface SealedBlock {
  readonly digest: Uint8Array;
  readonly layer: number;
  readonly parent: Uint8Array | null;
  readonly bytes: number;
  readonly checksum: Uint8Array;
  readonly variant: number;
  readonly lastSeen: number;
  readonly uses: number;
}

interface SealedAlias {
  readonly digest: Uint8Array;
  readonly layer: number;
  readonly alias: Uint8Array;
}

/** First byte of the sealed data, so that a row of one kind cannot pass for one of another kind. */
const TAG = { block: 1, alias: 2, run: 3 } as const;

const BLOCK_BYTES = 1 + 32 + 4 + 32 + 1 + 32 + 4 + 8 + 1 + 4 + 2;
const scratch = new Uint8Array(BLOCK_BYTES);
const view = new DataView(scratch.buffer);
const NO_PARENT = new Uint8Array(32);

const isU32 = (value: number) => value === value >>> 0;

/**
 * Returns the seal of a block's row. Null if a column has an invalid length or value, because the
 * seal would not cover all of it.
 */
export function sealOfBlock(row: SealedBlock, namespaceKey: Uint8Array): bigint | null {
  const { digest, parent, checksum } = row;
  if (digest.length !== 32 || checksum.length !== 8) return null;
  if (parent !== null && parent.length !== 32) return null;
  if (!isU32(row.layer) || !isU32(row.bytes) || !isU32(row.lastSeen)) return null;
  if (row.variant !== (row.variant & 0xff) || row.uses !== (row.uses & 0xffff)) return null;
  scratch[0] = TAG.block;
  scratch.set(digest, 1);
  view.setUint32(33, row.layer, true);
  scratch.set(namespaceKey, 37);
  scratch[69] = parent === null ? 0 : 1;
  scratch.set(parent ?? NO_PARENT, 70);
  view.setUint32(102, row.bytes, true);
  scratch.set(checksum, 106);
  scratch[114] = row.variant;
  view.setUint32(115, row.lastSeen, true);
  view.setUint16(119, row.uses, true);
  return Bun.hash.xxHash3(scratch);
}

/** Returns the seal of an alias's row; null if a column has an invalid length or value. */
export function sealOfAlias(row: SealedAlias, namespaceKey: Uint8Array): bigint | null {
  const { digest, alias } = row;
  if (digest.length !== 32 || (alias.length !== 8 && alias.length !== 32)) return null;
  if (!isU32(row.layer)) return null;
  scratch[0] = TAG.alias;
  scratch.set(digest, 1);
  view.setUint32(33, row.layer, true);
  scratch.set(namespaceKey, 37);
  scratch[69] = alias.length;
  scratch.set(alias, 70);
  return Bun.hash.xxHash3(scratch.subarray(0, 70 + alias.length));
}

const ENTRY_BYTES = 32 + 4 + 8;
const entry = new Uint8Array(ENTRY_BYTES);
const entryView = new DataView(entry.buffer);

/**
 * Returns the hash of one entry of the table's index, which maps the key (digest, layer) to a row
 * id.
 */
export function hashOfEntry(digest: Uint8Array, layer: number, id: number): bigint {
  entry.set(digest);
  entryView.setUint32(32, layer, true);
  entryView.setFloat64(36, id, true);
  return Bun.hash.xxHash3(entry);
}

/**
 * Returns the seal of the record of a run: the hash of the JSON of its columns in order, BLOBs in
 * hex.
 */
export function sealOfColumns(columns: object): Buffer {
  const plain = Object.values(columns).map((value) =>
    Buffer.isBuffer(value) ? value.toHex() : value,
  );
  return Buffer.from(u64Bytes(Bun.hash.xxHash3(`${TAG.run}${JSON.stringify(plain)}`)));
}

/** Returns the number as eight little-endian bytes, the form of 64-bit numbers in the tables. */
export function u64Bytes(value: bigint): Uint8Array {
  const bytes = new Uint8Array(8);
  new DataView(bytes.buffer).setBigUint64(0, value, true);
  return bytes;
}

const word = new BigUint64Array(1);
const wordBytes = new Uint8Array(word.buffer);

/**
 * Returns whether the stored seal has this value. Compares bytes, because creating a view of a BLOB
 * takes a microsecond.
 */
export function isSeal(stored: Uint8Array, seal: bigint): boolean {
  if (stored.length !== 8) return false;
  word[0] = seal;
  for (let at = 0; at < 8; at++) if (stored[at] !== wordBytes[at]) return false;
  return true;
}

/** Reads a little-endian 64-bit number. Returns null if the length is not eight bytes. */
export function u64Of(bytes: Uint8Array): bigint | null {
  if (bytes.length !== 8) return null;
  return new DataView(bytes.buffer, bytes.byteOffset, 8).getBigUint64(0, true);
}

/** Returns the stored seal of a row that was verified before. */
export function storedSeal(stored: Uint8Array): bigint {
  const seal = u64Of(stored);
  assert(seal !== null, "a seal of eight bytes");
  return seal;
}

/**
 * Checksum of a table: the number of rows and the sum of their seals modulo 2^64. It is committed
 * with every change, so that a lost, duplicated or outdated row is detected when the table is read.
 */
export class Tally {
  count: number;
  sum: bigint;

  constructor(count = 0, sum = 0n) {
    this.count = count;
    this.sum = sum;
  }

  add(seal: bigint): void {
    this.count++;
    this.sum = BigInt.asUintN(64, this.sum + seal);
  }

  remove(seal: bigint): void {
    this.count--;
    this.sum = BigInt.asUintN(64, this.sum - seal);
  }

  copy(): Tally {
    return new Tally(this.count, this.sum);
  }

  equals(other: Tally): boolean {
    return this.count === other.count && this.sum === other.sum;
  }
}
