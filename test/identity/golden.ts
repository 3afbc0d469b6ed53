import { fromHex } from "../../src/core/index.ts";

/** How golden files write a prompt: a list, a count from one number to another, or a formula. */
export type GoldenTokens =
  | { readonly list: readonly number[] }
  | { readonly from: number; readonly to: number }
  | {
      readonly count: number;
      readonly times: number;
      readonly plus: number;
      readonly modulo: number;
    };

export function tokensOf(golden: GoldenTokens): Uint32Array {
  if ("list" in golden) return Uint32Array.from(golden.list);
  if ("from" in golden) {
    const { from, to } = golden;
    return Uint32Array.from({ length: to - from + 1 }, (_, i) => from + i);
  }
  const { count, times, plus, modulo } = golden;
  return Uint32Array.from({ length: count }, (_, i) => (i * times + plus) % modulo);
}

export function bytesOf(hex: string): Uint8Array {
  const bytes = fromHex(hex);
  if (bytes === null) throw new Error(`not hex: ${hex}`);
  return bytes;
}

/** Values in golden files: `{bytes}` is a byte string in hex, `{int}` a number beyond a double. */
export type GoldenValue =
  | null
  | number
  | string
  | { readonly bytes: string }
  | { readonly int: string }
  | readonly GoldenValue[];
