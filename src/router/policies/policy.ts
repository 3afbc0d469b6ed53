import type { WorkerId } from "../../core/index.ts";
import type { RouteRequest } from "../route.ts";
import type { Target } from "../workers.ts";
import type { Desk } from "./desk.ts";
import type { PromptChain } from "./prompt-chain.ts";
import type { Noted, Session } from "./session-book.ts";
import type { ReasoningTokens } from "./settings.ts";

/** A routed request, as policies see it. */
export interface RoutedPrompt {
  readonly requestId: string;
  readonly request: RouteRequest;
  readonly target: Target;
  /** Its full blocks by name. */
  readonly chain: PromptChain;
}

/** What the sender of a prompt wants kept: its first `promptTokens` tokens. */
export interface CacheMark {
  readonly promptTokens: number;
  /** Null: as long as the settings say. */
  readonly ttlMs: number | null;
}

/** Two clocks of one moment. */
export interface Moment {
  readonly nowMs: number;
  /** Time in which we listened: it stands still while the process does. */
  readonly heardMs: number;
}

/**
 * One policy. Told of what happens, in order; sends commands through its desk, and never waits for
 * them: what comes of one arrives later, in `settled`. Promises: bounded state; no throw; nothing
 * is sent for what its desk has no room for.
 */
export interface Policy {
  readonly desk: Desk;
  routed?(prompt: RoutedPrompt, noted: Noted, at: Moment): void;
  prefillComplete?(prompt: RoutedPrompt, at: Moment): void;
  /** The tokens of the whole answer, before `freed`. */
  answered?(prompt: RoutedPrompt, output: Uint32Array, at: Moment): void;
  freed?(prompt: RoutedPrompt, at: Moment): void;
  cacheControl?(prompt: RoutedPrompt, owner: string, marks: readonly CacheMark[]): void;
  /** A user is about to ask. */
  returning?(sessionId: string, at: Moment): void;
  /** The sender says that this prompt is the one before, rewritten. */
  rewritten?(prompt: RoutedPrompt, at: Moment): void;
  sessionEnded?(sessionId: string, at: Moment): void;
  /** The book has forgotten it. */
  sessionDropped?(session: Session): void;
  /** It joined, or lost what it had in RAM. */
  workerCold?(target: Target, at: Moment): void;
  workerLeft?(worker: WorkerId, at: Moment): void;
  tick?(at: Moment): void;
}

/** What those who see the messages tell the policies: the proxy, or a client over HTTP. */
export interface PolicyMarks {
  /** After the request was routed. `owner`: the tenant, whose budget it is. */
  cacheControl(requestId: string, owner: string, marks: readonly CacheMark[]): void;
  /** At the end of the answer, before `free`. */
  answered(requestId: string, outputTokens: Uint32Array): void;
  /** After it was routed. */
  rewritten(requestId: string): void;
  returning(sessionId: string): void;
  sessionEnded(sessionId: string): void;
  /** From a model's chat template or tokenizer; what the settings say of the model wins. */
  reasoningTokens(model: string, tokens: ReasoningTokens): void;
}
