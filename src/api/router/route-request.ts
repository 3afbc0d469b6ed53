import { isWorkerId, type Json, parseJson, type WorkerId } from "../../core/index.ts";
import { ROUTER_MODES, type RouteOverrides, type RouteRequest } from "../../router/index.ts";

const NAMES = { tokens: ["tokens", "token_ids"], hashes: ["block_hashes", "hashes"] };
const TEXT_MAX = 1_024;
const LISTED_MAX = 4_096;
const NUMBER_MAX = 1e9;
const PHASES = ["prefill", "decode", "both"] as const;

/** Why a request is none, in words for whoever sent it. */
export class RequestError extends Error {}

/**
 * A prompt to be routed, as JSON has it. Throws RequestError where it is none. `id`: whether a
 * request id may be in it.
 */
export function readRouteRequest(bytes: Uint8Array): RouteRequest {
  try {
    return requestOf(scanBody(bytes, NAMES));
  } catch (thrown) {
    if (thrown instanceof ScanError || thrown instanceof SyntaxError) {
      throw new RequestError(`body: ${thrown.message.slice(0, 200)}`);
    }
    throw thrown;
  }
}

type Mutable<T> = { -readonly [Name in keyof T]: T[Name] };

function requestOf({ tokens, hashes, rest }: ScannedBody): RouteRequest {
  if (tokens !== null && hashes !== null) {
    throw new RequestError("body: a prompt is tokens or block_hashes, not both");
  }
  if (tokens === null && hashes === null) {
    throw new RequestError("body: tokens or block_hashes are missing");
  }
  const given = new Members(rest);
  const blockTokens = given.whole("block_tokens", 1, 65_536);
  const promptTokens = given.whole("prompt_tokens", 0, 2 ** 31);
  const request: Mutable<RouteRequest> = {
    // The indexer of the origin has it under its longer name.
    model: given.text("model") ?? given.text("model_name") ?? missing("model"),
    prompt:
      tokens !== null
        ? { kind: "tokens", tokens }
        : {
            kind: "hashes",
            hashes: hashes ?? new BigUint64Array(0),
            ...(blockTokens === undefined ? {} : { blockTokens }),
            ...(promptTokens === undefined ? {} : { tokens: promptTokens }),
          },
  };
  if (tokens !== null && (blockTokens ?? promptTokens) !== undefined) {
    throw new RequestError("body: block_tokens and prompt_tokens belong to block_hashes");
  }
  given.put(request, "requestId", given.text("request_id"));
  given.put(request, "loraName", given.text("lora_name"));
  given.put(request, "cacheSalt", given.text("cache_salt"));
  given.put(request, "sessionId", given.text("session_id"));
  given.put(request, "priority", given.number("priority", -NUMBER_MAX, NUMBER_MAX));
  const expected = given.whole("expected_output_tokens", 0, 2 ** 31);
  given.put(request, "expectedOutputTokens", expected);
  given.put(request, "phase", given.choice("phase", PHASES));
  given.put(request, "overrides", overridesOf(given.take("overrides")));
  given.mustBeEmpty("body");
  return request;
}

function missing(name: string): never {
  throw new RequestError(`body: ${name} is missing`);
}

function overridesOf(value: Json | undefined): RouteOverrides | undefined {
  if (value === undefined) return undefined;
  if (typeof value !== "object" || value === null || Array.isArray(value)) {
    throw new RequestError("body: overrides is an object");
  }
  const given = new Members(new Map(), new Map(Object.entries(value)), "overrides.");
  const overrides: Mutable<RouteOverrides> = {};
  const weight = given.number("overlap_score_weight", 0, NUMBER_MAX);
  given.put(overrides, "overlapScoreWeight", weight);
  given.put(overrides, "temperature", given.number("temperature", 0, NUMBER_MAX));
  given.put(overrides, "mode", given.choice("mode", ROUTER_MODES));
  given.put(overrides, "worker", given.worker("worker"));
  given.put(overrides, "rank", given.whole("rank", 0, 65_535));
  given.put(overrides, "allowed", given.workers("allowed"));
  given.put(overrides, "excluded", given.workers("excluded"));
  given.put(overrides, "seed", given.whole("seed", 0, 0xffff_ffff));
  given.mustBeEmpty("body: overrides");
  return overrides;
}

