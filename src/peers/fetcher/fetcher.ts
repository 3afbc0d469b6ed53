import type { Clock, NamespaceIndex, Random, WorkerId } from "../../core/index.ts";
import type { FetchOutcome, PeerBlocks, PeerTier } from "../../store/index.ts";
import type { Locator, Members, Whereabouts } from "../directory/index.ts";
import type { PeerAnswer, PeerFound, PeerHello, PeerRequest, WantedBlock } from "../messages.ts";
import type { Transport, TransportLog, TransportName } from "../transport.ts";

/** What waits behind what: an engine's request, then a command's, then copies for later. */
export const PULL_PRIORITIES = ["acquire", "warm", "mirror"] as const;
export type PullPriority = (typeof PULL_PRIORITIES)[number];

/** How a pull of one block ended. The names are the metric's labels. */
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

/** What may change while the agent runs. */
export interface PullLimits {
  /** Of payload on its way to this host: in all, from one peer, for one namespace. */
  readonly bytesMax: number;
  readonly peerBytesMax: number;
  readonly namespaceBytesMax: number;
  /** Blocks asked for in one request. */
  readonly itemsMax: number;
  /** A pull in which nothing comes for so long is given up. */
  readonly progressMs: number;
  readonly dialMs: number;
  /** A breaker's first cooldown; it doubles with each failure up to the second. */
  readonly cooldownMs: number;
  readonly cooldownMaxMs: number;
  /**
   * The order in which transports are tried; those not listed are not used. `auto`: what both
   * hosts have, the one that brought more bytes a second first.
   */
  readonly transports: readonly TransportName[] | "auto";
  /** Tokens a second that engines here compute in prefill; null: not known, so every pull pays. */
  readonly prefillTokensPerS: number | null;
  /** Whether what engines pull is kept in RAM behind the request that wanted it. */
  readonly mirrorPulls: boolean;
}

export interface PullOptions {
  readonly priority: PullPriority;
  readonly deadlineMs: number;
  /** Workers that are said to have the blocks, the best first; asked before all others. */
  readonly sources: readonly WorkerId[];
  readonly signal: AbortSignal;
  /** Ask even where computing is believed to be sooner. */
  readonly always: boolean;
  /** The first that is not to be had makes those behind it worthless. */
  readonly stopAtMiss: boolean;
}

/** One step of a pull, for people. */
export interface PullStep {
  /** Since the pull began. */
  readonly ms: number;
  readonly what: string;
  readonly peer?: WorkerId;
  readonly transport?: TransportName;
  readonly bytes?: number;
}

/** What happened to one block: kept for the latest pulls. */
export interface PullTrace {
  /** `BlockKey` in hex. */
  readonly key: string;
  readonly digest: string;
  readonly layer: number;
  readonly priority: PullPriority;
  readonly startedWallMs: number;
  /** Null: under way. */
  readonly outcome: PullOutcome | null;
  readonly bytes: number;
  readonly steps: readonly PullStep[];
}

export type BreakerState = "closed" | "open" | "trial";

/** What is known of one peer, for people and metrics. */
export interface PeerStatus {
  readonly worker: WorkerId;
  readonly origin: "static" | "announced";
  /** `idle`: no link, and nothing wrong. `down`: its breaker is open. */
  readonly state: "linked" | "dialling" | "idle" | "down";
  readonly transport: TransportName | null;
  /** Bytes a second over the latest pulls; null before the first. */
  readonly goodput: number | null;
  readonly rttMs: number | null;
  readonly breaker: BreakerState;
  /** Until it is tried again. */
  readonly cooldownMs: number | null;
  /** Of the certificate it showed last, in milliseconds since 1970. */
  readonly certificateEndsMs: number | null;
  readonly inFlightBytes: number;
  readonly pulledBlocks: number;
  readonly pulledBytes: number;
  readonly failures: number;
  /** In words; null: all is well. */
  readonly lastFault: string | null;
  /** By transport, those that failed and when they are tried again. */
  readonly transportsDown: readonly { readonly name: TransportName; readonly retryMs: number }[];
}

