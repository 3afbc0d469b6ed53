import type { WorkerId } from "../../src/core/index.ts";
import type { WorkerSpec } from "../../src/router/index.ts";

/** A worker of model `m` that serves whole requests. */
export function specOf(worker: string, changed: Partial<WorkerSpec> = {}): WorkerSpec {
  return {
    worker: worker as WorkerId,
    rank: 0,
    model: "m",
    role: "both",
    url: null,
    totalBlocks: null,
    batchTokensMax: null,
    spaces: [],
    ...changed,
  };
}
