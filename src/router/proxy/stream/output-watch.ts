import type { ReasoningTokens } from "../observer.ts";
import type { Tokens } from "../tokens/index.ts";
import { outputParts } from "./output-texts.ts";

/** Longer answers are not read to their end. */
const TEXT_MAX = 512 * 1024;

/** Collects what a worker writes, for observers who want it as tokens. */
export class OutputWatch {
  readonly #isStream: boolean;
  readonly #decoder = new TextDecoder();
  readonly #told: number[] = [];
  #reasoning = "";
  #content = "";
  #length = 0;

  constructor(isStream: boolean) {
    this.#isStream = isStream;
  }

  /** Whole events, or the whole answer. */
  add(bytes: Uint8Array): void {
    const text = this.#decoder.decode(bytes, { stream: true });
    this.#length += text.length;
    if (this.#length > TEXT_MAX) return;
    for (const part of outputParts(text, this.#isStream)) {
      this.#reasoning += part.reasoning;
      this.#content += part.content;
      for (const token of part.tokens) this.#told.push(token);
    }
  }

  /** Null: nothing came, it was too long, or there is no tokenizer. */
  async tokens(
    model: string,
    tokens: Tokens,
    reasoning: ReasoningTokens | null,
  ): Promise<Uint32Array | null> {
    if (this.#length > TEXT_MAX) return null;
    if (this.#told.length > 0) return Uint32Array.from(this.#told);
    const content = await cut(model, tokens, this.#content);
    if (this.#reasoning === "" || reasoning === null) return content;
    const inner = await cut(model, tokens, this.#reasoning);
    if (inner === null) return null;
    return Uint32Array.from([reasoning.start, ...inner, reasoning.end, ...(content ?? [])]);
  }
}

async function cut(model: string, tokens: Tokens, text: string): Promise<Uint32Array | null> {
  return text === "" ? null : ((await tokens.output(model, text))?.tokens ?? null);
}
