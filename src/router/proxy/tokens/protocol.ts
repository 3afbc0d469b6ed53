import type { PromptMark, ReasoningTokens } from "../observer.ts";
import type { EncodeOptions } from "./encoder.ts";

/** Paths and settings of one model. The thread that tokenises reads the files. */
export interface TokenModelFiles {
  readonly name: string;
  /** Folder that contains the tokenizer. */
  readonly tokenizer: string;
  readonly chatTemplate: string | null;
  /**
   * JSON object whose members every template receives, like vLLM's
   * `--default-chat-template-kwargs`.
   */
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
      /** Null: the text is the body of a chat completion request, which contains the options. */
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

/** Tokens of a request's prompt, as the engine sees them. */
export interface PromptTokens {
  readonly tokens: Uint32Array<ArrayBuffer>;
  readonly marks: readonly PromptMark[];
  /**
   * True if the prompt has images or audio. Their placeholders have other tokens than at the
   * engine.
   */
  readonly hasMedia: boolean;
}
