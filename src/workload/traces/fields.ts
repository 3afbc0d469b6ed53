import { HearthError, messageOf, parseJson } from "../../core/index.ts";
import { LIMITS } from "./trace.ts";

export type Fields = Readonly<Record<string, unknown>>;

/** A refusal of what a line says. The reader adds file and line (`atLine`). */
export function refuse(what: string, cause?: unknown): HearthError {
  return new HearthError("TRACE_INVALID", what, cause === undefined ? {} : { cause });
}

/** Runs `read`; what it refuses is refused with file and line in front. */
export function atLine<T>(path: string, line: number, read: () => T): T {
  try {
    return read();
  } catch (thrown) {
    if (!(thrown instanceof HearthError) || thrown.code !== "TRACE_INVALID") throw thrown;
    throw refuse(`${path}:${line}: ${thrown.message}`, thrown);
  }
}

/** A value as it may stand in a message: short, whatever was in the file. */
export function show(value: unknown): string {
  if (Array.isArray(value)) return "a list";
  if (typeof value === "object" && value !== null) return "an object";
  const text = typeof value === "bigint" ? `${value}` : (JSON.stringify(value) ?? "nothing");
  return text.length <= 40 ? text : `${text.slice(0, 37)}...`;
}

/** A JSON object from one line, its size checked before the parser spends time on it. */
export function parseObject(text: string): Fields {
  checkShape(text, LIMITS.line);
  return objectFrom(text, JSON.parse);
}

const DIGITS = /[0-9]{400}/;

/** The same with integers beyond 2^53 as `bigint`: dearer, and most so for very long ones. */
export function parseObjectLossless(text: string): Fields {
  checkShape(text, LIMITS.losslessLine);
  if (DIGITS.test(text)) throw refuse("a number of more than 400 digits");
  return objectFrom(text, parseJson);
}

function objectFrom(text: string, parse: (text: string) => unknown): Fields {
  let value: unknown;
  try {
    value = parse(text);
  } catch (thrown) {
    throw refuse(`not JSON: ${messageOf(thrown).slice(0, 120)}`);
  }
  return objectOf(value, "the line");
}

const SMALL_LINE = 16_384;

interface Shape {
  readonly values: number;
  readonly strings: number;
  readonly containers: number;
}

/** Counts what makes JSON dear to parse; a small line is cheap whatever it holds. */
function checkShape(text: string, most: Shape): void {
  if (text.length <= SMALL_LINE) return;
  if (text.length > LIMITS.lineBytesMax)
    throw refuse(`the line exceeds ${LIMITS.lineBytesMax} bytes`);
  let commas = 0;
  let quotes = 0;
  let containers = 0;
  for (let i = 0; i < text.length; i++) {
    const c = text.charCodeAt(i);
    if (c === 0x2c) commas++;
    else if (c === 0x22) quotes++;
    else if (c === 0x5b || c === 0x7b) containers++;
  }
  if (commas > most.values) throw refuse(`more than ${most.values} values in one line`);
  if (quotes > 2 * most.strings) throw refuse(`more than ${most.strings} strings in one line`);
  if (containers > most.containers)
    throw refuse(`more than ${most.containers} objects and lists in one line`);
}

export function objectOf(value: unknown, what: string): Fields {
  if (typeof value !== "object" || value === null || Array.isArray(value))
    throw refuse(`${what} is not a JSON object`);
  return value as Fields;
}

export function listOf(value: unknown, what: string, lengthMax: number): readonly unknown[] {
  if (!Array.isArray(value)) throw refuse(`${what} is not a list`);
  if (value.length > lengthMax)
    throw refuse(`${what} has ${value.length} entries, more than ${lengthMax}`);
  return value;
}

/** A whole number from 0 to `max`. */
export function wholeOf(value: unknown, what: string, max = Number.MAX_SAFE_INTEGER): number {
  if (!Number.isSafeInteger(value) || (value as number) < 0 || (value as number) > max)
    throw refuse(`${what} is ${show(value)}, not a whole number from 0 to ${max}`);
  return value as number;
}

const TIME_MAX = 1e15;

/** A point in time or a duration: a number that is neither negative nor absurd. */
export function timeOf(value: unknown, what: string): number {
  if (typeof value !== "number" || !(value >= 0 && value <= TIME_MAX))
    throw refuse(`${what} is ${show(value)}, not a time from 0 to ${TIME_MAX}`);
  return value;
}

export function textOf(value: unknown, what: string): string {
  if (typeof value !== "string" || value.length > 1_000)
    throw refuse(`${what} is ${show(value)}, not a short text`);
  return value;
}

export const TOKENS_MAX = 2 ** 31;

export function tokensOf(value: unknown, what: string): number {
  return wholeOf(value, what, TOKENS_MAX);
}

export function blockTokensOf(value: unknown, what: string): number {
  const tokens = wholeOf(value, what, 2 ** 20);
  if (tokens === 0) throw refuse(`${what} is 0`);
  return tokens;
}

/** Whole numbers up to 2^53 under `what`, as many as a prompt may have blocks. */
export function namesOf(value: unknown, what: string): readonly number[] {
  const list = listOf(value, what, LIMITS.requestBlocksMax);
  for (let i = 0; i < list.length; i++) {
    const name = list[i];
    if (!Number.isSafeInteger(name) || (name as number) < 0) wholeOf(name, `${what}[${i}]`);
  }
  return list as readonly number[];
}

/** A list that has not one entry for each block of its prompt. */
export function refuseCount(
  list: string,
  entries: number,
  tokens: number,
  blocks: number,
  blockTokens: number,
): HearthError {
  const prompt = `${tokens} tokens make ${blocks} blocks of ${blockTokens}`;
  return refuse(`${list} has ${entries} entries, but ${prompt}`);
}

/** How many tokens stand in the last of `blocks` blocks that cover a prompt. */
export function lastBlockTokens(inputTokens: number, blocks: number, blockTokens: number): number {
  return blocks === 0 ? 0 : Math.min(blockTokens, inputTokens - (blocks - 1) * blockTokens);
}