export interface PullerStats {
  readonly outcomes: Readonly<Record<PullOutcome, number>>;
  /** Answers that were not what was asked for; the block may have come from another peer. */
  readonly corrupt: number;
  readonly hedges: number;
  readonly hedgesWon: number;
  readonly fallbacks: number;
  readonly sharedPulls: number;
  readonly inFlightBytes: number;
  readonly waiting: number;
  readonly byTransport: Readonly<
    Record<
      TransportName,
      { readonly blocks: number; readonly bytes: number; readonly fallbacks: number }
    >
  >;
}

/**
 * Brings blocks from other hosts. Promises:
 *
 * - Equal pulls at the same time are one, whoever wants them; the most urgent decides its place.
 * - A place in RAM is taken before a peer is asked; what did not arrive whole and right is never
 *   seen by anybody, and its place is free again once nothing can write to it any more.
 * - Bytes on their way stay below the limits, and every wait ends: with the deadline, with the
 *   signal, or because a peer made no progress.
 * - A peer that fails is left alone for a while that grows; a second one is tried within the same
 *   pull, and also where the first is much slower than usual (95th percentile of its latest pulls).
 */
export interface Puller extends PeerTier, AsyncDisposable {
  pull(
    namespace: NamespaceIndex,
    blocks: readonly WantedBlock[],
    options: PullOptions,
  ): Promise<FetchOutcome[]>;
  /** Who in the cluster is meant by engines' names (8 or 32 bytes); asks `sources`, then others. */
  find(
    names: readonly Uint8Array[],
    sources: readonly WorkerId[],
    options: { readonly deadlineMs: number; readonly signal: AbortSignal },
  ): Promise<readonly (readonly (PeerFound & { readonly worker: WorkerId })[])[]>;
  /** A short question over the puller's own links; null: no answer, whatever the reason. */
  ask(
    worker: WorkerId,
    request: Exclude<PeerRequest, { op: "pull" }>,
    options: { readonly deadlineMs: number; readonly signal: AbortSignal },
  ): Promise<PeerAnswer | null>;
  /** False: it failed, and its breaker leaves it alone now; or it is not known. */
  mayAsk(worker: WorkerId): boolean;
  /** Why blocks would not be pulled now, in words; null: they would. For `explain`. */
  whyNot(namespace: NamespaceIndex, blocks: readonly WantedBlock[]): string | null;
  peers(): readonly PeerStatus[];
  /** The latest pulls of this key, the newest first; of all keys where null. */
  traces(key: string | null): readonly PullTrace[];
  readonly stats: PullerStats;
  configure(limits: PullLimits): void;
}

/** What happened to a peer or to what it sent; for the log of events. */
export type PullEvent =
  | {
      readonly kind: "breaker_opened";
      readonly worker: WorkerId;
      readonly why: string;
      readonly cooldownMs: number;
    }
  | { readonly kind: "breaker_closed"; readonly worker: WorkerId }
  | {
      /** One way to it does not work; others may. */
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
  /** It takes longer than it nearly ever does; others are asked first for a while. */
  | { readonly kind: "peer_slow"; readonly worker: WorkerId; readonly afterMs: number }
  | {
      /** What it sent is not what was asked for. Nobody saw it. */
      readonly kind: "peer_corrupt";
      readonly worker: WorkerId;
      /** `BlockKey` in hex. */
      readonly key: string;
      readonly why: string;
    }
  | { readonly kind: "peer_restarted"; readonly worker: WorkerId };

/** What a puller is made of. */
export interface PullerParts {
  /** What this host says of itself to those it asks. */
  readonly self: PeerHello;
  readonly blocks: PeerBlocks;
  /** Registered already; stopped by who made them. */
  readonly transports: readonly Transport[];
  readonly members: Members;
  readonly whereabouts: Whereabouts;
  /** Null: no router is there to be asked. */
  readonly locator: Locator | null;
  readonly namespaces: { keyOf(index: NamespaceIndex): Uint8Array | null };
  /** Keys of blocks: `BLAKE3(digest ‖ layer)`, 32 bytes for each 32 of `digests`. */
  deriveKeys(digests: Uint8Array, layer: number): Uint8Array;
  /** Tokens in a block of this namespace; null: not known, so that every pull pays. */
  tokensPerBlock(namespace: NamespaceIndex): number | null;
  readonly clock: Clock;
  readonly random: Random;
  readonly log: TransportLog;
  onEvent(event: PullEvent): void;
  readonly limits: PullLimits;
}
