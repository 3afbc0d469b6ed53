import fc from "fast-check";
import { mixHash } from "../../src/observability/activity/index.ts";

const MASK = (1n << 64n) - 1n;

/** Sequence hashes of a prompt whose blocks are named by numbers: equal prefixes, equal hashes. */
export function chainOf(names: readonly number[]): BigUint64Array {
  let parent = 0n;
  return BigUint64Array.from(names, (name) => {
    parent = mixHash((parent * 31n + BigInt(name) + 1n) & MASK);
    return parent;
  });
}

/** Prompts that often share prefixes. */
export const promptNames = fc.array(fc.nat(2), { maxLength: 9 });
