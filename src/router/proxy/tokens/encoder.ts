import type { Tokenizer } from "@huggingface/tokenizers";
import { HearthError } from "../../../core/index.ts";

export interface Truncation {
  /** Tokens that stay. */
  readonly tokens: number;
  /** Where tokens are cut off; null: as vLLM sets its tokenizers up, on the left. */
  readonly side: "left" | "right" | null;
}

export interface EncodeOptions {
  /** Whether the tokenizer puts its own tokens around the text. */
  readonly addSpecial: boolean;
  readonly truncation: Truncation | null;
}

/** Tokenises piece by piece where that is the same, and remembers the pieces. */
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
      throw new HearthError("UNSUPPORTED", "the text has half of a surrogate pair");
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

  /** The tokenizer itself cuts the text's own tokens, and keeps those that it puts around them. */
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

/** A vocabulary without a token for what it does not know answers nothing for it. */
function checked(ids: readonly (number | undefined)[]): Uint32Array<ArrayBuffer> {
  if (ids.some((id) => id === undefined)) {
    throw new HearthError("UNSUPPORTED", "the vocabulary has no token for a part of the text");
  }
  return Uint32Array.from(ids as readonly number[]);
}

/**
 * Cuts a text in front of special tokens and behind them, so that each piece can be tokenised alone
 * and remembered: of a conversation that goes on only its latest messages are new.
 */
type PieceCutter = (text: string) => string[];

type Fields = Readonly<Record<string, unknown>>;

/** What these do with a piece does not depend on what stands before it. */
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
 * Null where a piece alone might have other tokens than within the text: the first piece is treated
 * apart, or special tokens take blanks beside them.
 */
export function createPieceCutter(definition: Fields): PieceCutter | null {
  if (!isContextFree(definition.normalizer) || !isContextFree(definition.pre_tokenizer))
    return null;
  const added = Array.isArray(definition.added_tokens) ? (definition.added_tokens as Fields[]) : [];
  if (added.some(({ lstrip, rstrip, single_word }) => lstrip || rstrip || single_word)) return null;
  // Those that are looked for in the text as it is are found first, whatever is around them.
  const exact = added.filter(({ normalized }) => definition.normalizer === null || !normalized);
  const texts = exact.map(({ content }) => content).filter((text) => typeof text === "string");
  const special = texts.filter((text) => text !== "");
  if (special.length === 0) return null;
  // The longest one that fits is taken, as tokenizers do.
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

/** Texts longer than this are not remembered: they would push out everything else. */
const TEXT_MAX = 256 * 1024;

/** Tokens of texts that were tokenised before, the latest used, up to a number of tokens. */
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

/** An entry without tokens takes memory too. */
function costOf(tokens: readonly number[]): number {
  return tokens.length + 8;
}
