import { describe, expect, test } from "bun:test";
import fc from "fast-check";
import { CIPHERS } from "../../../src/native/index.ts";
import { CONNECTION_FAULTS } from "../../../src/peers/index.ts";
import { type ControlMessage, STREAM_CODEC } from "../../../src/peers/transports/stream/index.ts";

type ControlKind = ControlMessage["kind"];

const u8 = fc.integer({ min: 1, max: 255 });
const u16 = fc.integer({ min: 1, max: 0xffff });
const u32 = fc.integer({ min: 0, max: 0xffff_ffff });
const body = fc.uint8Array({ maxLength: 300 });
const cipher = fc.constantFrom(...CIPHERS);
const fault = fc.constantFrom(...CONNECTION_FAULTS);
const why = fc.string({ unit: "grapheme", maxLength: 20 });
const bytes = (length: number) => fc.uint8Array({ minLength: length, maxLength: length });
const kind = <Kind extends ControlKind>(name: Kind) => fc.constant(name);

const MESSAGES: { [Kind in ControlKind]: fc.Arbitrary<Extract<ControlMessage, { kind: Kind }>> } = {
  hello: fc.record({
    ...{ kind: kind("hello"), version: u16, lanes: u8 },
    ciphers: fc.uniqueArray(cipher, { minLength: 1 }),
  }),
  welcome: fc.record({
    ...{ kind: kind("welcome"), version: u16, port: u16, requests: u16 },
    session: fc.record({ id: bytes(16), secret: bytes(32), cipher, lanes: u8 }),
  }),
  call: fc.record({ kind: kind("call"), id: u32, body }),
  answer: fc.record({ kind: kind("answer"), id: u32, body }),
  pull: fc.record({ kind: kind("pull"), id: u32, transfer: u32, announced: u16, body }),
  part: fc.record({ kind: kind("part"), id: u32, sent: fc.boolean(), body }),
  go: fc.record({ kind: kind("go"), id: u32, index: u16, transfer: u32 }),
  lost: fc.record({ kind: kind("lost"), id: u32, index: u16 }),
  busy: fc.record({ kind: kind("busy"), id: u32, retryAfterMs: u32 }),
  end: fc.record({ kind: kind("end"), id: u32, fault, why }),
  cancel: fc.record({ kind: kind("cancel"), id: u32 }),
  ping: fc.record({ kind: kind("ping"), nonce: u32 }),
  pong: fc.record({ kind: kind("pong"), nonce: u32 }),
  bye: fc.record({ kind: kind("bye"), fault, why }),
};
const message: fc.Arbitrary<ControlMessage> = fc.oneof(...Object.values(MESSAGES));

/** A message without its length prefix. */
const withoutLength = (whole: Uint8Array) => {
  expect(new DataView(whole.buffer).getUint32(0, true)).toBe(whole.length - 4);
  return whole.subarray(4);
};

const GOLDEN: readonly (readonly [ControlMessage, string])[] = [
  [
    { kind: "hello", version: 1, lanes: 4, ciphers: ["aegis-128l", "aes-128-gcm"] },
    "06000000 01 0100 04 0001",
  ],
  [
    {
      ...{ kind: "welcome", version: 1, port: 7173, requests: 32 },
      session: {
        id: new Uint8Array(16).fill(0xaa),
        secret: new Uint8Array(32).fill(0xbb),
        cipher: "aes-128-gcm",
        lanes: 4,
      },
    },
    `39000000 02 0100 051c 2000 01 04 ${"aa".repeat(16)} ${"bb".repeat(32)}`,
  ],
  [{ kind: "call", id: 1, body: Uint8Array.of(7, 8) }, "07000000 03 01000000 0708"],
  [{ kind: "answer", id: 1, body: Uint8Array.of(7) }, "06000000 04 01000000 07"],
  [
    { kind: "pull", id: 2, transfer: 9, announced: 3, body: Uint8Array.of(1) },
    "0c000000 05 02000000 09000000 0300 01",
  ],
  [{ kind: "part", id: 2, sent: true, body: Uint8Array.of(5) }, "07000000 06 02000000 01 05"],
  [{ kind: "go", id: 2, index: 1, transfer: 10 }, "0b000000 07 02000000 0100 0a000000"],
  [{ kind: "lost", id: 2, index: 1 }, "07000000 08 02000000 0100"],
  [{ kind: "busy", id: 2, retryAfterMs: 100 }, "09000000 09 02000000 64000000"],
  [{ kind: "end", id: 2, fault: "stalled", why: "late" }, "0a000000 0a 02000000 04 6c617465"],
  [{ kind: "cancel", id: 2 }, "05000000 0b 02000000"],
  [{ kind: "ping", nonce: 3 }, "05000000 0c 03000000"],
  [{ kind: "pong", nonce: 3 }, "05000000 0d 03000000"],
  [{ kind: "bye", fault: "refused", why: "no" }, "04000000 0e 00 6e6f"],
];

