import { mixHash } from "../../../observability/activity/index.ts";
import type { Trace } from "../../traces/index.ts";

/** One prompt of the trace: blocks from first to last, ids dense over the whole trace. */
export type Chain = Uint32Array;

/**
 * The prompts of a trace with each block cut into `parts`, so that chains are as long as they are
 * with smaller blocks; where they meet and part stays as it was.
 */
export async function chainsOf(trace: Trace, parts: number): Promise<Chain[]> {
  const chains: Chain[] = [];
  for await (const { blocks } of trace.requests()) {
    if (blocks.length === 0) continue;
    const chain = new Uint32Array(blocks.length * parts);
    for (let i = 0; i < chain.length; i++) {
      chain[i] = blocks[Math.floor(i / parts)]! * parts + (i % parts);
    }
    chains.push(chain);
  }
  return chains;
}

export function idsIn(chains: readonly Chain[]): number {
  let last = 0;
  for (const chain of chains) last = Math.max(last, chain.at(-1)!);
  return last + 1;
}

/**
 * Sequence hashes of copy `copy` of all blocks: other users with prompts of the same shape. What
 * prompts begin with (`shared` ids) is the same for all of them.
 */
export function hashesOfCopy(ids: number, copy: number, shared: ReadonlySet<number>) {
  const salt = BigInt(copy + 1) << 40n;
  return BigUint64Array.from({ length: ids }, (_, id) =>
    mixHash(BigInt(id + 1) + (shared.has(id) ? 0n : salt)),
  );
}

/** The first blocks of all prompts. */
export function firstBlocks(chains: readonly Chain[], parts: number): Set<number> {
  return new Set(chains.flatMap((chain) => [...chain.subarray(0, parts)]));
}
