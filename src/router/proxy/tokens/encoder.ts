import type { Tokenizer } from "@huggingface/tokenizers";
import { HearthError } from "../../../core/index.ts";

export interface Truncation {
  /** Maximum number of tokens to keep. */
  readonly tokens: number;
  /** Side from which tokens are removed. Null: the left, as in vLLM. */
  readonly side: "left" | "right" | null;
}

export interface EncodeOptions {
  /** If true, the tokenizer adds its special tokens around the text. */
  readonly addSpecial: boolean;
  readonly truncation: Truncation | null;
}

/**
 * Tokenises text. Splits it into pieces and caches the pieces' tokens if the result is the same.
 */
export class Encoder {
  readonly #tokenizer: Tokenizer;
  readonly #cutter: PieceCutter | null;
  readonly #cache: PieceCache;

  constructor(tokenizer: Tokenizer, cutter: PieceCutter | null, cacheTokens: number) {
    [this.#tokenizer, this.#cutter] = [tokenizer, cutter];
    this.#cache = new PieceCache(cacheTokens);
  }

  encode(text: string, { addSpecial, truncation }: EncodeOptions): Uint32Array<ArrayBuffer> {
    if (!text.isWellFormed()) {
      throw new HearthError("UNSUPPORTED", "the text has an unpaired surrogate");
    }
    const tokens = addSpecial ? this.#withSpecial(text) : this.#plain(text);
    if (truncation === null || tokens.length <= truncation.tokens) return tokens;
    if (!addSpecial || truncation.side !== null) return cut(tokens, truncation);
    return this.#cutInside(text, tokens, truncation);
  }

  #withSpecial(text: string): Uint32Array<ArrayBuffer> {
    return checked(this.#tokenizer.encode(text, { add_special_tokens: true }).ids);
  }

  #plain(text: string): Uint32Array<ArrayBuffer> {
    if (this.#cutter === null) {
      return checked(this.#tokenizer.encode(text, { add_special_tokens: false }).ids);
    }
    const lists = this.#cutter(text).map((piece) => this.#piece(piece));
    const tokens = new Uint32Array(lists.reduce((sum, list) => sum + list.length, 0));
    let at = 0;
    for (const list of lists) {
      tokens.set(list, at);
      at += list.length;
    }
    return tokens;
  }

  /**
   * Truncates like the tokenizer: removes tokens of the text and keeps the special tokens around
   * it.
   */
  #cutInside(
    text: string,
    whole: Uint32Array<ArrayBuffer>,
    truncation: Truncation,
  ): Uint32Array<ArrayBuffer> {
    const inner = this.#plain(text);
    const around = whole.length - inner.length;
    const start = startOf(whole, inner);
    if (start < 0 || around > truncation.tokens) return cut(whole, truncation);
    const kept = cut(inner, { ...truncation, tokens: truncation.tokens - around });
    const end = whole.subarray(start + inner.length);
    return Uint32Array.from([...whole.subarray(0, start), ...kept, ...end]);
  }

  #piece(piece: string): readonly number[] {
    const known = this.#cache.get(piece);
    if (known !== null) return known;
    const { ids } = this.#tokenizer.encode(piece, { add_special_tokens: false });
    checked(ids);
    this.#cache.put(piece, ids);
    return ids;
  }
}

function cut(tokens: Uint32Array<ArrayBuffer>, { tokens: kept, side }: Truncation) {
  return side === "right" ? tokens.slice(0, kept) : tokens.slice(tokens.length - kept);
}

function startOf(whole: Uint32Array, inner: Uint32Array): number {
  for (let start = 0; start <= whole.length - inner.length; start++) {
    if (inner.every((token, i) => whole[start + i] === token)) return start;
  }
  return -1;
}

/**
 * Converts token ids. Throws UNSUPPORTED for undefined ids: tokenizers without an unknown token
 * return them for text that is not in the vocabulary.
 */
