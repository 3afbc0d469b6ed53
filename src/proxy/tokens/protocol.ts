import type { PromptMark, ReasoningTokens } from "../observer.ts";

/** One model's files, read where it is used. */
export interface TokenModelFiles {
  readonly name: string;
  /** A folder. */
  readonly tokenizer: string;
  readonly chatTemplate: string | null;
  /** What stands between the text parts of a message where the template wants one string. */
  readonly partSeparator: string;
  readonly reasoning: { readonly start: string; readonly end: string } | null;
}

export type PromptKind = "chat" | "text" | "output";

export type TokenOrder =
  | {
      readonly kind: "load";
      readonly id: number;
      readonly cacheTokens: number;
      readonly files: TokenModelFiles;
    }
  | {
      readonly kind: PromptKind;
      readonly id: number;
      readonly model: string;
      readonly text: string;
    };

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
    }
  | { readonly kind: "failed"; readonly id: number; readonly why: string };
