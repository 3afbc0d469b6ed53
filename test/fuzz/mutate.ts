import { type Random, randomBelow } from "../../src/core/index.ts";

const INPUT_BYTES_MAX = 64 * 1024;
const INTERESTING = [
  0, 1, 7, 8, 15, 16, 17, 24, 63, 64, 65, 127, 128, 255, 256, 4095, 4096,
] as const;
const INTERESTING_U32 = [0x7fff_ffff, 0x8000_0000, 0xffff_fff8, 0xffff_ffff, 0x0010_0000] as const;
const WORDS = ["-1", "1e999", "18446744073709551616", "null", '"', "{", "[", "\\u0000", "=", "\n"];

type Mutation = (bytes: Uint8Array, random: Random) => Uint8Array;

function at(bytes: Uint8Array, random: Random): number {
  return randomBelow(random, Math.max(1, bytes.length));
}

function changed(bytes: Uint8Array, change: (copy: Uint8Array) => void): Uint8Array {
  const copy = bytes.slice();
  if (copy.length > 0) change(copy);
  return copy;
}

function joined(...parts: Uint8Array[]): Uint8Array {
  return new Uint8Array(Buffer.concat(parts)).subarray(0, INPUT_BYTES_MAX);
}

const MUTATIONS: readonly Mutation[] = [
  (bytes, random) =>
    changed(bytes, (copy) => {
      const place = at(copy, random);
      copy[place] = copy[place]! ^ (1 << randomBelow(random, 8));
    }),
  (bytes, random) =>
    changed(bytes, (copy) => {
      copy[at(copy, random)] = INTERESTING[randomBelow(random, INTERESTING.length)]!;
    }),
  (bytes, random) =>
    changed(bytes, (copy) => {
      if (copy.length < 4) return;
      const table = random.u32() % 2 === 0 ? INTERESTING : INTERESTING_U32;
      const value = table[randomBelow(random, table.length)]!;
      // Fields lie at multiples of four more often than not.
      const place = (randomBelow(random, copy.length - 3) >> 2) << 2;
      new DataView(copy.buffer, copy.byteOffset).setUint32(place, value, true);
    }),
  (bytes, random) => bytes.slice(0, at(bytes, random)),
  (bytes, random) => bytes.slice(at(bytes, random)),
  (bytes, random) => {
    const from = at(bytes, random);
    const piece = bytes.slice(from, from + 1 + randomBelow(random, 64));
    return joined(bytes.subarray(0, from), piece, bytes.subarray(from));
  },
  (bytes, random) => {
    const from = at(bytes, random);
    return joined(bytes.subarray(0, from), bytes.subarray(from + 1 + randomBelow(random, 16)));
  },
  (bytes, random) => {
    const from = at(bytes, random);
    const word = Buffer.from(WORDS[randomBelow(random, WORDS.length)]!);
    return joined(bytes.subarray(0, from), word, bytes.subarray(from));
  },
];

/** A good input, or several behind each other, with a few things wrong. */
export function mutate(corpus: readonly Uint8Array[], random: Random): Uint8Array {
  const pick = () => corpus[randomBelow(random, corpus.length)]!;
  let input: Uint8Array = pick();
  for (let i = randomBelow(random, 3); i > 0; i--) input = joined(input, pick());
  for (let i = randomBelow(random, 6); i > 0; i--) {
    input = MUTATIONS[randomBelow(random, MUTATIONS.length)]!(input, random);
  }
  return input;
}

/** Halves and bytes are taken away as long as the input still fails. */
export function minimise(input: Uint8Array, fails: (input: Uint8Array) => boolean): Uint8Array {
  let smallest = input;
  for (let piece = Math.ceil(input.length / 2); piece >= 1; piece = Math.floor(piece / 2)) {
    for (let from = 0; from < smallest.length; ) {
      const shorter = new Uint8Array([
        ...smallest.subarray(0, from),
        ...smallest.subarray(from + piece),
      ]);
      if (fails(shorter)) smallest = shorter;
      else from += piece;
    }
  }
  return smallest;
}
