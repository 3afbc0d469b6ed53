import { assert } from "../../src/core/index.ts";
import { DYNAMO_SEED, sequenceHash } from "../../src/events/index.ts";

/** Dynamo's hashes of prompts by an independent implementation of XXH3. */

const MASK_64 = (1n << 64n) - 1n;

/** Hash of one block's tokens. `media`: hashes of the items that extend into it, in any order. */
export function localHash(
  tokens: Uint32Array,
  seed: bigint = DYNAMO_SEED,
  media: readonly bigint[] = [],
): bigint {
  const bytes = new Uint8Array(tokens.length * 4 + media.length * 8);
  const view = new DataView(bytes.buffer);
  for (const [i, token] of tokens.entries()) view.setUint32(i * 4, token, true);
  const ascending = [...media].sort((a, b) => (a < b ? -1 : a > b ? 1 : 0));
  for (const [i, hash] of ascending.entries()) {
    view.setBigUint64(tokens.length * 4 + i * 8, hash, true);
  }
  return xxh3(bytes, seed);
}

/**
 * Hash of each complete block. With EAGLE the window of a block is one token longer, so that the
 * last complete block needs the next token.
 */
export function localHashes(
  tokens: Uint32Array,
  blockTokens: number,
  options: { readonly seed?: bigint; readonly isEagle?: boolean } = {},
): BigUint64Array {
  assert(
    Number.isInteger(blockTokens) && blockTokens > 0,
    "blockTokens must be a positive integer",
  );
  const window = blockTokens + (options.isEagle ? 1 : 0);
  const hashes: bigint[] = [];
  for (let at = 0; at + window <= tokens.length; at += blockTokens) {
    hashes.push(localHash(tokens.subarray(at, at + window), options.seed));
  }
  return BigUint64Array.from(hashes);
}

export function sequenceHashes(
  locals: BigUint64Array,
  parent: bigint | null = null,
): BigUint64Array {
  const hashes = new BigUint64Array(locals.length);
  let last = parent;
  for (let i = 0; i < locals.length; i++) {
    last = sequenceHash(last, locals[i]!);
    hashes[i] = last;
  }
  return hashes;
}

function rotate(value: bigint, bits: bigint): bigint {
  return ((value << bits) | (value >> (64n - bits))) & MASK_64;
}

/**
 * XXH3 with 64 bits and any seed, according to Yann Collet's specification of xxHash 0.8. Bun's
 * implementation uses only the low half of the seed, so it serves if the high half is zero.
 */
export function xxh3(data: Uint8Array, seed: bigint): bigint {
  return seed >> 32n === 0n ? Bun.hash.xxHash3(data, seed) : xxh3Literal(data, seed);
}

const LOW = 0xffff_ffffn;
const [P32_1, P32_2, P32_3] = [0x9e3779b1n, 0x85ebca77n, 0xc2b2ae3dn];
const [P64_1, P64_2, P64_3] = [0x9e3779b185ebca87n, 0xc2b2ae3d27d4eb4fn, 0x165667b19e3779f9n];
const [P64_4, P64_5] = [0x85ebca77c2b2ae63n, 0x27d4eb2f165667c5n];
const [MIX_1, MIX_2] = [0x165667919e3779f9n, 0x9fb21c651e98df25n];

const SECRET_BYTES = 192;
const STRIPE_BYTES = 64;
const STRIPES_A_BLOCK = (SECRET_BYTES - STRIPE_BYTES) / 8;
const SECRET = viewOf(
  Uint8Array.fromHex(
    [
      "b8fe6c3923a44bbe7c01812cf721ad1cded46de9839097db7240a4a4b7b3671f",
      "cb79e64eccc0e578825ad07dccff7221b8084674f743248ee03590e6813a264c",
      "3c2852bb91c300cb88d0658b1b532ea371644897a20df94e3819ef46a9deacd8",
      "a8fa763fe39c343ff9dcbbc7c70b4f1d8a51e04bcdb45931c89f7ec9d9787364",
      "eac5ac8334d3ebc3c581a0fffa1363eb170ddd51b7f0da49d316552629d4689e",
      "2b16be587d47a1fc8ff8b8d17ad031ce45cb3a8f95160428afd7fbcabb4b407e",
    ].join(""),
  ),
);

function viewOf(bytes: Uint8Array): DataView {
  return new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
}

function u64(view: DataView, at: number): bigint {
  return view.getBigUint64(at, true);
}

function u32(view: DataView, at: number): bigint {
  return BigInt(view.getUint32(at, true));
}

function swapBytes(value: bigint): bigint {
  const view = new DataView(new ArrayBuffer(8));
  view.setBigUint64(0, value, true);
  return view.getBigUint64(0, false);
}

/** XOR of the low and the high half of the 128-bit product. */
function fold(a: bigint, b: bigint): bigint {
  const product = a * b;
  return (product & MASK_64) ^ (product >> 64n);
}

function avalanche64(value: bigint): bigint {
  const first = ((value ^ (value >> 33n)) * P64_2) & MASK_64;
  const second = ((first ^ (first >> 29n)) * P64_3) & MASK_64;
  return second ^ (second >> 32n);
}

function avalanche3(value: bigint): bigint {
  const mixed = ((value ^ (value >> 37n)) * MIX_1) & MASK_64;
  return mixed ^ (mixed >> 32n);
}

export function xxh3Literal(bytes: Uint8Array, seed: bigint): bigint {
  const data = viewOf(bytes);
  const { length } = bytes;
  if (length === 0) return avalanche64(seed ^ u64(SECRET, 56) ^ u64(SECRET, 64));
  if (length <= 3) return upTo3(bytes, seed);
  if (length <= 8) return upTo8(data, seed);
  if (length <= 16) return upTo16(data, seed);
  if (length <= 128) return upTo128(data, seed);
  return length <= 240 ? upTo240(data, seed) : long(data, seed);
}

