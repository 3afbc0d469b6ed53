import { describe, expect, test } from "bun:test";
import fc from "fast-check";
import {
  decodeAnswer,
  decodePart,
  decodeRequest,
  encodeAnswer,
  encodeRequest,
} from "../../../src/peers/wire/index.ts";
import { answer, encodePart, part, READERS, request } from "./arbitrary.ts";

const RUNS = { numRuns: 400, seed: 5 };
const message = fc.oneof(
  request.map((one) => encodeRequest(one)),
  answer.map((one) => encodeAnswer(one)),
  part.map((one) => encodePart(one)),
);

describe("a decoded message equals the encoded one", () => {
  test("requests", () => {
    fc.assert(
      fc.property(request, (one) => {
        expect(decodeRequest(encodeRequest(one))).toEqual({ ok: true, request: one });
      }),
      RUNS,
    );
  });

  test("answers", () => {
    fc.assert(
      fc.property(answer, (one) => {
        expect(decodeAnswer(encodeAnswer(one))).toEqual({ ok: true, answer: one });
      }),
      RUNS,
    );
  });

  test("parts of a pull", () => {
    fc.assert(
      fc.property(part, (one) => {
        expect(decodePart(encodePart(one))).toEqual({ ok: true, part: one });
      }),
      RUNS,
    );
  });

  test("without a reference to the message", () => {
    fc.assert(
      fc.property(request, (one) => {
        const bytes = encodeRequest(one);
        const read = decodeRequest(bytes);
        bytes.fill(0xee);
        expect(read).toEqual({ ok: true, request: one });
      }),
      { ...RUNS, numRuns: 50 },
    );
  });
});

/** Any bytes are refused, or decode to a value with exactly this encoding. */
function decoders(bytes: Uint8Array): number {
  let read = 0;
  for (const reader of Object.values(READERS)) {
    const decoded = reader(bytes);
    if (!decoded.ok) {
      expect(decoded.why).toMatch(/^[ -~]{1,120}$/);
      continue;
    }
    read++;
    // A newer sender may add fields that are ignored here.
    if (bytes[0] === 2 && bytes[1] === 0) {
      expect(decoded.encode()).toEqual(bytes.slice());
    }
  }
  return read;
}

describe("invalid messages", () => {
  test("that are cut off anywhere are refused", () => {
    fc.assert(
      fc.property(message, fc.nat(), (bytes, cut) => {
        expect(decoders(bytes.subarray(0, cut % bytes.length))).toBe(0);
      }),
      RUNS,
    );
  });

  test("with trailing bytes are refused", () => {
    fc.assert(
      fc.property(message, fc.uint8Array({ minLength: 1, maxLength: 40 }), (bytes, more) => {
        expect(decoders(new Uint8Array([...bytes, ...more]))).toBe(0);
      }),
      RUNS,
    );
  });

  test("with changed bytes are decoded or refused without an exception", () => {
    const change = fc.tuple(fc.nat(), fc.nat(255));
    fc.assert(
      fc.property(message, fc.array(change, { minLength: 1, maxLength: 8 }), (bytes, changes) => {
        const changed = bytes.slice();
        for (const [at, value] of changes) changed[at % bytes.length] = value;
        expect(decoders(changed)).toBeLessThanOrEqual(1);
      }),
      { ...RUNS, numRuns: 2_000 },
    );
  });

  test("of random bytes are refused", () => {
    fc.assert(
      fc.property(fc.uint8Array({ maxLength: 300 }), (bytes) => {
        expect(decoders(bytes)).toBeLessThanOrEqual(1);
      }),
      RUNS,
    );
  });
});
