import type { FlatTrace } from "./flat-trace.ts";

/**
 * A replacement policy in the laboratory: a cache of whole blocks, all of one size, fed with the
 * prompts of a trace. Blocks are dense numbers, so state is flat arrays. What holds for each
 * policy:
 *
 * - A request hits its leading blocks that are present when it arrives, up to the first that is
 *   not.
 * - Then all its blocks are used, from the last to the first (`lru-head-first` alone: from the
 *   first to the last). A block that is present, before or behind the first miss, is refreshed; one
 *   that is not is stored, and where the cache is full one block is evicted just before. That one
 *   may be of this very request, even one that was hit.
 * - A prompt longer than the cache goes through the same steps: what was stored last remains.
 *
 * `best` alone decides after the whole request, and may keep nothing of it. These rules were found
 * by experiment: they give the reference figures to four digits in all 243 cells. Evicting only
 * after the whole request does not (FIFO, LFU), nor does storing from the first block to the last
 * (FIFO, LFU).
 */
export interface LabPolicy {
  readonly name: string;
  /** An empty cache of `capacity` blocks, at least 1, for one run over `trace`. */
  open(trace: FlatTrace, capacity: number): LabCache;
}

export interface LabCache {
  /**
   * Serves the request whose blocks are `trace.blocks[from .. to)` and answers how many of them it
   * hit. Requests come in the order of the trace, each once.
   */
  serve(from: number, to: number): number;
}
