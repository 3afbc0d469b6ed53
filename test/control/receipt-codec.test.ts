import { describe, expect, test } from "bun:test";
import fc from "fast-check";
import {
  decodeReceipt,
  encodeReceipt,
  JSON_TYPE,
  MSGPACK_TYPE,
  type Receipt,
} from "../../src/control/index.ts";
import { parseJson } from "../../src/core/index.ts";

const HEAD = { worker_id: "w", incarnation: "18446744073709551615", issuer: "i", elapsed_ms: 0.5 };
const COUNTS = { done: 1, already: 0, missing: 0, held: 0, deferred: 0, rejected: 0 };

const name = fc.oneof(
  fc.bigInt(-(2n ** 63n), 2n ** 64n - 1n).map((value) => {
    return BigInt(Number(value)) === value && Number.isSafeInteger(Number(value))
      ? Number(value)
      : value;
  }),
  fc.string(),
);
const block = fc.record(
  {
    block: name,
    outcome: fc.constantFrom("done", "held", "rejected"),
    reason: fc.string(),
    by: fc.array(fc.record({ kind: fc.constant("pin" as const), owner: fc.string() })),
  },
  { requiredKeys: ["block", "outcome"] },
);
const receipt: fc.Arbitrary<Receipt> = fc.record({
  ...{ type: fc.constant("Cache"), status: fc.constantFrom("ok" as const, "partial" as const) },
  ...{ id: fc.option(fc.string()), counts: fc.constant(COUNTS), blocks: fc.array(block) },
  ...{ held: fc.array(block.map((held) => ({ ...held, block: "d", layer: 3 }))) },
  ...{ budget: fc.constant({ host_used_bytes: 2 ** 40 }), bytes: fc.maxSafeNat() },
  ...{ worker_id: fc.string(), incarnation: fc.constant(HEAD.incarnation), issuer: fc.string() },
  elapsed_ms: fc.double({ min: 0, max: 1e9, noNaN: true }),
});

/** The same number, whichever type it came as; minus zero is zero. */
function plain(value: unknown): unknown {
  const text = JSON.stringify(value, (_key, item) =>
    typeof item === "bigint" || typeof item === "number" ? `#${Number(item)}` : item,
  );
  return JSON.parse(text);
}

describe("receipts as they travel", () => {
  test.each([JSON_TYPE, MSGPACK_TYPE] as const)("%s: what was written is read", (type) => {
    fc.assert(
      fc.property(receipt, (written) => {
        const read = decodeReceipt(encodeReceipt(written, type), type);
        expect(plain(read)).toEqual(plain(written));
        const names = (of: Receipt) => of.blocks.map(({ block }) => String(block));
        expect(names(read!)).toEqual(names(written));
      }),
      { seed: 84, numRuns: 150 },
    );
  });

  test("as many blocks stay as fit", () => {
    const blocks = Array.from({ length: 5_000 }, (_, i) => ({ block: i, outcome: "done" }));
    const full: Receipt = {
      ...HEAD,
      id: null,
      type: "Cache",
      status: "ok",
      counts: COUNTS,
      blocks,
    };
    for (const bytesMax of [300, 10_000, 100_000]) {
      const bytes = encodeReceipt(full, JSON_TYPE, bytesMax);
      expect(bytes.length).toBeLessThanOrEqual(bytesMax);
      const read = parseJson(new TextDecoder().decode(bytes)) as unknown as Receipt;
      expect(read.blocks.length + read.blocks_left_out!).toBe(5_000);
    }
    expect(decodeReceipt(encodeReceipt(full, JSON_TYPE), null)!.blocks_left_out).toBeUndefined();
  });

  test.each(["{}", "[]", "null", "x", '{"status":"ok"}'])("%s is none", (text) => {
    expect(decodeReceipt(new TextEncoder().encode(text), null)).toBeNull();
  });

  test("no two share their bytes", () => {
    const one: Receipt = { ...HEAD, id: "1", type: "", status: "ok", counts: COUNTS, blocks: [] };
    const first = encodeReceipt(one, MSGPACK_TYPE);
    const before = first.slice();
    encodeReceipt({ ...one, id: "2" }, MSGPACK_TYPE);
    expect(first).toEqual(before);
  });
});
