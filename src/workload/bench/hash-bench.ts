import type { Native } from "../../native/index.ts";
import { median, rounded } from "./measure.ts";

const TOKENS = 15_000;
const BLOCK_TOKENS = 64;
const DIGEST_BYTES = 32;
const WARM_UP_RUNS = 50;

/**
 * Measures the block digests of a prompt, and a plain BLAKE3 of the same bytes. Reports medians of
 * `runs` runs, in which the two alternate, so that a busy machine slows both.
 */
export function benchHash(native: Native, options: { readonly runs: number }) {
  const tokens = Uint32Array.from({ length: TOKENS }, (_, index) => (index * 2_654_435_761) >>> 0);
  const bytes = new Uint8Array(tokens.buffer);
  const key = new Uint8Array(DIGEST_BYTES).fill(7);
  const digests = new Uint8Array(Math.floor(TOKENS / BLOCK_TOKENS) * DIGEST_BYTES);
  const prompt = () => native.prefixDigests(key, tokens, BLOCK_TOKENS, digests);
  const plain = () => native.blake3(bytes);

  for (let run = 0; run < WARM_UP_RUNS; run++) {
    prompt();
    plain();
  }
  const promptNs: number[] = [];
  const plainNs: number[] = [];
  for (let run = 0; run < options.runs; run++) {
    promptNs.push(timed(prompt));
    plainNs.push(timed(plain));
  }
  const promptUs = median(promptNs) / 1_000;
  const plainUs = median(plainNs) / 1_000;
  return {
    /** One plain BLAKE3 on one core, 10^9 bytes a second. */
    blake3_gbps: rounded(bytes.length / (plainUs * 1_000)),
    /** All block digests of the prompt, microseconds. */
    prompt_15k_us: promptUs,
    blocks: prompt(),
    /** One plain BLAKE3 over the prompt's bytes, microseconds. */
    plain_us: plainUs,
    /** `prompt_15k_us / plain_us`. */
    ratio: rounded(promptUs / plainUs),
  };
}

function timed(run: () => unknown): number {
  const started = Bun.nanoseconds();
  run();
  return Bun.nanoseconds() - started;
}
