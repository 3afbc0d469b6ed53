import { isWorkerId, type Json, parseJson, type WorkerId } from "../../core/index.ts";
import { ROUTER_MODES, type RouteOverrides, type RouteRequest } from "../../router/index.ts";

const NAMES = { tokens: ["tokens", "token_ids"], hashes: ["block_hashes", "hashes"] };
const TEXT_MAX = 1_024;
const LISTED_MAX = 4_096;
const NUMBER_MAX = 1e9;
const PHASES = ["prefill", "decode", "both"] as const;

/** Thrown for an invalid request. Its message is sent to the client. */
export class RequestError extends Error {}

/**
 * Parses a routing request from JSON. Throws RequestError if it is not valid. `id` states whether
 * the request may have a request id.
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
    throw new RequestError("body: tokens and block_hashes exclude each other");
  }
  if (tokens === null && hashes === null) {
    throw new RequestError("body: tokens or block_hashes are missing");
  }
  const given = new FieldReader(rest);
  const blockTokens = given.whole("block_tokens", 1, 65_536);
  const promptTokens = given.whole("prompt_tokens", 0, 2 ** 31);
  const request: Mutable<RouteRequest> = {
    // `model_name` is the name that Dynamo's indexer uses.
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
    throw new RequestError("body: block_tokens and prompt_tokens require block_hashes");
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
    throw new RequestError("body: overrides must be an object");
  }
  const given = new FieldReader(new Map(), new Map(Object.entries(value)), "overrides.");
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

/** Reads the fields of an object, each once. A null counts as absent. */
class FieldReader {
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
    return this.#refuse(name, `an integer from ${min} to ${max}`);
  }

  choice<const Word extends string>(name: string, choices: readonly Word[]): Word | undefined {
    const value = this.take(name);
    if (value === undefined) return undefined;
    const found = choices.find((word) => word === value);
    return found ?? this.#refuse(name, `one of ${choices.join(", ")}`);
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

  /**
   * Checks that all fields were read. Throws if one was not, because the client expects an unknown
   * field to have an effect.
   */
  mustBeEmpty(where: string): void {
    const [name] = [...this.#texts.keys(), ...this.#values.keys()];
    if (name === undefined) return;
    throw new RequestError(`${where}: unknown field ${JSON.stringify(name.slice(0, 40))}`);
  }

  #refuse(name: string, what: string): never {
    throw new RequestError(`body: ${this.#prefix}${name} is ${what}`);
  }
}

function isText(value: string): boolean {
  return value.length > 0 && value.length <= TEXT_MAX;
}

/**
 * Scans a JSON body with one very long list. The numbers of the list are decoded and checked
 * directly from the bytes, and hashes stay exact; all other fields are returned as text. It is as
 * fast as `JSON.parse` alone.
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

/** Maximum fields of a body. Valid requests have far fewer. */
const FIELDS_MAX = 64;
const UINT32_MAX = 0xffff_ffff;
/**
 * Maximum characters of a hash: the 20 digits of 2^64, a sign and quotes. Hex with its prefix is
 * shorter.
 */
const HASH_CHARACTERS_MAX = 24;
const HASH_TEXT = /^(?:-?[0-9]{1,20}|0x[0-9a-fA-F]{1,16})$/;
/** Matches a JSON integer of at most 20 digits. */
const HASH_NUMBER = /^-?(?:0|[1-9][0-9]{0,19})$/;
/**
 * Maximum 32-bit words of the buffer that is kept between requests. For longer lists a buffer is
 * allocated.
 */
const SCRATCH_WORDS_MAX = 2 ** 20;
const UINT64_MAX = (1n << 64n) - 1n;
const INT64_MIN = -(1n << 63n);

export interface ScannedBody {
  readonly tokens: Uint32Array | null;
  readonly hashes: BigUint64Array | null;
  /** JSON text of each other field, by name. */
  readonly rest: ReadonlyMap<string, string>;
}

/** Names of the field with the list of tokens and of the field with the list of hashes. */
interface ScanNames {
  readonly tokens: readonly string[];
  readonly hashes: readonly string[];
}

export class ScanError extends Error {}