/** Members of an object, each taken once; null is as good as absent. */
class Members {
  readonly #texts: Map<string, string>;
  readonly #values: Map<string, Json>;
  readonly #prefix: string;

  constructor(texts: ReadonlyMap<string, string>, values = new Map<string, Json>(), prefix = "") {
    this.#texts = new Map(texts);
    this.#values = values;
    this.#prefix = prefix;
  }

  take(name: string): Json | undefined {
    const text = this.#texts.get(name);
    const value = text === undefined ? this.#values.get(name) : parseJson(text);
    this.#texts.delete(name);
    this.#values.delete(name);
    return value ?? undefined;
  }

  put<T, Name extends keyof T>(into: T, name: Name, value: T[Name] | undefined): void {
    if (value !== undefined) into[name] = value;
  }

  text(name: string): string | undefined {
    const value = this.take(name);
    if (value === undefined || (typeof value === "string" && isText(value))) return value;
    return this.#refuse(name, `a string of 1 to ${TEXT_MAX} characters`);
  }

  number(name: string, min: number, max: number): number | undefined {
    const value = this.take(name);
    if (value === undefined) return undefined;
    if (typeof value === "number" && value >= min && value <= max) return value;
    return this.#refuse(name, `a number from ${min} to ${max}`);
  }

  whole(name: string, min: number, max: number): number | undefined {
    const value = this.number(name, min, max);
    if (value === undefined || Number.isInteger(value)) return value;
    return this.#refuse(name, `a whole number from ${min} to ${max}`);
  }

  choice<const Word extends string>(name: string, words: readonly Word[]): Word | undefined {
    const value = this.take(name);
    if (value === undefined) return undefined;
    const found = words.find((word) => word === value);
    return found ?? this.#refuse(name, `one of ${words.join(", ")}`);
  }

  worker(name: string): WorkerId | undefined {
    const value = this.take(name);
    if (value === undefined) return undefined;
    return typeof value === "string" && isWorkerId(value)
      ? value
      : this.#refuse(name, "a worker id");
  }

  workers(name: string): readonly WorkerId[] | undefined {
    const value = this.take(name);
    if (value === undefined) return undefined;
    const isList = Array.isArray(value) && value.length <= LISTED_MAX;
    const ids = isList ? value.map(String) : [];
    if (isList && ids.every(isWorkerId)) return ids;
    return this.#refuse(name, `a list of worker ids, ${LISTED_MAX} at most`);
  }

  /** A name that means nothing here was meant to mean something. */
  mustBeEmpty(where: string): void {
    const [name] = [...this.#texts.keys(), ...this.#values.keys()];
    if (name === undefined) return;
    throw new RequestError(`${where}: there is no ${JSON.stringify(name.slice(0, 40))}`);
  }

  #refuse(name: string, what: string): never {
    throw new RequestError(`body: ${this.#prefix}${name} is ${what}`);
  }
}

function isText(value: string): boolean {
  return value.length > 0 && value.length <= TEXT_MAX;
}

/**
 * The object of a body in which one list may be very long. Its numbers are read straight from the
 * bytes, checked on the way, and hashes stay exact; the other members are left as text. It takes as
 * long as `JSON.parse` alone.
 */

const Byte = {
  tab: 0x09,
  feed: 0x0a,
  carriage: 0x0d,
  space: 0x20,
  quote: 0x22,
  comma: 0x2c,
  minus: 0x2d,
  zero: 0x30,
  nine: 0x39,
  colon: 0x3a,
  openList: 0x5b,
  backslash: 0x5c,
  closeList: 0x5d,
  openObject: 0x7b,
  closeObject: 0x7d,
} as const;