function upTo3(bytes: Uint8Array, seed: bigint): bigint {
  const { length } = bytes;
  const [first, middle] = [BigInt(bytes[0]!), BigInt(bytes[length >> 1]!)];
  const last = BigInt(bytes[length - 1]!);
  const combined = (first << 16n) | (middle << 24n) | last | (BigInt(length) << 8n);
  const flip = ((u32(SECRET, 0) ^ u32(SECRET, 4)) + seed) & MASK_64;
  return avalanche64(combined ^ flip);
}

function upTo8(data: DataView, seed: bigint): bigint {
  const length = BigInt(data.byteLength);
  const mixedSeed = seed ^ (swapBytes(seed & LOW) & (LOW << 32n));
  const flip = ((u64(SECRET, 8) ^ u64(SECRET, 16)) - mixedSeed) & MASK_64;
  const value = (u32(data, data.byteLength - 4) + (u32(data, 0) << 32n)) ^ flip;
  let hash = value ^ rotate(value, 49n) ^ rotate(value, 24n);
  hash = (hash * MIX_2) & MASK_64;
  hash ^= (hash >> 35n) + length;
  hash = (hash * MIX_2) & MASK_64;
  return hash ^ (hash >> 28n);
}

function upTo16(data: DataView, seed: bigint): bigint {
  const flipLow = ((u64(SECRET, 24) ^ u64(SECRET, 32)) + seed) & MASK_64;
  const flipHigh = ((u64(SECRET, 40) ^ u64(SECRET, 48)) - seed) & MASK_64;
  const low = u64(data, 0) ^ flipLow;
  const high = u64(data, data.byteLength - 8) ^ flipHigh;
  const sum = BigInt(data.byteLength) + swapBytes(low) + high + fold(low, high);
  return avalanche3(sum & MASK_64);
}

/** Mixes 16 bytes of data with 16 bytes of the secret. */
function mix16(data: DataView, at: number, secretAt: number, seed: bigint): bigint {
  const low = u64(data, at) ^ ((u64(SECRET, secretAt) + seed) & MASK_64);
  const high = u64(data, at + 8) ^ ((u64(SECRET, secretAt + 8) - seed) & MASK_64);
  return fold(low, high);
}

function upTo128(data: DataView, seed: bigint): bigint {
  const { byteLength: length } = data;
  let sum = BigInt(length) * P64_1;
  for (let i = (length - 1) >> 5; i >= 0; i--) {
    sum += mix16(data, 16 * i, 32 * i, seed);
    sum += mix16(data, length - 16 * (i + 1), 32 * i + 16, seed);
  }
  return avalanche3(sum & MASK_64);
}

function upTo240(data: DataView, seed: bigint): bigint {
  const { byteLength: length } = data;
  let sum = BigInt(length) * P64_1;
  for (let i = 0; i < 8; i++) sum += mix16(data, 16 * i, 16 * i, seed);
  sum = avalanche3(sum & MASK_64);
  for (let i = 8; i < length >> 4; i++) sum += mix16(data, 16 * i, 16 * (i - 8) + 3, seed);
  sum += mix16(data, length - 16, 136 - 17, seed);
  return avalanche3(sum & MASK_64);
}

function seededSecret(seed: bigint): DataView {
  const secret = new DataView(new ArrayBuffer(SECRET_BYTES));
  for (let at = 0; at < SECRET_BYTES; at += 16) {
    secret.setBigUint64(at, u64(SECRET, at) + seed, true);
    secret.setBigUint64(at + 8, BigInt.asUintN(64, u64(SECRET, at + 8) - seed), true);
  }
  return secret;
}

function long(data: DataView, seed: bigint): bigint {
  const secret = seededSecret(seed);
  const sums = [P32_3, P64_1, P64_2, P64_3, P64_4, P32_2, P64_5, P32_1];
  const stripes = Math.floor((data.byteLength - 1) / STRIPE_BYTES);
  for (let i = 0; i < stripes; i++) {
    const place = i % STRIPES_A_BLOCK;
    accumulate(sums, data, i * STRIPE_BYTES, secret, place * 8);
    if (place === STRIPES_A_BLOCK - 1) scramble(sums, secret);
  }
  const last = data.byteLength - STRIPE_BYTES;
  accumulate(sums, data, last, secret, SECRET_BYTES - STRIPE_BYTES - 7);
  let hash = BigInt(data.byteLength) * P64_1;
  for (let i = 0; i < 4; i++) {
    const [low, high] = [u64(secret, 11 + 16 * i), u64(secret, 19 + 16 * i)];
    hash += fold(sums[2 * i]! ^ low, sums[2 * i + 1]! ^ high);
  }
  return avalanche3(hash & MASK_64);
}

function accumulate(
  sums: bigint[],
  data: DataView,
  at: number,
  secret: DataView,
  secretAt: number,
): void {
  for (let i = 0; i < 8; i++) {
    const value = u64(data, at + 8 * i);
    const keyed = value ^ u64(secret, secretAt + 8 * i);
    sums[i ^ 1] = (sums[i ^ 1]! + value) & MASK_64;
    sums[i] = (sums[i]! + (keyed & LOW) * (keyed >> 32n)) & MASK_64;
  }
}

function scramble(sums: bigint[], secret: DataView): void {
  for (let i = 0; i < 8; i++) {
    const sum = sums[i]!;
    const key = u64(secret, SECRET_BYTES - STRIPE_BYTES + 8 * i);
    sums[i] = ((sum ^ (sum >> 47n) ^ key) * P32_1) & MASK_64;
  }
}
