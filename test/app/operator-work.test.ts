import { describe, expect, test } from "bun:test";
import { operatorActions } from "../../src/app/index.ts";
import type { Operation, Sender } from "../../src/control/index.ts";
import { HearthError, LAYER_ALL } from "../../src/core/index.ts";
import type { PurgeAddress, PurgeOutcome } from "../../src/store/index.ts";
import { ManualClock } from "../support/index.ts";

const SENDER: Sender = {
  ...{ via: "http", from: "ops 127.0.0.1", name: "ops", role: "purge", broadcast: false },
};
const DIGEST = "ab".repeat(32);

function kit(answer: () => Promise<PurgeOutcome[]>, durable = true) {
  const clock = new ManualClock();
  const noted: Operation[] = [];
  const asked: { addresses: readonly PurgeAddress[]; by: string }[] = [];
  const agent = {
    async purge(addresses: readonly PurgeAddress[], by: string) {
      asked.push({ addresses, by });
      clock.advance(12);
      return answer();
    },
    persist: async () => ({ written: 3, skipped: 0, durable }),
  };
  const note = (operation: Operation, sender: Sender) => {
    expect(sender).toBe(SENDER);
    noted.push(operation);
  };
  return { work: operatorActions(agent, { note }, clock), noted, asked };
}

describe("operator actions in the audit log", () => {
  test("a purge logs blocks, counts and outcome; the blocks record the caller", async () => {
    const { work, noted, asked } = kit(async () => ["done", "held", "done"]);
    const blocks = [{ digest: DIGEST }, { digest: DIGEST, layer: 7 }, { digest: DIGEST, layer: 8 }];
    expect(await work.purge(blocks, SENDER)).toEqual(["done", "held", "done"]);
    expect(noted).toEqual([
      {
        ...{ type: "Purge", blocks: 3, status: "partial", reason: null, elapsedMs: 12 },
        counts: { done: 2, missing: 0, held: 1, failed: 0 },
        names: [DIGEST, `${DIGEST}/7`, `${DIGEST}/8`],
      },
    ]);
    expect(asked[0]!.by).toBe("ops");
    expect(asked[0]!.addresses.map(({ layer }) => layer)).toEqual([LAYER_ALL, 7, 8]);
  });

  test("a refused action is logged with the reason and the caller gets the error", async () => {
    const fault = new HearthError("ABORTED", "the agent is draining");
    const { work, noted } = kit(() => Promise.reject(fault));
    await expect(work.purge([{ digest: DIGEST }], SENDER)).rejects.toBe(fault);
    expect(noted).toMatchObject([
      { type: "Purge", blocks: 1, status: "rejected", reason: "aborted: the agent is draining" },
    ]);
  });

  test("a complete and a partial persist are logged", async () => {
    for (const durable of [true, false]) {
      const { work, noted } = kit(async () => [], durable);
      await work.persist(SENDER);
      const status = durable ? "ok" : "partial";
      expect(noted).toMatchObject([{ type: "Persist", blocks: null, status }]);
      expect(noted[0]!.counts).toEqual({ written: 3, skipped: 0 });
    }
  });
});
