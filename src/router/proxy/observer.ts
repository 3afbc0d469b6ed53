import type { RouteDecision } from "../index.ts";

/** How far into the prompt somebody put a mark. */
export interface PromptMark {
  /** Tokens from the start of the prompt to the end of what is marked. */
  readonly tokens: number;
  /** As `cache_control` has it: `ephemeral`. */
  readonly type: string;
  /** Null where it says nothing, or nothing that can be read: "5m", "1h". */
  readonly ttlSeconds: number | null;
}

export interface ReasoningTokens {
  readonly start: number;
  readonly end: number;
}

export interface PromptSeen {
  readonly requestId: string;
  readonly model: string;
  readonly loraName: string | null;
  readonly cacheSalt: string | null;
  readonly sessionId: string | null;
  readonly parentSessionId: string | null;
  /** The client says that nothing more comes of this session. */
  readonly isSessionEnd: boolean;
  /** Null where the prompt could not be tokenised as the engine does. */
  readonly tokens: Uint32Array | null;
  readonly marks: readonly PromptMark[];
  /** Of the model; null where its vocabulary has none, or is not known. */
  readonly reasoning: ReasoningTokens | null;
  readonly decision: RouteDecision;
}

export interface RequestEnd {
  /** `worker`: it failed; `client`: it left; `refused`: no worker took it. */
  readonly how: "done" | "client" | "worker" | "refused";
  readonly outputTokens: number;
}

/** Told of what passes through the proxy, in order; must not throw. */
export interface ProxyObserver {
  /** A request has a worker, and the router knows it; again where it gets another one. */
  prompt?(seen: PromptSeen): void;
  /**
   * All that a worker wrote to the first choice, as tokens, while the router still has the request.
   * Only while an observer has this does the proxy read and tokenise answers. The text is cut into
   * tokens again unless the worker told them, so that they may differ at seams.
   */
  readonly answered?: ((requestId: string, output: Uint32Array) => void) | undefined;
  /** The router has forgotten it. */
  ended?(requestId: string, end: RequestEnd): void;
}
