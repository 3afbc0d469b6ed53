import type { PromptMark, ReasoningTokens } from "../observer.ts";
import type { EncodeOptions } from "./encoder.ts";

/** Files of one model, read by the thread that uses them. */
export interface TokenModelFiles {
  readonly name: string;
  /** Folder of the tokenizer. */
  readonly tokenizer: string;
  readonly chatTemplate: string | null;
  /** JSON object passed to every template, as vLLM's flag of the same name. */
  readonly templateKwargs: string | null;
  /** Separator between the text parts of a message, for templates that expect one text. */
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
  | {
      readonly kind: "prompt";
      readonly id: number;
      readonly model: string;
      readonly text: string;
      /** Null: the text is the body of a chat completion request, which has its own options. */
      readonly encode: EncodeOptions | null;
    };

export type TokenAnswer =
  | {
      readonly kind: "loaded";
      readonly id: number;
      readonly reasoning: ReasoningTokens | null;
    }
  | ({ readonly kind: "tokens"; readonly id: number } & PromptTokens)
  | { readonly kind: "failed"; readonly id: number; readonly why: string };

/** The prompt of a request as its engine sees it. */
export interface PromptTokens {
  readonly tokens: Uint32Array<ArrayBuffer>;
  readonly marks: readonly PromptMark[];
  /**
   * Whether the prompt has images or audio. Their placeholder texts have other tokens than the
   * engine's.
   */
  readonly hasMedia: boolean;
}
