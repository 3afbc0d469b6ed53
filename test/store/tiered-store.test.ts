import { expect, test } from "bun:test";
import { describeNative } from "../support/index.ts";
import { blockStoreContract } from "./block-store-contract.ts";
import { openStoreKit } from "./store-kit.ts";

const SLOT_BYTES = 8192;

describeNative("RAM store", () => {
  blockStoreContract("RAM store", (slots) => {
    const kit = openStoreKit({ arenaBytes: slots * SLOT_BYTES, gpuWindowBlocks: 16 });
    return {
      blockBytesMax: kit.store.blockBytesMax,
      engine: kit.engine,
      expectNothingLeft: kit.expectNothingLeft,
      [Symbol.asyncDispose]: () => kit[Symbol.asyncDispose](),
    };
  });

  test("takes blocks up to a share of its arena, so that several sizes find room", async () => {
    const MIB = 2 ** 20;
    const largest = async (mib: number) => {
      await using kit = openStoreKit({ arenaBytes: mib * MIB });
      return kit.store.blockBytesMax / MIB;
    };
    expect(await largest(8)).toBe(8);
    expect(await largest(1_024)).toBe(64);
    expect(await largest(16_384)).toBe(256);
  });
});
