import type { Clock, NamespaceIndex, Random, WorkerId } from "../../core/index.ts";
import type { PeerBlocks } from "../../store/index.ts";
import type { Locator, Members, Whereabouts } from "../directory/index.ts";
import type { PeerHello } from "../messages.ts";
import type { Transport, TransportLog, TransportName } from "../transport.ts";
import type { PullLimits } from "./puller.ts";

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
