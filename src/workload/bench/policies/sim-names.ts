import { DIGEST_BYTES } from "../../../core/index.ts";
import { type BlockNamer, PromptChain } from "../../../router/index.ts";
import type { SimTrace } from "./sim-trace.ts";

const GROUP = "simulated";
/** Where a block's number stands in its digest: as big endian, so that hex shows it. */
const NUMBER_AT = 8;

/** Made-up digests that tell the block's number; a request's id is its place in the trace. */
export function createSimNamer(trace: SimTrace): BlockNamer {
  return {
    group: () => GROUP,
    chain(_target, { requestId }, output) {
      const request = Number(requestId);
      const from = request === 0 ? 0 : trace.ends[request - 1]!;
      const prompt = trace.blocks.subarray(from, trace.ends[request]!);
      const answer = output === undefined ? [] : outputBlocks(trace, request);
      const digests = new Uint8Array((prompt.length + answer.length) * DIGEST_BYTES);
      const view = new DataView(digests.buffer);
      const write = (block: number, at: number) => {
        view.setUint32(at, mixed(block, 0x85eb_ca6b), true);
        view.setUint32(at + 4, mixed(block, 0xc2b2_ae35), true);
        view.setUint32(at + NUMBER_AT, block);
      };
      for (const [at, block] of prompt.entries()) write(block, at * DIGEST_BYTES);
      for (const [at, block] of answer.entries()) write(block, (prompt.length + at) * DIGEST_BYTES);
      return new PromptChain(GROUP, [{ blockTokens: trace.blockTokens, digests }]);
    },
  };
}

/** The numbers of an answer's full blocks. */
export function outputBlocks({ outputFrom }: SimTrace, request: number): number[] {
  const from = outputFrom[request]!;
  return Array.from({ length: outputFrom[request + 1]! - from }, (_, at) => from + at);
}

/** The block that a command names. */
export function blockOf(name: unknown): number {
  return Number.parseInt(String(name).slice(2 * NUMBER_AT, 2 * NUMBER_AT + 8), 16);
}

/** The finaliser of MurmurHash3 (Austin Appleby, public domain). */
function mixed(block: number, seed: number): number {
  let hash = (block + 1) ^ seed;
  hash = Math.imul(hash ^ (hash >>> 16), 0x85eb_ca6b);
  hash = Math.imul(hash ^ (hash >>> 13), 0xc2b2_ae35);
  return (hash ^ (hash >>> 16)) >>> 0;
}
