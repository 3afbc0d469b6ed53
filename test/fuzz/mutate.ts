import { type Random, randomBelow } from "../../src/core/index.ts";

export const INPUT_BYTES_MAX = 64 * 1024;
const INTERESTING = [
  0, 1, 7, 8, 15, 16, 17, 24, 63, 64, 65, 127, 128, 255, 256, 4095, 4096,
] as const;
const INTERESTING_U32 = [0x7fff_ffff, 0x8000_0000, 0xffff_fff8, 0xffff_ffff, 0x0010_0000] as const;
const WORDS = [
  "null",
  '"',
  "{",
  "}",
  "[",
  "]",
  ",",
  ":",
  "\\u0000",
  "\\ud800",
  "=",
  "\n",
  "#",
  "é",
];
const NUMBERS = [
  "0",
  "-1",
  "-0",
  "1e999",
  "0.1",
  "9007199254740993",
  "18446744073709551615",
  "18446744073709551616",
  "-9223372036854775808",
  "4294967296",
];
/** One input in so many is blown up towards the limit. */
const BLOW_UP_EVERY = 400;

type Mutation = (bytes: Uint8Array, random: Random) => Uint8Array;

function at(bytes: Uint8Array, random: Random): number {
  return randomBelow(random, Math.max(1, bytes.length));
}

function oneOf<T>(list: readonly T[], random: Random): T {
  return list[randomBelow(random, list.length)]!;
}

function changed(bytes: Uint8Array, change: (copy: Uint8Array) => void): Uint8Array {
  const copy = bytes.slice();
  if (copy.length > 0) change(copy);
  return copy;
}

function joined(...parts: Uint8Array[]): Uint8Array {
  return new Uint8Array(Buffer.concat(parts));
}

function inserted(bytes: Uint8Array, from: number, piece: Uint8Array): Uint8Array {
  return joined(bytes.subarray(0, from), piece, bytes.subarray(from));
}

const flipBit: Mutation = (bytes, random) =>
  changed(bytes, (copy) => {
    const place = at(copy, random);
    copy[place] = copy[place]! ^ (1 << randomBelow(random, 8));
  });

const setByte: Mutation = (bytes, random) =>
  changed(bytes, (copy) => {
    copy[at(copy, random)] = oneOf(INTERESTING, random);
  });

/** Fields lie at multiples of four more often than not. */
const setField: Mutation = (bytes, random) =>
  changed(bytes, (copy) => {
    if (copy.length < 4) return;
    const value = oneOf(random.u32() % 2 === 0 ? INTERESTING : INTERESTING_U32, random);
    const place = (randomBelow(random, copy.length - 3) >> 2) << 2;
    new DataView(copy.buffer, copy.byteOffset).setUint32(place, value, true);
  });

const repeat: Mutation = (bytes, random) => {
  const from = at(bytes, random);
  return inserted(bytes, from, bytes.slice(from, from + 1 + randomBelow(random, 64)));
};

const remove: Mutation = (bytes, random) => {
  const from = at(bytes, random);
  return joined(bytes.subarray(0, from), bytes.subarray(from + 1 + randomBelow(random, 16)));
};

const insertWord: Mutation = (bytes, random) =>
  inserted(bytes, at(bytes, random), Buffer.from(oneOf(WORDS, random)));

/** Another number where one stands, in texts. */
const replaceNumber: Mutation = (bytes, random) => {
  const isDigit = (byte: number | undefined) => byte !== undefined && byte >= 48 && byte <= 57;
  let start = at(bytes, random);
  while (start < bytes.length && !isDigit(bytes[start])) start++;
  let end = start;
  while (isDigit(bytes[end])) end++;
  const number = Buffer.from(oneOf(NUMBERS, random));
  return joined(bytes.subarray(0, start), number, bytes.subarray(end));
};

const MUTATIONS: readonly Mutation[] = [
  flipBit,
  setByte,
  setField,
  setField,
  (bytes, random) => bytes.slice(0, at(bytes, random)),
  (bytes, random) => bytes.slice(at(bytes, random)),
  repeat,
  remove,
  insertWord,
  replaceNumber,
];

/** The same piece over and over, as far as the limit allows. */
function blownUp(bytes: Uint8Array, random: Random, bytesMax: number): Uint8Array {
  const from = at(bytes, random);
  const piece = bytes.slice(from, from + 1 + randomBelow(random, 24));
  const room = randomBelow(random, Math.max(1, bytesMax - bytes.length));
  const times = Math.floor(room / Math.max(1, piece.length));
  return inserted(bytes, from, Buffer.concat(new Array<Uint8Array>(times).fill(piece)));
}

/** A good input, or several behind each other, with a few things wrong. */
export function mutate(
  corpus: readonly Uint8Array[],
  random: Random,
  bytesMax = INPUT_BYTES_MAX,
): Uint8Array {
  let input: Uint8Array = oneOf(corpus, random);
  for (let i = randomBelow(random, 3); i > 0; i--) input = joined(input, oneOf(corpus, random));
  for (let i = randomBelow(random, 6); i > 0; i--) input = oneOf(MUTATIONS, random)(input, random);
  if (randomBelow(random, BLOW_UP_EVERY) === 0) input = blownUp(input, random, bytesMax);
  return input.subarray(0, bytesMax);
}

/**
 * Takes pieces and bytes away as long as the input still fails, and as long as `goesOn` lets it.
 */
export async function minimise(
  input: Uint8Array,
  fails: (input: Uint8Array) => Promise<boolean>,
  goesOn: () => boolean,
): Promise<Uint8Array> {
  let smallest = input;
  for (let piece = Math.ceil(input.length / 2); piece >= 1; piece = Math.floor(piece / 2)) {
    for (let from = 0; from < smallest.length; ) {
      if (!goesOn()) return smallest;
      const shorter = joined(smallest.subarray(0, from), smallest.subarray(from + piece));
      if (await fails(shorter)) smallest = shorter;
      else from += piece;
    }
  }
  return smallest;
}