/** Members of one body are few; more is none that was meant for us. */
const MEMBERS_MAX = 64;
const UINT32_MAX = 0xffff_ffff;
/** 20 digits of 2^64, a sign, quotes; hex with its prefix is shorter. */
const HASH_CHARACTERS_MAX = 24;
const HASH_TEXT = /^(?:-?[0-9]{1,20}|0x[0-9a-fA-F]{1,16})$/;
/** As JSON has numbers. */
const HASH_NUMBER = /^-?(?:0|[1-9][0-9]{0,19})$/;
/** Kept between requests; a longer list gets memory of its own. */
const SCRATCH_WORDS_MAX = 2 ** 20;
const UINT64_MAX = (1n << 64n) - 1n;
const INT64_MIN = -(1n << 63n);

export interface ScannedBody {
  readonly tokens: Uint32Array | null;
  readonly hashes: BigUint64Array | null;
  /** JSON text of every other member, by name. */
  readonly rest: ReadonlyMap<string, string>;
}

/** What of a body is a list of tokens, and what one of hashes. */
interface ScanNames {
  readonly tokens: readonly string[];
  readonly hashes: readonly string[];
}

export class ScanError extends Error {}

/** Throws ScanError, saying what is wrong. */
export function scanBody(bytes: Uint8Array, names: ScanNames): ScannedBody {
  return new Scanner(bytes, names).read();
}

class Scanner {
  readonly #bytes: Uint8Array;
  readonly #names: ScanNames;
  #at = 0;

  constructor(bytes: Uint8Array, names: ScanNames) {
    this.#bytes = bytes;
    this.#names = names;
  }

  read(): ScannedBody {
    let tokens: Uint32Array | null = null;
    let hashes: BigUint64Array | null = null;
    const rest = new Map<string, string>();
    this.#expect(Byte.openObject, "the body is no JSON object");
    for (let isFirst = true; this.#peek() !== Byte.closeObject; isFirst = false) {
      if (!isFirst) this.#expect(Byte.comma, "a comma is missing between two members");
      const name = this.#name();
      if (this.#names.tokens.includes(name) && tokens === null) tokens = this.#tokens(name);
      else if (this.#names.hashes.includes(name) && hashes === null) hashes = this.#hashes(name);
      else if (rest.has(name) || rest.size === MEMBERS_MAX || this.#isList(name)) {
        throw new ScanError(`${name.slice(0, 40)} is given twice, or there are too many members`);
      } else rest.set(name, this.#value());
    }
    this.#at++;
    if (this.#peek() !== -1) throw new ScanError("something follows the JSON object");
    return { tokens, hashes, rest };
  }

  #isList(name: string): boolean {
    return this.#names.tokens.includes(name) || this.#names.hashes.includes(name);
  }

  /** The next byte that is no blank, -1 at the end; it is not taken. */
  #peek(): number {
    for (; this.#at < this.#bytes.length; this.#at++) {
      const byte = this.#bytes[this.#at]!;
      if (!isBlank(byte)) return byte;
    }
    return -1;
  }

  #expect(byte: number, what: string): void {
    if (this.#peek() !== byte) throw new ScanError(what);
    this.#at++;
  }

  #name(): string {
    if (this.#peek() !== Byte.quote) throw new ScanError("the name of a member is missing");
    const text = this.#string();
    this.#expect(Byte.colon, "a colon is missing behind the name of a member");
    return String(JSON.parse(text));
  }

  /** A string with its quotes; stands behind it. */
  #string(): string {
    const start = this.#at++;
    for (; this.#at < this.#bytes.length; this.#at++) {
      const byte = this.#bytes[this.#at]!;
      if (byte === Byte.backslash) this.#at++;
      else if (byte < Byte.space) throw new ScanError("a string holds a control character");
      else if (byte === Byte.quote) return this.#text(start, ++this.#at);
    }
    throw new ScanError("a string is not closed");
  }

  #text(start: number, end: number): string {
    try {
      return UTF8.decode(this.#bytes.subarray(start, end));
    } catch {
      throw new ScanError("the body is not UTF-8");
    }
  }

  /** Text of a value of any kind, which may be no JSON; stands behind it. */
  #value(): string {
    this.#peek();
    const start = this.#at;
    for (let depth = 0; this.#at < this.#bytes.length; ) {
      const byte = this.#bytes[this.#at]!;
      if (byte === Byte.quote) {
        this.#string();
        continue;
      }
      const isClosing = byte === Byte.closeObject || byte === Byte.closeList;
      if (depth === 0 && (byte === Byte.comma || isClosing)) break;
      if (byte === Byte.openObject || byte === Byte.openList) depth++;
      else if (isClosing) depth--;
      this.#at++;
    }
    return this.#text(start, this.#at);
  }

