/** Texts longer than this are not remembered: they would push out everything else. */
const TEXT_MAX = 256 * 1024;

/** Tokens of texts that were tokenised before, the latest used, up to a number of tokens. */
export class PieceCache {
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
