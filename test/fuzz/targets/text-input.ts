import { type Random, randomBelow } from "../../../src/core/index.ts";

const decoder = new TextDecoder();

/** The input as the text that a file with these bytes would be read as. */
export function textOf(input: Uint8Array): string {
  return decoder.decode(input);
}

export function bytesOf(text: string): Uint8Array {
  return new Uint8Array(Buffer.from(text));
}

export function oneOf<T>(list: readonly T[], random: Random): T {
  return list[randomBelow(random, list.length)]!;
}

/** So many digits, the first not zero. */
export function digits(count: number, random: Random): string {
  const rest = Array.from({ length: count - 1 }, () => randomBelow(random, 10));
  return `${1 + randomBelow(random, 9)}${rest.join("")}`;
}