  #tokens(name: string): Uint32Array {
    this.#expect(Byte.openList, `${name} is no list`);
    // There are no more than one for two bytes.
    const room = (this.#bytes.length - this.#at + 1) >> 1;
    const read = readTokens(this.#bytes, this.#at, scratch(room));
    if (read.what !== null) throw new ScanError(`${name} ${read.what}`);
    this.#at = read.end;
    return read.tokens;
  }

  #hashes(name: string): BigUint64Array {
    this.#expect(Byte.openList, `${name} is no list`);
    const hashes: bigint[] = [];
    for (let isFirst = true; this.#peek() !== Byte.closeList; isFirst = false) {
      if (!isFirst) this.#expect(Byte.comma, `${name} is a list of hashes, comma by comma`);
      hashes.push(this.#hash(name));
    }
    this.#at++;
    return BigUint64Array.from(hashes);
  }

  /** A number, or a string of decimal digits or of hex behind 0x; signed ones count modulo 2^64. */
  #hash(name: string): bigint {
    const isString = this.#peek() === Byte.quote;
    const text = isString ? this.#string().slice(1, -1) : this.#value().trimEnd();
    const form = isString ? HASH_TEXT : HASH_NUMBER;
    if (text.length <= HASH_CHARACTERS_MAX && form.test(text)) {
      const value = BigInt(text);
      if (value >= INT64_MIN && value <= UINT64_MAX) return BigInt.asUintN(64, value);
    }
    throw new ScanError(`${name} is a list of 64-bit hashes: numbers, "123" or "0x7b"`);
  }
}

const UTF8 = new TextDecoder("utf-8", { fatal: true });

let scratchWords = new Uint32Array(4_096);

/** Used from the first byte of one list to its last. */
function scratch(words: number): Uint32Array {
  if (words <= scratchWords.length) return scratchWords;
  const larger = new Uint32Array(words);
  if (words <= SCRATCH_WORDS_MAX) scratchWords = larger;
  return larger;
}

interface ReadTokens {
  readonly tokens: Uint32Array;
  /** Behind the bracket. */
  readonly end: number;
  readonly what: string | null;
}

const NO_TOKENS = new Uint32Array(0);

/** Whole numbers and commas up to the closing bracket. One loop over bytes: it is the hot one. */
function readTokens(bytes: Uint8Array, from: number, into: Uint32Array): ReadTokens {
  let count = 0;
  let value = -1;
  let digits = 0;
  let isDone = false;
  for (let at = from; at < bytes.length; at++) {
    const byte = bytes[at]!;
    if (byte >= Byte.zero && byte <= Byte.nine && !isDone) {
      if (value === 0) break;
      value = value === -1 ? byte - Byte.zero : value * 10 + byte - Byte.zero;
      if (++digits > 10) break;
    } else if (byte === Byte.comma || byte === Byte.closeList) {
      if (value === -1 && byte === Byte.closeList && count === 0) {
        return { tokens: NO_TOKENS, end: at + 1, what: null };
      }
      if (value === -1 || value > UINT32_MAX) break;
      into[count++] = value;
      if (byte === Byte.closeList) return { tokens: into.slice(0, count), end: at + 1, what: null };
      value = -1;
      digits = 0;
      isDone = false;
    } else if (isBlank(byte)) isDone = value !== -1;
    else break;
  }
  const what = `is a list of whole numbers from 0 to ${UINT32_MAX}`;
  return { tokens: NO_TOKENS, end: from, what };
}

function isBlank(byte: number): boolean {
  return byte === Byte.space || byte === Byte.feed || byte === Byte.carriage || byte === Byte.tab;
}
