import { type Native, nativeBuffer } from "../../src/native/index.ts";

const COUNTS_BYTES = 16_384;

/** Hits of each call since the plan was set. The plan `count` only counts. */
export function faultCounts(native: Native): Readonly<Record<string, number>> {
  const { bytes } = nativeBuffer(COUNTS_BYTES);
  const code = native.symbols.hearth_fault_counts(bytes, bytes.length);
  const length = native.check("hearth_fault_counts", code);
  const lines = new TextDecoder().decode(bytes.subarray(0, length)).split("\n");
  const counts: Record<string, number> = {};
  for (const line of lines) {
    const [name, count] = line.split(" ");
    if (name && count) counts[name] = Number(count);
  }
  return counts;
}
