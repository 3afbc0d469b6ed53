import type { Place } from "./tree-walk.ts";

/** A place as people carry it from page to page; `run` tells it from places of other runs. */
export function placeText(run: number, place: Place): string {
  const words = Uint32Array.of(run, ...place);
  return Buffer.from(words.buffer).toString("base64url");
}

const WORDS_MIN = 5;
const WORDS_MAX = 64;

/** Null where it is none, or of another run. */
export function placeOf(run: number, text: string): Place | null {
  if (text.length > WORDS_MAX * 6) return null;
  const bytes = Buffer.from(text, "base64url");
  const count = bytes.length / 4;
  if (!Number.isInteger(count) || count < WORDS_MIN || count > WORDS_MAX) return null;
  const words = Array.from({ length: count }, (_, at) => bytes.readUInt32LE(at * 4));
  return words.shift() === run && words.length % 2 === 0 ? words : null;
}
