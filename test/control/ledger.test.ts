import { describe, expect, test } from "bun:test";
import { systemClock } from "../../src/core/index.ts";
import { openHoldLedger } from "../../src/store/index/index.ts";
import { withTempDir } from "../support/index.ts";
import { PlaneKit } from "./plane-kit.ts";

const PIN = { type: "Cache", block_hashes: [-1n, "zz"], pin: true };
const MACHINE = "0123456789abcdef0123456789abcdef";

async function opened(folder: string, incarnation: bigint) {
  const owner = { worker: "w1", machine: MACHINE };
  return openHoldLedger({ folder, incarnation, owner, clock: systemClock });
}

describe("commands in a ledger on disk", () => {
  test("are known after a restart, with their receipts and numbers", async () => {
    await withTempDir(async (folder) => {
      const command = { ...PIN, id: "c-1", issuer: "router é", epoch: 2n ** 40n };
      const before = await opened(folder, 1n);
      const kit = new PlaneKit(before);
      const first = await kit.send({ ...command, seq: 2n ** 40n - 1n });
      // Committed when it was answered: nothing is left to be written at the end.
      expect(before.state.pending).toBe(0);
      await before[Symbol.asyncDispose]();

      const after = await opened(folder, 2n);
      const restarted = new PlaneKit(after);
      const again = await restarted.send({ ...command, seq: 2n ** 40n - 1n });
      expect(again).toEqual({ ...first, duplicate: true });
      expect(again.blocks[0]!.block).toBe(-1);
      expect(await restarted.word({ ...command, id: "c-2", seq: 2n ** 40n - 1n })).toBe("stale");
      expect(await restarted.word({ ...command, id: "c-2", seq: 2n ** 40n })).toBe("partial");
      expect(await restarted.word({ ...command, id: "c-3", epoch: 7 })).toBe("fenced");
      expect(restarted.lifecycle.calls).toHaveLength(1);
      await after[Symbol.asyncDispose]();
    });
  });
});