/** Scans a body. Throws ScanError with the reason if the body is not valid. */
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
    this.#expect(Byte.openObject, "the body is not a JSON object");
    for (let isFirst = true; this.#peek() !== Byte.closeObject; isFirst = false) {
      if (!isFirst) this.#expect(Byte.comma, "a comma is missing between two fields");
      const name = this.#name();
      if (this.#names.tokens.includes(name) && tokens === null) tokens = this.#tokens(name);
      else if (this.#names.hashes.includes(name) && hashes === null) hashes = this.#hashes(name);
      else if (rest.has(name) || rest.size === FIELDS_MAX || this.#isList(name)) {
        throw new ScanError(`${name.slice(0, 40)} is given twice, or there are too many fields`);
      } else rest.set(name, this.#value());
    }
    this.#at++;
    if (this.#peek() !== -1) throw new ScanError("trailing text after the JSON object");
    return { tokens, hashes, rest };
  }

  #isList(name: string): boolean {
    return this.#names.tokens.includes(name) || this.#names.hashes.includes(name);
  }

  /** Returns the next byte that is not a blank, without consuming it. -1 at the end. */
  #peek(): number {
    for (; this.#at < this.#bytes.length; this.#at++) {
      const byte = this.#bytes[this.#at];
      if (!isBlank(byte)) return byte;
    }
    return -1;
  }

  #expect(byte: number, what: string): void {
    if (this.#peek() !== byte) throw new ScanError(what);
    this.#at++;
  }

  #name(): string {
    if (this.#peek() !== Byte.quote) throw new ScanError("a field name is missing");
    const text = this.#string();
    this.#expect(Byte.colon, "a colon is missing after a field name");
    return String(JSON.parse(text));
  }

  /** Consumes a string and returns its text with the quotes. */
  #string(): string {
    const start = this.#at++;
    for (; this.#at < this.#bytes.length; this.#at++) {
      const byte = this.#bytes[this.#at];
      if (byte === Byte.backslash) this.#at++;
      else if (byte < Byte.space) throw new ScanError("a string contains a control character");
      else if (byte === Byte.quote) return this.#text(start, ++this.#at);
    }
    throw new ScanError("a string is not closed");
  }

  #text(start: number, end: number): string {
    try {
      return UTF8.decode(this.#bytes.subarray(start, end));
    } catch {
      throw new ScanError("the body is not valid UTF-8");
    }
  }

  /** Consumes a value of any kind and returns its text, which is not checked to be valid JSON. */
  #value(): string {
    this.#peek();
    const start = this.#at;
    for (let depth = 0; this.#at < this.#bytes.length; ) {
      const byte = this.#bytes[this.#at];
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
    this.#expect(Byte.openList, `${name} is not a list`);
    // Upper bound of the numbers in the list: every number takes at least two bytes, including its
    // comma.
    const room = (this.#bytes.length - this.#at + 1) >> 1;
    const read = readTokens(this.#bytes, this.#at, scratch(room));
    if (read.what !== null) throw new ScanError(`${name} ${read.what}`);
    this.#at = read.end;
    return read.tokens;
  }

  #hashes(name: string): BigUint64Array {
    this.#expect(Byte.openList, `${name} is not a list`);
    const hashes: bigint[] = [];
    for (let isFirst = true; this.#peek() !== Byte.closeList; isFirst = false) {
      if (!isFirst)
        this.#expect(Byte.comma, `${name} must be a list of hashes separated by commas`);
      hashes.push(this.#hash(name));
    }
    this.#at++;
    return BigUint64Array.from(hashes);
  }

  /**
   * Parses a hash: a number, or a string of decimal digits or of hex with 0x. A negative number is
   * taken modulo 2^64.
   */
  #hash(name: string): bigint {
    const isString = this.#peek() === Byte.quote;
    const text = isString ? this.#string().slice(1, -1) : this.#value().trimEnd();
    const form = isString ? HASH_TEXT : HASH_NUMBER;
    if (text.length <= HASH_CHARACTERS_MAX && form.test(text)) {
      const value = BigInt(text);
      if (value >= INT64_MIN && value <= UINT64_MAX) return BigInt.asUintN(64, value);
    }
    throw new ScanError(`${name} must be a list of 64-bit hashes: numbers, "123" or "0x7b"`);
  }
}

const UTF8 = new TextDecoder("utf-8", { fatal: true });

let scratchWords = new Uint32Array(4_096);

/**
 * Returns a buffer for `words` numbers. It is shared between requests, so its content is valid only
 * while the current list is processed.
 */
function scratch(words: number): Uint32Array {
  if (words <= scratchWords.length) return scratchWords;
  const larger = new Uint32Array(words);
  if (words <= SCRATCH_WORDS_MAX) scratchWords = larger;
  return larger;
}

interface ReadTokens {
  readonly tokens: Uint32Array;
  /** Offset of the first byte behind the closing bracket. */
  readonly end: number;
  readonly what: string | null;
}

const NO_TOKENS = new Uint32Array(0);

/**
 * Reads integers and commas up to the closing bracket. A single loop over bytes, because this is
 * the hot path.
 */
function readTokens(bytes: Uint8Array, from: number, into: Uint32Array): ReadTokens {
  let count = 0;
  let value = -1;
  let digits = 0;
  let isDone = false;
  for (let at = from; at < bytes.length; at++) {
    const byte = bytes[at];
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
  const what = `must be a list of integers from 0 to ${UINT32_MAX}`;
  return { tokens: NO_TOKENS, end: from, what };
}

function isBlank(byte: number): boolean {
  return byte === Byte.space || byte === Byte.feed || byte === Byte.carriage || byte === Byte.tab;
}
