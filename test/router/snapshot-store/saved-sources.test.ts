import { expect, test } from "bun:test";
import type { WorkerId } from "../../../src/core/index.ts";
import {
  encodeState,
  readState,
  type SavedState,
  type TargetId,
} from "../../../src/router/index.ts";

test("a saved source keeps its key spaces, with the chain of their keys", () => {
  const worker = "gpu-01" as WorkerId;
  const namespaceKey = new Uint8Array(32).fill(7);
  const blocks = { kind: "blocks", model: "m", blockTokens: 16, namespaceKey } as const;
  const spaces = [
    { kind: "tokens", model: "m", blockTokens: 16 } as const,
    blocks,
    { ...blocks, chain: "vllm sha256 tagged vllm-none-hash" },
  ];
  const spec = { url: null, totalBlocks: null, batchTokensMax: null, role: "both" } as const;
  const state: SavedState = {
    ...{ indexFile: "index-1", wallMs: 5, targetsEnd: 1 },
    sources: [
      {
        source: { worker, rank: 0, incarnation: 3n },
        ...{ target: 0 as TargetId, sequence: 9, isDeviceKnown: false, spaces },
        spec: { ...spec, worker, rank: 0, model: "m", spaces },
      },
    ],
  };
  expect(readState(encodeState(state))).toEqual(state);
});
