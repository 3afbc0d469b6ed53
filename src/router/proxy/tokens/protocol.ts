import type { PromptMark, ReasoningTokens } from "../observer.ts";
import type { EncodeOptions } from "./encoder.ts";

/** One model's files, read where it is used. */
export interface TokenModelFiles {
  readonly name: string;
  /** A folder. */
  readonly tokenizer: string;
  readonly chatTemplate: string | null;
  /** A JSON object of what every template is given, as vLLM's flag of the same name has it. */
  readonly templateKwargs: string | null;
  /** What stands between the text parts of a message where the template wants one string. */
  readonly partSeparator: string;
  readonly reasoning: { readonly start: string; readonly end: string } | null;
}

export type TokenOrder =
  | {
      readonly kind: "load";
      readonly id: number;
      readonly cacheTokens: number;
      readonly files: TokenModelFiles;
    }
  | PromptOrder;

export interface PromptOrder {
  readonly id: number;
  readonly model: string;
  readonly text: string;
  /** Null: the text is the body of a request for a chat completion, which says it itself. */
  readonly encode: EncodeOptions | null;
  readonly kind: "prompt";
}

export type TokenAnswer =
  | {
      readonly kind: "loaded";
      readonly id: number;
      readonly reasoning: ReasoningTokens | null;
      readonly hasTemplate: boolean;
    }
  | {
      readonly kind: "tokens";
      readonly id: number;
      readonly tokens: Uint32Array<ArrayBuffer>;
      readonly marks: readonly PromptMark[];
      readonly hasMedia: boolean;
    }
  | { readonly kind: "failed"; readonly id: number; readonly why: string };

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
