import fc from "fast-check";
import type { WorkerId } from "../../../src/core/index.ts";
import type {
  FrameHeader,
  ItemRefusal,
  PeerAnswer,
  PeerHas,
  PeerHello,
  PeerRequest,
} from "../../../src/peers/index.ts";
import {
  decodeAnswer,
  decodePart,
  decodeRequest,
  encodeAnswer,
  encodeFrame,
  encodeRefusal,
  encodeRequest,
  PAYLOAD_BYTES_MAX,
  type Part,
} from "../../../src/peers/wire/index.ts";

/** Arbitrary messages that survive a round trip. */

const U64_MAX = 2n ** 64n - 1n;
export const key = fc.uint8Array({ minLength: 32, maxLength: 32 });
const hash = fc.uint8Array({ minLength: 8, maxLength: 8 });
const name = fc.oneof(key, hash);
const u64 = fc.oneof(fc.bigInt({ min: 0n, max: U64_MAX }), fc.constant(U64_MAX));
const u32 = fc.oneof(fc.integer({ min: 0, max: 2 ** 32 - 1 }), fc.constant(2 ** 32 - 1));
const length = fc.integer({ min: 0, max: PAYLOAD_BYTES_MAX });
const payload = fc.integer({ min: 1, max: PAYLOAD_BYTES_MAX });

/** One line of at most this many bytes. */
function line(bytesMax: number, minLength = 0): fc.Arbitrary<string> {
  return fc
    .string({ unit: "binary", minLength, maxLength: bytesMax })
    .map((text) => text.replace(/\p{Cc}/gu, "é"))
    .filter((text) => Buffer.byteLength(text) <= bytesMax);
}

const hello: fc.Arbitrary<PeerHello> = fc.record({
  worker: fc.stringMatching(/^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$/).map((id) => id as WorkerId),
  incarnation: u64,
  hardware: fc.record({
    hasRdmaNic: fc.boolean(),
    rdmaDevices: fc.array(line(40), { maxLength: 16 }),
    cores: fc.nat(65_535),
    hasAes: fc.boolean(),
  }),
});

const block = fc.record({ digest: key, layer: u32 });
const item = fc.record({ digest: key, layer: u32, bytesMax: length, generation: u64 });

const has: fc.Arbitrary<PeerHas> = fc.record({
  tiers: fc.constantFrom(0, 2, 4, 6),
  bytes: length,
  generation: u64,
  checksum: u64,
});

const found = fc
  .tuple(key, block, has)
  .map(([namespace, where, what]) => ({ namespace, ...where, ...what }));

export const request: fc.Arbitrary<PeerRequest> = fc.oneof(
  fc.record({ op: fc.constant("hello" as const), hello }),
  fc.record({
    op: fc.constant("pull" as const),
    namespace: key,
    items: fc.array(item, { maxLength: 20 }),
    deadlineMs: u32,
  }),
  fc.record({
    op: fc.constant("has" as const),
    namespace: key,
    blocks: fc.array(block, { maxLength: 20 }),
  }),
  fc.record({ op: fc.constant("find" as const), names: fc.array(name, { maxLength: 20 }) }),
  fc.record({ op: fc.constant("summary" as const), namespace: key, known: u64 }),
);

export const answer: fc.Arbitrary<PeerAnswer> = fc.oneof(
  fc.record({ op: fc.constant("hello" as const), hello }),
  fc.record({ op: fc.constant("has" as const), blocks: fc.array(has, { maxLength: 20 }) }),
  fc.record({
    op: fc.constant("find" as const),
    found: fc.array(fc.array(found, { maxLength: 4 }), { maxLength: 8 }),
  }),
  fc.record({
    op: fc.constant("summary" as const),
    version: u64,
    filter: fc.option(fc.uint8Array({ maxLength: 200 })),
  }),
  fc.record({ op: fc.constant("busy" as const), retryAfterMs: u32 }),
  fc.record({ op: fc.constant("refused" as const), why: line(200) }),
);

export const frame: fc.Arbitrary<FrameHeader> = fc.record({
  digest: key,
  layer: u32,
  model: line(255),
  bytes: payload,
  namespace: key,
  generation: u64,
  checksum: u64,
  mac: fc.option(fc.uint8Array({ minLength: 16, maxLength: 16 })),
  parent: fc.option(key),
  transient: fc.boolean(),
  aliases: fc.array(name, { maxLength: 8 }),
});

export const refusal: fc.Arbitrary<ItemRefusal> = fc.oneof(
  fc.record({ kind: fc.constant("absent" as const) }),
  fc.record({ kind: fc.constant("busy" as const), retryAfterMs: u32 }),
  fc.record({ kind: fc.constant("tooLong" as const), bytes: length }),
  fc.record({ kind: fc.constant("refused" as const), why: line(200) }),
);

const index = fc.nat(4095);
export const part: fc.Arbitrary<Part> = fc.oneof(
  fc.record({ kind: fc.constant("frame" as const), index, header: frame }),
  fc.record({ kind: fc.constant("refusal" as const), index, refusal }),
);

export function encodePart(one: Part): Uint8Array {
  return one.kind === "frame"
    ? encodeFrame(one.index, one.header)
    : encodeRefusal(one.index, one.refusal);
}

export type Decoded =
  | { readonly ok: true; readonly value: unknown; encode(): Uint8Array }
  | { readonly ok: false; readonly why: string };

/** Every decoder with its encoder. */
export const READERS: Readonly<Record<"request" | "answer" | "part", (b: Uint8Array) => Decoded>> =
  {
    request(bytes) {
      const read = decodeRequest(bytes);
      if (!read.ok) return read;
      return { ok: true, value: read.request, encode: () => encodeRequest(read.request) };
    },
    answer(bytes) {
      const read = decodeAnswer(bytes);
      if (!read.ok) return read;
      return { ok: true, value: read.answer, encode: () => encodeAnswer(read.answer) };
    },
    part(bytes) {
      const read = decodePart(bytes);
      if (!read.ok) return read;
      return { ok: true, value: read.part, encode: () => encodePart(read.part) };
    },
  };
