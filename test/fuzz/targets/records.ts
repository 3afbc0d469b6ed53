import { type Random, randomBelow } from "../../../src/core/index.ts";
import { STATUS } from "../../../src/native/index.ts";
import {
  dataRecord,
  openRecords,
  type RecordPlace,
  sealRecords,
} from "../../native/records-kit.ts";
import { must, type Target } from "../target.ts";

const CIPHERS = ["aegis_128l", "aes_128_gcm"] as const;
const HEADER_BYTES = 24;
const TAG_BYTES = 16;

const NAMES = new Map<number, string>(Object.entries(STATUS).map(([name, n]) => [n, name]));

/** Rekeyed after every few records. */
function placeOf(cipher: RecordPlace["cipher"]): RecordPlace {
  const id = new Uint8Array(16).fill(5);
  const secret = new Uint8Array(32).fill(9);
  return { id, secret, lane: 1, direction: 1, cipher, rekeyBytes: 200 };
}

/** What was truly sent; whatever opens must be the beginning of it. */
const SENT = [0, 40, 80, 81, 200].map((offset, i, offsets) =>
  dataRecord({
    transfer: 3,
    offset,
    payload: "x".repeat((offsets[i + 1] ?? 260) - offset),
    last: i === offsets.length - 1,
  }),
);
const PLAIN = Buffer.concat(SENT);
const SEALED = CIPHERS.map((cipher) => sealed(cipher, PLAIN));

function sealed(cipher: RecordPlace["cipher"], plain: Uint8Array): Uint8Array {
  const made = sealRecords(placeOf(cipher), plain);
  must(made instanceof Uint8Array, "records that are right can be sealed");
  return made;
}

/** The sealed records one by one. */
function pieces(cipher: number): Uint8Array[] {
  let at = 0;
  return SENT.map(({ length }) => {
    const from = at;
    at += length + TAG_BYTES;
    return SEALED[cipher]!.subarray(from, at);
  });
}

/** Sealed records left out, repeated, in another order, or of the other cipher. */
function shuffled(random: Random): Uint8Array {
  const cipher = randomBelow(random, 2);
  const own = pieces(cipher);
  const other = pieces(1 - cipher);
  const count = randomBelow(random, 8);
  const chosen = Array.from({ length: count }, (_, i) => {
    const kind = randomBelow(random, 6);
    if (kind === 0) return other[randomBelow(random, other.length)]!;
    if (kind === 1) return own[randomBelow(random, own.length)]!;
    return own[Math.min(i, own.length - 1)]!;
  });
  return Buffer.concat([Uint8Array.of(cipher), ...chosen]);
}

/** Headers of any kind with payloads, to be sealed. */
function unsealed(random: Random): Uint8Array {
  const records = Array.from({ length: 1 + randomBelow(random, 6) }, () => {
    const record = dataRecord({
      transfer: random.u32(),
      offset: random.u32(),
      payload: "y".repeat(1 + randomBelow(random, 300)),
      last: random.u32() % 2 === 0,
    });
    if (random.u32() % 4 !== 0) return record;
    const control = new Uint8Array(HEADER_BYTES);
    control.set([1, randomBelow(random, 7)]);
    return control;
  });
  return Buffer.concat([Uint8Array.of(2 + randomBelow(random, 2)), ...records]);
}

function open(input: Uint8Array, cipher: (typeof CIPHERS)[number]): string {
  const opened = openRecords(placeOf(cipher), input);
  if (typeof opened === "number") return NAMES.get(opened)!;
  const sent = PLAIN.subarray(0, opened.length);
  must(Buffer.compare(opened, sent) === 0, "what opens was sent, from the first record on");
  const made = SEALED[CIPHERS.indexOf(cipher)]!.subarray(0, input.length);
  must(Buffer.compare(made, input) === 0, "what opens is what was sealed");
  return `opened ${opened.length}`;
}

function sealAndOpen(plain: Uint8Array, cipher: (typeof CIPHERS)[number]): string {
  const made = sealRecords(placeOf(cipher), plain);
  if (typeof made === "number") return NAMES.get(made)!;
  const opened = openRecords(placeOf(cipher), made);
  must(opened instanceof Uint8Array, "what was sealed opens");
  must(Buffer.compare(opened, plain) === 0, "to what it was");
  return `sealed ${Math.min(16, (made.length - plain.length) / TAG_BYTES)}`;
}

/** Records that go over lanes: the first byte says what to do with the rest. */
export function records(): Target {
  return {
    name: "records",
    corpus: [
      ...SEALED.map((bytes, i) => Buffer.concat([Uint8Array.of(i), bytes])),
      ...CIPHERS.map((_, i) => Buffer.concat([Uint8Array.of(2 + i), PLAIN])),
    ],
    inputBytesMax: 8 * 1024,
    generate: (random) => (random.u32() % 2 === 0 ? shuffled(random) : unsealed(random)),
    run(input, saw) {
      if (input.length === 0) return;
      const what = input[0]! & 3;
      const cipher = CIPHERS[what & 1]!;
      const rest = input.subarray(1);
      saw(`${what} ${what < 2 ? open(rest, cipher) : sealAndOpen(rest, cipher)}`);
    },
  };
}
