import { describe, expect, test } from "bun:test";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import fc from "fast-check";
import type { RdmaAddress } from "../../../src/native/index.ts";
import { CONNECTION_FAULTS } from "../../../src/peers/index.ts";
import {
  type Rail,
  RDMA_CODEC,
  type RdmaControl,
} from "../../../src/peers/transports/rdma/index.ts";

type Kind = RdmaControl["kind"];

const u8 = fc.integer({ min: 0, max: 255 });
const u16 = fc.integer({ min: 1, max: 0xffff });
const u24 = fc.integer({ min: 0, max: 0xff_ffff });
const u32 = fc.integer({ min: 0, max: 0xffff_ffff });
const body = fc.uint8Array({ maxLength: 300 });
const gid = fc.uint8Array({ minLength: 16, maxLength: 16 });
const fault = fc.constantFrom(...CONNECTION_FAULTS);
const why = fc.string({ unit: "grapheme", maxLength: 20 });
const kind = <Name extends Kind>(name: Name) => fc.constant(name);

const rail: fc.Arbitrary<Rail> = fc.record({
  gid,
  linkLayer: fc.constantFrom("infiniband" as const, "ethernet" as const),
  isRoceV2: fc.boolean(),
});
const address: fc.Arbitrary<RdmaAddress> = fc.record({
  ...{ gid, queuePair: u24, psn: u24, lid: u16, readsOut: u8, readsIn: u8 },
  mtu: fc.constantFrom(256, 512, 1024, 2048, 4096),
});
const some = <T>(one: fc.Arbitrary<T>) => fc.array(one, { minLength: 1, maxLength: 8 });

const MESSAGES: { [Name in Kind]: fc.Arbitrary<Extract<RdmaControl, { kind: Name }>> } = {
  hello: fc.record({
    ...{ kind: kind("hello"), version: u16, rails: some(rail) },
    wanted: fc.integer({ min: 1, max: 8 }),
  }),
  welcome: fc.record({
    ...{ kind: kind("welcome"), version: u16, requests: u16 },
    pairs: fc.uniqueArray(fc.record({ rail: u8, address }), {
      selector: (pair) => pair.rail,
      ...{ minLength: 1, maxLength: 8 },
    }),
  }),
  call: fc.record({ kind: kind("call"), id: u32, body }),
  answer: fc.record({ kind: kind("answer"), id: u32, body }),
  pull: fc.record({ kind: kind("pull"), id: u32, body }),
  part: fc.record({ kind: kind("part"), id: u32, body }),
  lost: fc.record({ kind: kind("lost"), id: u32, index: u16 }),
  busy: fc.record({ kind: kind("busy"), id: u32, retryAfterMs: u32 }),
  end: fc.record({ kind: kind("end"), id: u32, fault, why }),
  cancel: fc.record({ kind: kind("cancel"), id: u32 }),
  ping: fc.record({ kind: kind("ping"), nonce: u32 }),
  pong: fc.record({ kind: kind("pong"), nonce: u32 }),
  bye: fc.record({ kind: kind("bye"), fault, why }),
  join: fc.record({ kind: kind("join"), addresses: some(address) }),
  lent: fc.record({
    ...{ kind: kind("lent"), id: u32, rail: u8, body },
    window: fc.record({ address: fc.bigInt({ min: 0n, max: 2n ** 64n - 1n }), key: u32 }),
  }),
  taken: fc.record({ kind: kind("taken"), id: u32, index: u16 }),
};
const message: fc.Arbitrary<RdmaControl> = fc.oneof(...Object.values(MESSAGES));

/** A message without its length prefix. */
const withoutLength = (whole: Uint8Array) => {
  expect(new DataView(whole.buffer).getUint32(0, true)).toBe(whole.length - 4);
  return whole.subarray(4);
};

const GID = "00000000000000000000ffff0a000001";
const RAIL: Rail = { gid: Uint8Array.fromHex(GID), linkLayer: "ethernet", isRoceV2: true };
const ADDRESS: RdmaAddress = {
  ...{ gid: Uint8Array.fromHex(GID), queuePair: 0x11, psn: 0x123456, lid: 3 },
  ...{ mtu: 1024, readsOut: 16, readsIn: 8 },
};
const ADDRESS_HEX = `${GID} 11000000 56341200 0300 0004 1000 0800`;

