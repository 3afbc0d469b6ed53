import { LAYER_ALL } from "../../core/index.ts";
import type { BlockItems } from "../../engine/index.ts";
import { createAddressBatch, createHandleBatch, type HandleBatch } from "../../store/index.ts";

/** What a mock engine's requests and answers are written in, reused from request to request. */
export interface EngineBatches {
  readonly capacity: number;
  readonly blocks: BlockItems;
  readonly handles: HandleBatch;
  readonly written: HandleBatch;
}

export function createEngineBatches(capacity: number): EngineBatches {
  const blocks = createAddressBatch(capacity);
  // Traces do not tell layers apart: a block's bytes are one object.
  blocks.layer = LAYER_ALL;
  return {
    capacity,
    blocks,
    handles: createHandleBatch(capacity),
    written: createHandleBatch(capacity),
  };
}
