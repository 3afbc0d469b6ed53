import { assert } from "../core/index.ts";

/**
 * Text that is one Python object wherever it occurs, such as a constant of a program. Pickle writes
 * it once and refers to it afterwards.
 */
export interface SharedText {
  readonly shared: string;
}

/**
 * What vLLM puts into a block hash, in Python: None, int, str, bytes, and tuples of these. A
 * `Uint32Array` stands for a tuple of token ids.
 */
export type HashInput =
  | null
  | number
  | bigint
  | string
  | SharedText
  | Uint8Array
  | Uint32Array
  | readonly HashInput[];

/** Whole numbers of at most 64 bits, signed or not: what both encodings take. */
export function wholeNumber(value: number | bigint): bigint {
  assert(typeof value === "bigint" || Number.isSafeInteger(value), "a whole number");
  const whole = BigInt(value);
  assert(whole >= -(2n ** 63n) && whole < 2n ** 64n, "a number of at most 64 bits");
  return whole;
}

export function isSharedText(value: HashInput): value is SharedText {
  return typeof value === "object" && value !== null && "shared" in value;
}
