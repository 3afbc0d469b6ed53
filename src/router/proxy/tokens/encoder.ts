import type { Tokenizer } from "@huggingface/tokenizers";
import { HearthError } from "../../../core/index.ts";
import { PieceCache } from "./piece-cache.ts";
import type { PieceCutter } from "./piece-cutter.ts";

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