describe("messages of a stream control channel", () => {
  test("are encoded byte for byte as documented", () => {
    expect(GOLDEN.map(([said]) => said.kind)).toEqual(Object.keys(MESSAGES) as ControlKind[]);
    for (const [said, hex] of GOLDEN) {
      expect(STREAM_CODEC.encode(said).toHex()).toBe(hex.replaceAll(" ", ""));
      expect(STREAM_CODEC.decode(withoutLength(STREAM_CODEC.encode(said)))).toEqual(said);
    }
  });

  test("decode to what was encoded", () => {
    fc.assert(
      fc.property(message, (said) => {
        expect(STREAM_CODEC.decode(withoutLength(STREAM_CODEC.encode(said)))).toEqual(said);
      }),
      { numRuns: 500 },
    );
  });

  test("that are cut off, extended or random never cause an exception", () => {
    fc.assert(
      fc.property(fc.uint8Array({ maxLength: 80 }), (noise) => {
        for (let code = 0; code < 20; code++) {
          const made = STREAM_CODEC.decode(Uint8Array.of(code, ...noise));
          if (made === null) continue;
          // Decoded messages encode to the same bytes, except for unknown ciphers.
          if (made.kind === "hello") continue;
          expect(withoutLength(STREAM_CODEC.encode(made)).toHex()).toBe(
            Uint8Array.of(code, ...noise).toHex(),
          );
        }
      }),
      { numRuns: 300 },
    );
    expect(STREAM_CODEC.decode(new Uint8Array(0))).toBeNull();
  });

  test("have fixed lengths, and unknown ciphers are ignored", () => {
    for (const [said] of GOLDEN) {
      const bytes = withoutLength(STREAM_CODEC.encode(said));
      const isFixed = ["welcome", "go", "lost", "busy", "cancel", "ping", "pong"].includes(
        said.kind,
      );
      if (isFixed) expect(STREAM_CODEC.decode(Uint8Array.of(...bytes, 0))).toBeNull();
      if (isFixed) expect(STREAM_CODEC.decode(bytes.subarray(0, -1))).toBeNull();
    }
    const hello = Uint8Array.of(1, 1, 0, 4, 200, 1, 1);
    expect(STREAM_CODEC.decode(hello)).toMatchObject({ ciphers: ["aes-128-gcm"] });
    expect(STREAM_CODEC.decode(Uint8Array.of(1, 1, 0, 4))).toBeNull();
    expect(STREAM_CODEC.decode(Uint8Array.of(1, 0, 0, 4, 1))).toBeNull();
  });

  test("truncate a reason between two characters", () => {
    const bytes = withoutLength(
      STREAM_CODEC.encode({ kind: "bye", fault: "closed", why: "é".repeat(200) }),
    );
    expect(STREAM_CODEC.decode(bytes)).toEqual({
      kind: "bye",
      fault: "closed",
      why: "é".repeat(127),
    });
  });
});
