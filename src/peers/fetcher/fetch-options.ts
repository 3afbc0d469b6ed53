import type { Clock, NamespaceIndex, Random, WorkerId } from "../../core/index.ts";
import type { PeerBlocks } from "../../store/index.ts";
import type { BlockHolders, Locator, Members } from "../directory/index.ts";
import type { PeerHello } from "../messages.ts";
import type { Transport, TransportLog, TransportName } from "../transport.ts";

/** Fetch priorities, the most urgent first: an engine's request, a command, a background copy. */
export const PULL_PRIORITIES = ["acquire", "warm", "mirror"] as const;
export type PullPriority = (typeof PULL_PRIORITIES)[number];

/** How the fetch of one block ended. The names are the values of a metric label. */
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

/** Limits that can change while the agent runs. */
export interface FetchLimits {
  /** Maximum payload bytes in flight to this host: in all, from one peer, for one namespace. */
  readonly bytesMax: number;
  readonly peerBytesMax: number;
  readonly namespaceBytesMax: number;
  /** Maximum number of blocks in one request. */
  readonly itemsMax: number;
  /** A request without progress for this time is abandoned. */
  readonly progressMs: number;
  readonly dialMs: number;
  /** First cooldown of a circuit breaker; each failure doubles it, up to `cooldownMaxMs`. */
  readonly cooldownMs: number;
  readonly cooldownMaxMs: number;
  /**
   * The order in which transports are tried; transports not listed are not used. `auto`: all that
   * both hosts support, the one with the highest measured goodput first.
   */
  readonly transports: readonly TransportName[] | "auto";
  /**
   * Prefill rate of the engines here in tokens per second; null: unknown, so every fetch counts as
   * profitable.
   */
  readonly prefillTokensPerS: number | null;
  /** Whether blocks that engines fetch stay in RAM after the request. */
  readonly mirrorPulls: boolean;
}

export interface PullOptions {
  readonly priority: PullPriority;
  readonly deadlineMs: number;
  /** Workers expected to have the blocks, best first; asked before all others. */
  readonly sources: readonly WorkerId[];
  readonly signal: AbortSignal;
  /** Fetch even if recomputing is estimated to be faster. */
  readonly always: boolean;
  /** The first missing block makes all blocks after it useless. */
  readonly stopAtMiss: boolean;
}

/** One step of a fetch, shown to operators. */
export interface PullStep {
  /** Milliseconds since the fetch began. */
  readonly ms: number;
  readonly what: string;
  readonly peer?: WorkerId;
  readonly transport?: TransportName;
  readonly bytes?: number;
}

/** History of one block's fetch; the fetcher keeps the latest ones. */
export interface PullTrace {
  /** `BlockKey` in hex. */
  readonly key: string;
  readonly digest: string;
  readonly layer: number;
  readonly priority: PullPriority;
  readonly startedWallMs: number;
  /** Null while the fetch runs. */
  readonly outcome: PullOutcome | null;
  readonly bytes: number;
  readonly steps: readonly PullStep[];
}

export type BreakerState = "closed" | "open" | "trial";

/** State of one peer, for status reports and metrics. */
export interface PeerStatus {
  readonly worker: WorkerId;
  readonly origin: "static" | "announced";
  /** `idle`: no connection, and no fault. `down`: the circuit breaker is open. */
  readonly state: "linked" | "dialling" | "idle" | "down";
  readonly transport: TransportName | null;
  /** Bytes per second over the latest fetches; null before the first. */
  readonly goodput: number | null;
  readonly rttMs: number | null;
  readonly breaker: BreakerState;
  /** Milliseconds until the next trial. */
  readonly cooldownMs: number | null;
  /** Expiry of the certificate that the peer presented last, in milliseconds since 1970. */
  readonly certificateEndsMs: number | null;
  readonly inFlightBytes: number;
  readonly pulledBlocks: number;
  readonly pulledBytes: number;
  readonly failures: number;
  /** Message; null: no fault since the last success. */
  readonly lastFault: string | null;
  /** Transports in cooldown, with the time until the next trial. */
  readonly transportsDown: readonly { readonly name: TransportName; readonly retryMs: number }[];
}

/** Counters since the start. */
export interface FetchCounters {
  readonly outcomes: Record<PullOutcome, number>;
  /** Answers that failed verification; another peer may have delivered the block. */
  corrupt: number;
  hedges: number;
  hedgesWon: number;
  /** A transport failed, and the request continued over another one. */
  fallbacks: number;
  sharedPulls: number;
  readonly byTransport: Record<TransportName, { blocks: number; bytes: number; fallbacks: number }>;
}

export interface FetcherStats extends Readonly<FetchCounters> {
  readonly inFlightBytes: number;
  readonly waiting: number;
}

/** An event concerning a peer or its data, for the activity log. */
export type FetchEvent =
  | {
      readonly kind: "breaker_opened";
      readonly worker: WorkerId;
      readonly why: string;
      readonly cooldownMs: number;
    }
  | { readonly kind: "breaker_closed"; readonly worker: WorkerId }
  | {
      /** One transport to the peer failed; others may work. */
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
  /** The peer is slower than in 95 % of its answers; others are preferred for a while. */
  | { readonly kind: "peer_slow"; readonly worker: WorkerId; readonly afterMs: number }
  | {
      /** The peer sent data that failed verification. The data was discarded. */
      readonly kind: "peer_corrupt";
      readonly worker: WorkerId;
      /** `BlockKey` in hex. */
      readonly key: string;
      readonly why: string;
    }
  | { readonly kind: "peer_restarted"; readonly worker: WorkerId };

/** Dependencies of a fetcher. */
export interface FetcherOptions {
  /** The hello that this host sends to peers. */
  readonly self: PeerHello;
  readonly blocks: PeerBlocks;
  /** Already registered. The caller owns them and closes them. */
  readonly transports: readonly Transport[];
  readonly members: Members;
  readonly blockHolders: BlockHolders;
  /** Null: no router is configured. */
  readonly locator: Locator | null;
  readonly namespaces: { keyOf(index: NamespaceIndex): Uint8Array | null };
  /** Block keys: `BLAKE3(digest ‖ layer)`, 32 bytes for each 32 bytes of `digests`. */
  deriveKeys(digests: Uint8Array, layer: number): Uint8Array;
  /** Tokens per block of this namespace; null: unknown, so every fetch counts as profitable. */
  tokensPerBlock(namespace: NamespaceIndex): number | null;
  readonly clock: Clock;
  readonly random: Random;
  readonly log: TransportLog;
  onEvent(event: FetchEvent): void;
  readonly limits: FetchLimits;
}
