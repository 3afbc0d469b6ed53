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
});
