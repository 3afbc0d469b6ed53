import type { HeaderPairs } from "../headers.ts";

/** One request to a worker. */
export interface UpstreamOrder {
  readonly method: "GET" | "POST";
  /** `http:` or `https:`, with path. */
  readonly url: string;
  readonly headers: ReadonlyMap<string, string>;
  readonly body: Uint8Array | null;
  readonly connectMs: number;
  /** From the last byte of the request to the first of the body. */
  readonly firstByteMs: number;
  /** Between two pieces of the body, while somebody waits for one. */
  readonly idleMs: number;
}

/**
 * `unsendable`: the request cannot be made, or this process has no descriptor for it, so that no
 * worker was tried. `connect`: nothing of it was sent. `sent`: the worker had it and left.
 * `garbled`: it answered, and the answer is not HTTP as the parser takes it. `late`: it said
 * nothing in time. `closed`: we closed it.
 */
export type FailureStage = "unsendable" | "connect" | "sent" | "garbled" | "late" | "closed";

export interface UpstreamFailure {
  readonly kind: "failed";
  readonly stage: FailureStage;
  readonly why: string;
}

export type UpstreamPiece =
  | { readonly kind: "bytes"; readonly bytes: Uint8Array<ArrayBuffer> }
  | { readonly kind: "end" }
  | UpstreamFailure;

export interface UpstreamAnswer {
  readonly kind: "answer";
  readonly status: number;
  readonly headers: HeaderPairs;
  /** The next piece; one caller at a time. Behind `end` and `failed` the same comes again. */
  read(): Promise<UpstreamPiece>;
  /** Closes the connection at once. */
  close(): void;
}

/** Sends requests to workers. Bodies come as they are on the wire, not decompressed. */
export interface Upstream extends Disposable {
  /** Never rejects. The signal closes the connection, also while the body comes. */
  open(order: UpstreamOrder, signal: AbortSignal): Promise<UpstreamAnswer | UpstreamFailure>;
}
