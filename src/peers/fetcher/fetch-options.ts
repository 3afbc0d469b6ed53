import type { Clock, NamespaceIndex, Random, WorkerId } from "../../core/index.ts";
import type { PeerBlocks } from "../../store/index.ts";
import type { BlockHolders, Locator, Members } from "../directory/index.ts";
import type { PeerHello } from "../messages.ts";
import type { Transport, TransportLog, TransportName } from "../transport.ts";

/**
 * Why a block is fetched, the most urgent first: for an engine's request (`acquire`), for a command
 * (`warm`), as a background copy (`mirror`).
 */
export const PULL_PRIORITIES = ["acquire", "warm", "mirror"] as const;
export type PullPriority = (typeof PULL_PRIORITIES)[number];

/** Possible outcomes of the fetch of one block. The names are values of a metric label. */
export const PULL_OUTCOMES = [
  "ok",
  "absent",
  "busy",
  "full",
  "late",
  "corrupt",
  "failed",
  "unprofitable",
  "aborted",
] as const;
export type PullOutcome = (typeof PULL_OUTCOMES)[number];

/** Limits on fetching. They can change while the agent runs. */
export interface FetchLimits {
  /**
   * Maximum payload bytes in flight to this host: in total, from one peer, and for one namespace.
   */
  readonly bytesMax: number;
  readonly peerBytesMax: number;
  readonly namespaceBytesMax: number;
  /** Maximum number of blocks in one request to a peer. */
  readonly itemsMax: number;
  /** A request that makes no progress for this many milliseconds is cancelled. */
  readonly progressMs: number;
  readonly dialMs: number;
  /**
   * Milliseconds for which a circuit breaker blocks requests after the first failure. Doubles with
   * each further failure, up to `cooldownMaxMs`.
   */
  readonly cooldownMs: number;
  readonly cooldownMaxMs: number;
  /**
   * Transports to use, in the order in which they are tried. `auto`: all transports that both hosts
   * support, the one with the highest measured goodput first.
   */
  readonly transports: readonly TransportName[] | "auto";
  /**
   * Tokens per second that the local engines can prefill. Null if unknown: fetching then always
   * counts as faster than recomputing.
   */
  readonly prefillTokensPerS: number | null;
  /** True if blocks fetched for an engine stay in RAM after the engine's request. */
  readonly mirrorPulls: boolean;
}

export interface PullOptions {
  readonly priority: PullPriority;
  readonly deadlineMs: number;
  /**
   * Workers that are expected to have the blocks, best first. They are asked before all other
   * peers.
   */
  readonly sources: readonly WorkerId[];
  readonly signal: AbortSignal;
  /** If true, fetches even if recomputing is estimated to be faster. */
  readonly always: boolean;
  /**
   * If true, one missing block makes all blocks after it useless to the caller, so the fetch stops
   * there.
   */
  readonly stopAtMiss: boolean;
}

/** One event in the history of a fetch. */
export interface PullStep {
  /** Milliseconds since the fetch began. */
  readonly ms: number;
  readonly what: string;
  readonly peer?: WorkerId;
  readonly transport?: TransportName;
  readonly bytes?: number;
}

/** History of the fetch of one block, shown to operators. */
export interface PullTrace {
  /** The block's `BlockKey` in hex. */
  readonly key: string;
  readonly digest: string;
  readonly layer: number;
  readonly priority: PullPriority;
  readonly startedWallMs: number;
  /** Outcome of the fetch. Null while it runs. */
  readonly outcome: PullOutcome | null;
  readonly bytes: number;
  readonly steps: readonly PullStep[];
}

export type BreakerState = "closed" | "open" | "trial";

