import type { PromptMark, ReasoningTokens } from "../observer.ts";
import type { EncodeOptions } from "./encoder.ts";

/** The prompt of a request as its engine will see it. */
export interface PromptTokens {
  readonly tokens: Uint32Array;
  readonly marks: readonly PromptMark[];
  /** Pictures and sounds stand in it as texts, of which engines make tokens of their own. */
  readonly hasMedia: boolean;
}

/** Turns prompts into the tokens of their model's engine. */
export interface Tokens extends Disposable {
  /** Null: not in time, not with this prompt, or there is no tokenizer for the model. */
  chat(model: string, body: string): Promise<PromptTokens | null>;
  text(model: string, text: string, options: EncodeOptions): Promise<PromptTokens | null>;
  /** Without what a tokenizer puts around a prompt. */
  output(model: string, text: string): Promise<PromptTokens | null>;
  has(model: string): boolean;
  /** Null: the model's vocabulary has none, or it is not known yet. */
  reasoning(model: string): ReasoningTokens | null;
  readonly counts: TokenCounts;
}

export interface TokenCounts {
  readonly prompts: number;
  readonly failed: number;
  readonly late: number;
  /** Threads that were replaced. */
  readonly restarts: number;
}
