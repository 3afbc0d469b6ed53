import { describe, expect, test } from "bun:test";
import { readdirSync } from "node:fs";
import fc from "fast-check";
import {
  BlockFlag,
  CommitFlag,
  createOutput,
  Op,
  Outcome,
  opName,
  pendingOutput,
} from "../../src/engine/protocol/index.ts";
import {
  BlockOutcome,
  BlockFlag as TierBlockFlag,
  CommitFlag as TierCommitFlag,
} from "../../src/store/index.ts";
import { CASES } from "./protocol-cases.ts";
import { type Case, decodeAll, goldenBytes, isRefusal } from "./protocol-support.ts";

const goldens = await Promise.all(
  CASES.map(async (one) => ({ one, bytes: await goldenBytes(one.golden) })),
);

describe("golden frames", () => {
  test("each file has a case and each case has a file", () => {
    const files = readdirSync(new URL("golden", import.meta.url)).sort();
    expect(CASES.map((one) => `${one.golden}.hex`).sort()).toEqual(files);
  });

  test("every operation has a request and a reply, and an error exists", () => {
    const seen = goldens.map(({ one, bytes }) => `${opName(bytes[4]!)} ${one.direction}`);
    for (const op of Object.values(Op)) {
      expect(seen).toContain(`${opName(op)} requests`);
      expect(seen).toContain(`${opName(op)} replies`);
    }
    expect(CASES.some((one) => one.golden === "error.reply")).toBe(true);
  });

  for (const { one, bytes } of goldens) {
    test(`${one.golden} is encoded byte for byte`, () => {
      const output = createOutput();
      output.bytes.fill(0xcc);
      one.encode(output);
      expect(pendingOutput(output).toHex()).toBe(bytes.toHex());
    });

    test(`${one.golden} is decoded`, () => {
      expect(decodeAll(bytes, one)).toEqual([one.value]);
    });
  }
});

/** Modified frames that are still valid: padding hides a count, and a ping may have any length. */
function isLegal(one: Case, bytes: Uint8Array, at: number, value: number): boolean {
  if (bytes[4] === Op.ping)
    return at === 0 && value < bytes.length && value % 8 === 0 && value >= 16;
  if (at !== 12) return false;
  if (one.golden === "identify.tokens.request") return value === 6;
  if (one.golden === "lookup.tokens.request") return value === 6;
  if (one.golden === "lookup.reply") return value >= 2 && value <= 8;
  return one.golden === "match.reply" && value >= 1 && value <= 8;
}

describe("the protocol's numbers", () => {
  test("equal the store's, so that answers need no translation", () => {
    expect<object>(BlockOutcome).toEqual(Outcome);
    expect<object>(TierBlockFlag).toEqual(BlockFlag);
    expect<object>(TierCommitFlag).toEqual(CommitFlag);
  });
});

describe("arbitrary bytes", () => {
  test("are refused or decoded by every decoder without an exception", () => {
    const u32 = fc.integer({ min: 0, max: 0xffff_ffff });
    const arbBody = fc.uint8Array({ maxLength: 400 });
    fc.assert(
      fc.property(fc.nat(255), fc.oneof(fc.nat(12), u32), arbBody, (op, count, body) => {
        const bytes = new Uint8Array(16 + Math.ceil(body.length / 8) * 8);
        const view = new DataView(bytes.buffer);
        bytes.set(body, 16);
        view.setUint32(0, bytes.length, true);
        bytes[4] = op;
        view.setUint32(12, count, true);
        for (const one of CASES) {
          bytes[5] = one.direction === "requests" ? 0 : 1;
          expect(decodeAll(bytes, one).length).toBe(1);
        }
      }),
      { seed: 20_254, numRuns: 300 },
    );
  });
});

describe("a modified golden frame", () => {
  for (const { one, bytes } of goldens) {
    test(`${one.golden} cut short with a corrected length is refused`, () => {
      for (let length = 0; length < bytes.length; length++) {
        const cut = bytes.slice(0, length);
        expect(decodeAll(cut, one)).toEqual([]);
        if (length < 16) continue;
        new DataView(cut.buffer).setUint32(0, length, true);
        const [seen] = decodeAll(cut, one);
        if (!isLegal(one, bytes, 0, length)) expect(isRefusal(seen)).toBe(true);
      }
    });

    test(`${one.golden} with any other length or count is refused or waits for more`, () => {
      for (const at of [0, 1, 2, 3, 12, 13, 14, 15])
        for (let value = 0; value < 256; value++) {
          if (value === bytes[at] || isLegal(one, bytes, at, value)) continue;
          const lie = bytes.slice();
          lie[at] = value;
          const taken = decodeAll(lie, one).filter((seen) => !isRefusal(seen));
          if (taken.length > 0) expect({ at, value, taken }).toEqual({ at, value, taken: [] });
        }
    });

    test(`${one.golden} with any bit changed is refused or decoded without an exception`, () => {
      for (let bit = 0; bit < 8 * bytes.length; bit++) {
        const lie = bytes.slice();
        lie[bit >> 3]! ^= 1 << (bit & 7);
        const seen = decodeAll(lie, one).length;
        if (seen > 1 + bytes.length / 16) expect(seen).toBe(1);
      }
    });
  }
});
