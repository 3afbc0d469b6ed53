import { refuse } from "../lines.ts";
import { LIMITS } from "../trace.ts";

/**
 * Decodes `[k, start, n, start, n, …]`: the first k ids of the call before, then n consecutive ids
 * from each start. `length` is how many ids must come out; nothing is allocated for more.
 */
export function decodeRuns(
  code: readonly number[],
  previous: Uint32Array,
  length: number,
  what: string,
): Uint32Array {
  if (length > LIMITS.requestBlocksMax)
    throw refuse(`${what} stands for ${length} blocks, more than ${LIMITS.requestBlocksMax}`);
  if (code.length % 2 !== 1)
    throw refuse(`${what} is no run code: it has an even number of entries`);
  const keep = code[0]!;
  if (keep > previous.length || keep > length)
    throw refuse(`${what} repeats ${keep} ids of ${previous.length} for ${length} blocks`);
  const ids = new Uint32Array(length);
  ids.set(previous.subarray(0, keep));
  let at = keep;
  for (let i = 1; i < code.length; i += 2) {
    const start = code[i]!;
    const run = code[i + 1]!;
    if (run > length - at)
      throw refuse(`${what} decodes to more than the ${length} blocks of its call`);
    if (start + run > 2 ** 32) throw refuse(`${what} has ids beyond 32 bits`);
    for (let n = 0; n < run; n++) ids[at++] = start + n;
  }
  if (at !== length) throw refuse(`${what} decodes to ${at} ids, not the ${length} of its call`);
  return ids;
}