/** State of one peer, as reported in status and metrics. */
export interface PeerStatus {
  readonly worker: WorkerId;
  readonly origin: "static" | "announced";
  /** `idle`: no connection and no fault. `down`: the circuit breaker blocks requests. */
  readonly state: "linked" | "dialling" | "idle" | "down";
  readonly transport: TransportName | null;
  /** Measured bytes per second of the latest fetches. Null before the first fetch. */
  readonly goodput: number | null;
  readonly rttMs: number | null;
  readonly breaker: BreakerState;
  /** Milliseconds until requests are tried again after failures. Null if they are not blocked. */
  readonly cooldownMs: number | null;
  /**
   * Expiry of the certificate that the peer presented most recently, in milliseconds since 1970.
   */
  readonly certificateEndsMs: number | null;
  readonly inFlightBytes: number;
  readonly pulledBlocks: number;
  readonly pulledBytes: number;
  readonly failures: number;
  /** Message about the latest fault. Null if there was none since the last success. */
  readonly lastFault: string | null;
  /**
   * Transports that are not used because they failed, with the milliseconds until they are tried
   * again.
   */
  readonly transportsDown: readonly { readonly name: TransportName; readonly retryMs: number }[];
}

/** Numbers of events since the start. */
export interface FetchCounters {
  readonly outcomes: Record<PullOutcome, number>;
  /**
   * Number of blocks that peers sent and that failed verification. Another peer may have sent a
   * correct copy.
   */
  corrupt: number;
  hedges: number;
  hedgesWon: number;
  /** Number of times that a transport failed and the request continued over another one. */
  fallbacks: number;
  sharedPulls: number;
  readonly byTransport: Record<TransportName, { blocks: number; bytes: number; fallbacks: number }>;
}

export interface FetcherStats extends Readonly<FetchCounters> {
  readonly inFlightBytes: number;
  readonly waiting: number;
}

/** An event that concerns a peer or its data, for the activity log. */
export type FetchEvent =
  | {
      readonly kind: "breaker_opened";
      readonly worker: WorkerId;
      readonly why: string;
      readonly cooldownMs: number;
    }
  | { readonly kind: "breaker_closed"; readonly worker: WorkerId }
  | {
      /** One transport to the peer failed. Others may still work. */
      readonly kind: "transport_down";
      readonly worker: WorkerId;
      readonly transport: TransportName;
      readonly why: string;
      readonly cooldownMs: number;
    }
  | {
      readonly kind: "transport_up";
      readonly worker: WorkerId;
      readonly transport: TransportName;
    }
  /**
   * The peer is slower than in 95 % of its recent replies. Other peers are preferred for a while.
   */
  | { readonly kind: "peer_slow"; readonly worker: WorkerId; readonly afterMs: number }
  | {
      /** The peer sent data that failed verification. This host discarded the data. */
      readonly kind: "peer_corrupt";
      readonly worker: WorkerId;
      /** The block's `BlockKey` in hex. */
      readonly key: string;
      readonly why: string;
    }
  | { readonly kind: "peer_restarted"; readonly worker: WorkerId };

/** Objects and functions that a fetcher uses. */
export interface FetcherOptions {
  /** Message with which this host introduces itself to peers. */
  readonly self: PeerHello;
  readonly blocks: PeerBlocks;
  /** Transports on which `register` was called. The caller closes them. */
  readonly transports: readonly Transport[];
  readonly members: Members;
  readonly blockHolders: BlockHolders;
  /** Finds blocks through the router. Null if no router is configured. */
  readonly locator: Locator | null;
  readonly namespaces: { keyOf(index: NamespaceIndex): Uint8Array | null };
  /** Returns the block keys `BLAKE3(digest ‖ layer)`, 32 bytes for each 32 bytes of `digests`. */
  deriveKeys(digests: Uint8Array, layer: number): Uint8Array;
  /**
   * Returns the tokens per block of a namespace. Null if unknown: fetching then always counts as
   * faster than recomputing.
   */
  tokensPerBlock(namespace: NamespaceIndex): number | null;
  readonly clock: Clock;
  readonly random: Random;
  readonly log: TransportLog;
  onEvent(event: FetchEvent): void;
  readonly limits: FetchLimits;
}