/** Messages of RDMA only; the others equal those of the stream transport. */
const GOLDEN: readonly (readonly [RdmaControl, string])[] = [
  [{ kind: "hello", version: 1, wanted: 1, rails: [RAIL] }, `17000000 01 0100 01 01 ${GID} 01 01`],
  [
    { kind: "welcome", version: 1, requests: 32, pairs: [{ rail: 0, address: ADDRESS }] },
    `27000000 02 0100 2000 01 00 ${ADDRESS_HEX}`,
  ],
  [{ kind: "join", addresses: [ADDRESS] }, `22000000 0f 01 ${ADDRESS_HEX}`],
  [{ kind: "pull", id: 2, body: Uint8Array.of(1) }, "06000000 05 02000000 01"],
  [{ kind: "part", id: 2, body: Uint8Array.of(5) }, "06000000 06 02000000 05"],
  [
    {
      ...{ kind: "lent", id: 2, rail: 0, body: Uint8Array.of(5) },
      window: { address: 0x7f00_0000_1000n, key: 0xabcd },
    },
    "13000000 10 02000000 00 cdab0000 00100000007f0000 05",
  ],
  [{ kind: "taken", id: 2, index: 1 }, "07000000 11 02000000 0100"],
  [{ kind: "lost", id: 2, index: 1 }, "07000000 08 02000000 0100"],
  [{ kind: "bye", fault: "refused", why: "no" }, "04000000 0e 00 6e6f"],
];

describe("messages of an RDMA control channel", () => {
  test("are encoded byte for byte as documented", () => {
    for (const [said, hex] of GOLDEN) {
      expect(RDMA_CODEC.encode(said).toHex()).toBe(hex.replaceAll(" ", ""));
      expect(RDMA_CODEC.decode(withoutLength(RDMA_CODEC.encode(said)))).toEqual(said);
    }
  });

  test("are printed in the documentation as they are", () => {
    const text = readFileSync(
      join(import.meta.dir, "../../../docs/internals/wire-protocol.md"),
      "utf8",
    );
    const [, section = ""] = /### Over RDMA\n(.*?)\n## /s.exec(text) ?? [];
    const printed = [...section.matchAll(/```\n(.*?)```/gs)].map(([, block]) =>
      block!.replaceAll(/#.*/g, "").replaceAll(/\s/g, ""),
    );
    const shown = ["hello", "welcome", "lent", "taken"];
    const golden = GOLDEN.filter(([{ kind }]) => shown.includes(kind));
    expect(printed).toEqual(golden.map(([, hex]) => hex.replaceAll(" ", "")));
  });

  test("decode to what was encoded", () => {
    fc.assert(
      fc.property(message, (said) => {
        expect(RDMA_CODEC.decode(withoutLength(RDMA_CODEC.encode(said)))).toEqual(said);
      }),
      { numRuns: 500 },
    );
  });

  test("that are cut off, extended or random never cause an exception", () => {
    fc.assert(
      fc.property(message, fc.nat(), fc.uint8Array({ maxLength: 90 }), (said, at, noise) => {
        const bytes = withoutLength(RDMA_CODEC.encode(said));
        const cut = bytes.subarray(0, at % bytes.length);
        const made = [cut, Uint8Array.of(...bytes, ...noise), Uint8Array.of(at % 20, ...noise)];
        for (const one of made) {
          const read = RDMA_CODEC.decode(one);
          if (read === null) continue;
          expect(withoutLength(RDMA_CODEC.encode(read)).toHex()).toBe(one.toHex());
        }
      }),
      { numRuns: 300 },
    );
    expect(RDMA_CODEC.decode(new Uint8Array(0))).toBeNull();
  });

  test("with impossible device properties are refused", () => {
    const said = withoutLength(RDMA_CODEC.encode({ kind: "join", addresses: [ADDRESS] }));
    const changed = (at: number, value: number) => {
      const bytes = said.slice();
      bytes[at] = value;
      return RDMA_CODEC.decode(bytes);
    };
    expect(changed(0, 15)).not.toBeNull();
    // Zero, too many, a 25-bit number, a 25-bit sequence, an undefined MTU.
    for (const [at, value] of [
      [1, 0],
      [1, 2],
      [21, 1],
      [25, 1],
      [28, 1],
      [31, 1],
      [33, 1],
    ] as const)
      expect(changed(at, value)).toBeNull();
    const twice = [0, 0].map((rail) => ({ rail, address: ADDRESS }));
    const welcome = RDMA_CODEC.encode({ kind: "welcome", version: 1, requests: 1, pairs: twice });
    expect(RDMA_CODEC.decode(withoutLength(welcome))).toBeNull();
    for (const wanted of [0, 9]) {
      const hello = RDMA_CODEC.encode({ kind: "hello", version: 1, wanted, rails: [RAIL] });
      expect(RDMA_CODEC.decode(withoutLength(hello))).toBeNull();
    }
  });
});
