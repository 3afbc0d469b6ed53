import { afterAll } from "bun:test";
import { describeNative, tempDir } from "../../support/index.ts";
import { blockStoreContract } from "../block-store-contract.ts";
import { SLOT_BYTES, SsdHost, SsdKit, type SsdKitOptions } from "./ssd-kit.ts";

const SLOTS_MAX = 128;

/** SSD tiers that accept no block: engines must get the same answers as without one. */
const TIERS: Record<string, Partial<SsdKitOptions>> = {
  "smaller than a block": { capacityBytes: 4096 },
  "whose queue has no room": { writeQueueBytes: 0, writePolicy: "write_back" },
};

describeNative("the store above an SSD tier", () => {
  const host = new SsdHost();
  const root = tempDir();
  let folders = 0;
  afterAll(() => host[Symbol.asyncDispose]());

  for (const [kind, options] of Object.entries(TIERS)) {
    blockStoreContract(`above an SSD tier ${kind}`, async (slots) => {
      const dir = `${root}/${folders++}`;
      const kit = await SsdKit.open(host, { ...options, dir, slots });
      return {
        blockBytesMax: Math.min(kit.store.blockBytesMax, SLOTS_MAX * SLOT_BYTES),
        engine: (namespace, handlesMax) => kit.engine(namespace, handlesMax),
        expectNothingLeft: () => kit.expectNothingHeld(),
        [Symbol.asyncDispose]: () => kit[Symbol.asyncDispose](),
      };
    });
  }
});
