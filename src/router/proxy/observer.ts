import type { RouteDecision } from "../index.ts";

/** A `cache_control` mark in a prompt. */
export interface PromptMark {
  /** Number of tokens from the start of the prompt to the end of the marked part. */
  readonly tokens: number;
  /** Type of the mark in `cache_control`, for example `ephemeral`. */
  readonly type: string;
  /** TTL in seconds, from "5m" or "1h". Null: absent or unreadable. */
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
  /** True if the client says that the session has ended. */
  readonly isSessionEnd: boolean;
  /** The prompt's tokens. Null: the proxy could not tokenise the prompt as the engine does. */
  readonly tokens: Uint32Array | null;
  readonly marks: readonly PromptMark[];
  /**
   * Token ids that open and close the model's reasoning. Null: the vocabulary has none, or it is
   * unknown.
   */
  readonly reasoning: ReasoningTokens | null;
  readonly decision: RouteDecision;
}

export interface RequestEnd {
  /**
   * `worker`: the worker failed. `client`: the client disconnected. `refused`: no worker accepted
   * the request.
   */
  readonly how: "done" | "client" | "worker" | "refused";
  readonly outputTokens: number;
}

/** Receives events of the requests that pass through the proxy, in order. Must not throw. */
export interface ProxyObserver {
  /**
   * The router has chosen a worker for a request. Called again if the request moves to another
   * worker.
   */
  prompt?(seen: PromptSeen): void;
  /**
   * Receives the output tokens of the first choice, before the router frees the request. The proxy
   * reads and tokenises answers only if an observer has this method. If the worker reports no
   * tokens, the proxy tokenises the text, so tokens may differ at boundaries.
   */
  readonly answered?: ((requestId: string, output: Uint32Array) => void) | undefined;
  /** The request has ended, and the router has freed it. */
  ended?(requestId: string, end: RequestEnd): void;
}
