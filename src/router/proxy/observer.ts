import type { RouteDecision } from "../index.ts";

/** A cache mark in a prompt. */
export interface PromptMark {
  /** Tokens from the start of the prompt to the end of the marked part. */
  readonly tokens: number;
  /** Type of the mark in `cache_control`: `ephemeral`. */
  readonly type: string;
  /** Lifetime in seconds from "5m" or "1h". Null: absent or not readable. */
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
  /** The client says that the session has ended. */
  readonly isSessionEnd: boolean;
  /** Null: the prompt could not be tokenised as the engine does it. */
  readonly tokens: Uint32Array | null;
  readonly marks: readonly PromptMark[];
  /** Reasoning tokens of the model. Null: its vocabulary has none, or is not known. */
  readonly reasoning: ReasoningTokens | null;
  readonly decision: RouteDecision;
}

export interface RequestEnd {
  /** `worker`: it failed. `client`: it disconnected. `refused`: no worker accepted the request. */
  readonly how: "done" | "client" | "worker" | "refused";
  readonly outputTokens: number;
}

/** Receives the requests that pass through the proxy, in order. Must not throw. */
export interface ProxyObserver {
  /**
   * A request has a worker and is known to the router. Called again if it moves to another worker.
   */
  prompt?(seen: PromptSeen): void;
  /**
   * The output tokens of the first choice, while the router still knows the request. The proxy
   * reads and tokenises answers only if an observer implements this. If the worker reported no
   * tokens, the text is tokenised again, so tokens may differ at boundaries.
   */
  readonly answered?: ((requestId: string, output: Uint32Array) => void) | undefined;
  /** The router has forgotten the request. */
  ended?(requestId: string, end: RequestEnd): void;
}