function checked(ids: readonly (number | undefined)[]): Uint32Array<ArrayBuffer> {
  if (ids.some((id) => id === undefined)) {
    throw new HearthError("UNSUPPORTED", "the vocabulary has no token for a part of the text");
  }
  return Uint32Array.from(ids as readonly number[]);
}

/**
 * Splits a text before and after each special token, so that each piece can be tokenised and cached
 * alone. When a conversation continues, only its latest messages are new pieces.
 */
type PieceCutter = (text: string) => string[];

type Fields = Readonly<Record<string, unknown>>;

/**
 * Types of normalizers and pre-tokenizers whose result for a piece does not depend on the text
 * before it.
 */
const CONTEXT_FREE: ReadonlySet<string> = new Set([
  "ByteLevel",
  "Split",
  "Digits",
  "Punctuation",
  "Whitespace",
  "WhitespaceSplit",
  "NFC",
  "NFKC",
  "NFD",
  "NFKD",
  "Lowercase",
  "StripAccents",
]);

/**
 * Returns a function that splits texts at special tokens. Returns null if a piece alone might have
 * other tokens than within the text, for example because special tokens absorb adjacent blanks.
 */
export function createPieceCutter(definition: Fields): PieceCutter | null {
  if (!isContextFree(definition.normalizer) || !isContextFree(definition.pre_tokenizer))
    return null;
  const added = Array.isArray(definition.added_tokens) ? (definition.added_tokens as Fields[]) : [];
  if (added.some(({ lstrip, rstrip, single_word }) => lstrip || rstrip || single_word)) return null;
  // Tokenizers find tokens of the raw text before anything else, regardless of the text around
  // them.
  const exact = added.filter(({ normalized }) => definition.normalizer === null || !normalized);
  const texts = exact.map(({ content }) => content).filter((text) => typeof text === "string");
  const special = texts.filter((text) => text !== "");
  if (special.length === 0) return null;
  // Tokenizers prefer the longest match, so longer tokens must come first in the pattern.
  special.sort((a, b) => b.length - a.length);
  const pattern = new RegExp(`(${special.map((text) => RegExp.escape(text)).join("|")})`);
  return (text) => text.split(pattern).filter((piece) => piece !== "");
}

function isContextFree(part: unknown): boolean {
  if (part === null || part === undefined) return true;
  const { type, add_prefix_space, normalizers, pretokenizers } = part as Fields;
  if (type === "Sequence") {
    const parts = (normalizers ?? pretokenizers) as unknown;
    return Array.isArray(parts) && parts.every(isContextFree);
  }
  if (typeof type !== "string" || !CONTEXT_FREE.has(type)) return false;
  return type !== "ByteLevel" || add_prefix_space === false;
}

/** Maximum characters of a cached text. A longer one would evict all other entries. */
const TEXT_MAX = 256 * 1024;

/** LRU cache of a text's tokens. Limited by the number of tokens. */
class PieceCache {
  readonly #tokensMax: number;
  readonly #pieces = new Map<string, readonly number[]>();
  #tokens = 0;

  constructor(tokensMax: number) {
    this.#tokensMax = tokensMax;
  }

  get(text: string): readonly number[] | null {
    const tokens = this.#pieces.get(text);
    if (tokens === undefined) return null;
    this.#pieces.delete(text);
    this.#pieces.set(text, tokens);
    return tokens;
  }

  put(text: string, tokens: readonly number[]): void {
    if (text.length > TEXT_MAX || this.#pieces.has(text)) return;
    this.#pieces.set(text, tokens);
    this.#tokens += costOf(tokens);
    for (const [oldest, its] of this.#pieces) {
      if (this.#tokens <= this.#tokensMax) return;
      this.#pieces.delete(oldest);
      this.#tokens -= costOf(its);
    }
  }
}

/**
 * Returns the cost of an entry in tokens. An entry without tokens uses memory too, so it is not 0.
 */
function costOf(tokens: readonly number[]): number {
  return tokens.length + 8;
}
