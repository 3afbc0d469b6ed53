import { expect, test } from "bun:test";
import { decodeReceipt, encodeReceipt, JSON_TYPE, MSGPACK_TYPE } from "../../src/control/index.ts";
import { countOutcomes } from "../../src/core/index.ts";
import type { HeldBlock } from "../../src/store/index.ts";
import { PlaneKit } from "./plane-kit.ts";

test("a revocation lists the blocks of the lease, the first 1,000", async () => {
  const kit = new PlaneKit();
  const by = [{ kind: "pin", owner: "o" }] as const;
  const results: HeldBlock[] = Array.from({ length: 1_200 }, (_, at) => ({
    ...(at === 1 ? { outcome: "held", by } : { outcome: "done" }),
    ...{ digest: `${at}`.padStart(64, "0"), layer: at },
  }));
  kit.lifecycle.revokeLease = async () => ({
    ...{ results, counts: countOutcomes(results), held: [], bytes: 9, durable: true },
    ...{ figures: null, ttlMs: null },
  });
  const receipt = await kit.send({ type: "RevokeLease", lease_id: "l" });
  expect(receipt).toMatchObject({ status: "partial", counts: { done: 1_199, held: 1 } });
  expect(receipt.blocks).toHaveLength(1_000);
  expect(receipt.blocks_left_out).toBe(200);
  for (const type of [JSON_TYPE, MSGPACK_TYPE] as const) {
    const read = decodeReceipt(encodeReceipt(receipt, type), type)!;
    expect(read.blocks.slice(0, 3)).toEqual([
      { block: "0".repeat(64), outcome: "done", layer: 0 },
      { block: `${"0".repeat(63)}1`, outcome: "held", layer: 1, by: [...by] },
      { block: `${"0".repeat(63)}2`, outcome: "done", layer: 2 },
    ]);
  }
  // Of a lease that is not there no block is listed.
  kit.lifecycle.revokeLease = async () => ({
    ...{ results: [{ outcome: "missing" }], counts: countOutcomes([{ outcome: "missing" }]) },
    ...{ held: [], bytes: 0, durable: false, figures: null, ttlMs: null },
  });
  const missing = await kit.send({ type: "RevokeLease", lease_id: "l" });
  expect(missing).toMatchObject({ status: "partial", blocks: [], counts: { missing: 1 } });
});
