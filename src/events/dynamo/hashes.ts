import { type Native, sequenceHashes } from "../../native/index.ts";

const MASK_64 = (1n << 64n) - 1n;
/** Seed with which Dynamo computes block and sequence hashes. */
export const DYNAMO_SEED = 1_337n;
const LORA_SEED = 0n;
const SALT_SEED = 1n;
const MEDIA_SEED = 0n;

const utf8 = new TextEncoder();

function textHash(text: string | null, seed: bigint): bigint {
  return text === null || text === "" ? 0n : Bun.hash.xxHash3(utf8.encode(text), seed);
}

/**
 * Returns the seed of block hashes for a LoRA adapter and a cache salt. An empty text has the same
 * effect as none.
 */
export function saltSeed(loraName: string | null, cacheSalt: string | null): bigint {
  return (DYNAMO_SEED + textHash(loraName, LORA_SEED) + textHash(cacheSalt, SALT_SEED)) & MASK_64;
}

/**
 * Returns the number that a cache salt adds to the seed. All blocks of a prompt use the number of
 * the first block's salt.
 */
export function saltShare(cacheSalt: string | null): bigint {
  return textHash(cacheSalt, SALT_SEED);
}

/**
 * Returns the hash of a multimodal item from its identifier. An identifier of 64 hex digits is a
 * hash already.
 */
export function mediaHash(identifier: string): bigint {
  if (/^[0-9a-fA-F]{64}$/.test(identifier)) return BigInt(`0x${identifier.slice(0, 16)}`);
  return Bun.hash.xxHash3(utf8.encode(identifier), MEDIA_SEED);
}

/**
 * Returns the hash of one block's tokens together with the media items that overlap it, in any
 * order. Bun's XXH3 uses only the low 32 bits of a seed.
 */
export function localHash(
  native: Native,
  tokens: Uint32Array,
  seed: bigint,
  media: readonly bigint[],
): bigint {
  const words = new Uint32Array(tokens.length + media.length * 2);
  words.set(tokens);
  BigUint64Array.from(media)
    .sort()
    .forEach((hash, i) => {
      words.set([Number(hash & 0xffff_ffffn), Number(hash >> 32n)], tokens.length + i * 2);
    });
  const into = { local: new BigUint64Array(1), sequence: new BigUint64Array(1) };
  sequenceHashes(native, words, { blockTokens: words.length, seed, parent: null }, into);
  return into.local[0];
}

const pair = new Uint8Array(16);
const pairView = new DataView(pair.buffer);

/**
 * Returns the hash of a block together with all blocks before it in the prompt. `parent` is the
 * previous block's hash; null for the first block.
 */
export function sequenceHash(parent: bigint | null, local: bigint): bigint {
  if (parent === null) return local;
  pairView.setBigUint64(0, parent, true);
  pairView.setBigUint64(8, local, true);
  return Bun.hash.xxHash3(pair, DYNAMO_SEED);
}

function rotate(value: bigint, bits: bigint): bigint {
  return ((value << bits) | (value >> (64n - bits))) & MASK_64;
}

/** Returns the 64-bit SipHash-1-3 (Aumasson, Bernstein) of the data, with an all-zero key. */
function sipHash13(data: Uint8Array): bigint {
  let [v0, v1] = [0x736f6d6570736575n, 0x646f72616e646f6dn];
  let [v2, v3] = [0x6c7967656e657261n, 0x7465646279746573n];
  const round = () => {
    v0 = (v0 + v1) & MASK_64;
    v1 = rotate(v1, 13n) ^ v0;
    v0 = rotate(v0, 32n);
    v2 = (v2 + v3) & MASK_64;
    v3 = rotate(v3, 16n) ^ v2;
    v0 = (v0 + v3) & MASK_64;
    v3 = rotate(v3, 21n) ^ v0;
    v2 = (v2 + v1) & MASK_64;
    v1 = rotate(v1, 17n) ^ v2;
    v2 = rotate(v2, 32n);
  };
  const compress = (word: bigint) => {
    v3 ^= word;
    round();
    v0 ^= word;
  };
  const words = new Uint8Array((Math.floor(data.length / 8) + 1) * 8);
  words.set(data);
  words[words.length - 1] = data.length & 0xff;
  const view = new DataView(words.buffer);
  for (let at = 0; at < words.length; at += 8) compress(view.getBigUint64(at, true));
  v2 ^= 0xffn;
  round();
  round();
  round();
  return v0 ^ v1 ^ v2 ^ v3;
}

const NUMBER_MASK = (1n << 53n) - 1n;

/**
 * Returns the number that Dynamo gives to a named worker: SipHash-1-3 of the name and a byte FF,
 * truncated to 53 bits so that a JavaScript number represents it.
 */
export function workerNumber(name: string): bigint {
  const bytes = new TextEncoder().encode(name);
  const ended = new Uint8Array(bytes.length + 1);
  ended.set(bytes);
  ended[bytes.length] = 0xff;
  return sipHash13(ended) & NUMBER_MASK;
}
