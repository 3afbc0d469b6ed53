const MASK = (1n << 64n) - 1n;

function rotate(value: bigint, bits: bigint): bigint {
  return ((value << bits) | (value >> (64n - bits))) & MASK;
}

/** SipHash-1-3 (Aumasson, Bernstein) under the key of zeros: 64 bits. */
export function sipHash13(data: Uint8Array): bigint {
  let [v0, v1] = [0x736f6d6570736575n, 0x646f72616e646f6dn];
  let [v2, v3] = [0x6c7967656e657261n, 0x7465646279746573n];
  const round = () => {
    v0 = (v0 + v1) & MASK;
    v1 = rotate(v1, 13n) ^ v0;
    v0 = rotate(v0, 32n);
    v2 = (v2 + v3) & MASK;
    v3 = rotate(v3, 16n) ^ v2;
    v0 = (v0 + v3) & MASK;
    v3 = rotate(v3, 21n) ^ v0;
    v2 = (v2 + v1) & MASK;
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
 * The number by which Dynamo knows a worker with a name: SipHash-1-3 of the name and a byte FF, cut
 * to 53 bits, so that a JavaScript number holds it.
 */
export function workerNumber(name: string): bigint {
  const bytes = new TextEncoder().encode(name);
  const ended = new Uint8Array(bytes.length + 1);
  ended.set(bytes);
  ended[bytes.length] = 0xff;
  return sipHash13(ended) & NUMBER_MASK;
}
