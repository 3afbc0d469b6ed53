import { HearthError, messageOf, parseJson } from "../../core/index.ts";
import { LIMITS } from "./trace.ts";

export interface Line {
  /** Line number, counted from 1. */
  readonly number: number;
  readonly text: string;
}

/**
 * Yields the lines of a plain, gzip or Zstandard file (detected by its first bytes), without blank
 * lines. Keeps only one line and one piece of the file in memory. Throws TRACE_INVALID if the file
 * cannot be read, its compression is broken or ends early, or a line is too long or not UTF-8.
 */
export async function* readLines(path: string): AsyncGenerator<Line, void, void> {
  const source = (await openSource(path)).getReader();
  const decoder = new TextDecoder("utf-8", { fatal: true });
  let number = 0;
  let rest: Uint8Array[] = [];
  let restBytes = 0;
  const take = (last: Uint8Array): string => {
    number++;
    const bytes = rest.length === 0 ? last : Buffer.concat([...rest, last]);
    rest = [];
    restBytes = 0;
    return decodeLine(decoder, bytes, path, number);
  };
  try {
    while (true) {
      const piece = await nextPiece(source, path, number + 1);
      if (piece === null) break;
      let start = 0;
      let end = piece.indexOf(0x0a);
      while (end >= 0) {
        checkLength(restBytes + end - start, path, number + 1);
        const text = take(piece.subarray(start, end));
        if (text !== "") yield { number, text };
        start = end + 1;
        end = piece.indexOf(0x0a, start);
      }
      if (start === piece.length) continue;
      rest.push(piece.subarray(start));
      restBytes += piece.length - start;
      checkLength(restBytes, path, number + 1);
    }
    if (restBytes > 0) {
      const text = take(new Uint8Array(0));
      if (text !== "") yield { number, text };
    }
  } finally {
    // A failed stream throws its error again here; the reader of the lines has already received it.
    await source.cancel().catch(() => undefined);
  }
}

function checkLength(bytes: number, path: string, line: number): void {
  if (bytes > LIMITS.lineBytesMax)
    throw refuse(`${path}:${line}: the line exceeds ${LIMITS.lineBytesMax} bytes`);
}

function decodeLine(decoder: TextDecoder, bytes: Uint8Array, path: string, line: number): string {
  try {
    return decoder.decode(bytes).trim();
  } catch (thrown) {
    throw refuse(`${path}:${line}: the line is not UTF-8`, thrown);
  }
}

async function nextPiece(
  source: { read(): Promise<{ done: boolean; value?: Uint8Array | undefined }> },
  path: string,
  line: number,
): Promise<Uint8Array | null> {
  try {
    const next = await source.read();
    return next.value ?? null;
  } catch (thrown) {
    throw refuse(`${path}:${line}: cannot be read or decompressed: ${messageOf(thrown)}`, thrown);
  }
}

/**
 * Opens a stream of decompressed bytes. Uses `Bun.file` and web streams instead of node's, because
 * they open files inside the executable, notice a Zstandard file that ends early, and accept
 * windows of up to 128 MiB without an option.
 */
async function openSource(path: string): Promise<ReadableStream<Uint8Array>> {
  const file = Bun.file(path);
  const head = await file
    .slice(0, 4)
    .bytes()
    .catch((thrown: unknown) => {
      throw refuse(`${path}: cannot be read: ${messageOf(thrown)}`, thrown);
    });
  const compression = compressionOf(head);
  if (compression === null) return file.stream();
  return file.stream().pipeThrough(new DecompressionStream(compression));
}

function compressionOf(head: Uint8Array): "gzip" | "zstd" | null {
  if (head[0] === 0x1f && head[1] === 0x8b) return "gzip";
  if (head[0] === 0x28 && head[1] === 0xb5 && head[2] === 0x2f && head[3] === 0xfd) return "zstd";
  return null;
}

export type Fields = Readonly<Record<string, unknown>>;

/** Returns an error about a line. `atLine` adds the file and the line number. */
export function refuse(what: string, cause?: unknown): HearthError {
  return new HearthError("TRACE_INVALID", what, cause === undefined ? {} : { cause });
}

/** Runs `read` and adds the file and line number to its errors. */
export function atLine<T>(path: string, line: number, read: () => T): T {
  try {
    return read();
  } catch (thrown) {
    if (!(thrown instanceof HearthError) || thrown.code !== "TRACE_INVALID") throw thrown;
    throw refuse(`${path}:${line}: ${thrown.message}`, thrown);
  }
}

/** Formats a value for a message, shortened. */
export function show(value: unknown): string {
  if (Array.isArray(value)) return "a list";
  if (typeof value === "object" && value !== null) return "an object";
  const text = typeof value === "bigint" ? `${value}` : (JSON.stringify(value) ?? "nothing");
  return text.length <= 40 ? text : `${text.slice(0, 37)}...`;
}

/**
 * Parses a JSON object from one line. Checks its size first, so that a hostile line takes little
 * time.
 */
export function parseObject(text: string): Fields {
  checkShape(text, LIMITS.line);
  return objectFrom(text, JSON.parse);
}

const DIGITS = /[0-9]{400}/;

/**
 * Like `parseObject`, but returns integers beyond 2^53 as `bigint`. Slower, especially for very
 * long integers.
 */
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

/**
 * Checks that the text has at most the numbers of values, strings and containers in `most`, which
 * determine the time of parsing JSON.
 */
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

/** Returns a whole number from 0 to `max`; refuses any other value. */
export function wholeOf(value: unknown, what: string, max = Number.MAX_SAFE_INTEGER): number {
  if (!Number.isSafeInteger(value) || (value as number) < 0 || (value as number) > max)
    throw refuse(`${what} is ${show(value)}, not a whole number from 0 to ${max}`);
  return value as number;
}

const TIME_MAX = 1e15;

/**
 * Returns a time or a duration: a number that is neither negative nor beyond a plausible limit.
 * Refuses any other value.
 */
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

/**
 * Returns a list of whole numbers up to 2^53 with at most as many elements as a prompt may have
 * blocks. Errors name the list `what`.
 */
export function namesOf(value: unknown, what: string): readonly number[] {
  const list = listOf(value, what, LIMITS.requestBlocksMax);
  for (let i = 0; i < list.length; i++) {
    const name = list[i];
    if (!Number.isSafeInteger(name) || (name as number) < 0) wholeOf(name, `${what}[${i}]`);
  }
  return list as readonly number[];
}

/** Throws an error about a list whose length differs from the number of blocks of its prompt. */
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

/** Returns the number of tokens in the last of `blocks` blocks that cover a prompt. */
export function lastBlockTokens(inputTokens: number, blocks: number, blockTokens: number): number {
  return blocks === 0 ? 0 : Math.min(blockTokens, inputTokens - (blocks - 1) * blockTokens);
}
