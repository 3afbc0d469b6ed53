import type { WorkerId } from "../core/index.ts";

/** One block: its digest (32 bytes) and layer. */
export interface WantedBlock {
  readonly digest: Uint8Array;
  readonly layer: number;
}

/** A requested block. */
export interface PullItem extends WantedBlock {
  /** Maximum payload bytes; the client has reserved this many. */
  readonly bytesMax: number;
  /** Generation of the copy, as `has` reported it; 0: any. */
  readonly generation: bigint;
}

/** Introduces a host to its peer; the first message on each connection. */
export interface PeerHello {
  readonly worker: WorkerId;
  /** Identifies the agent's process; changes with each restart. */
  readonly incarnation: bigint;
  readonly hardware: HardwareReport;
}

/** Hardware that decides which transports two hosts can use. */
export interface HardwareReport {
  readonly hasRdmaNic: boolean;
  /** Names of RDMA devices, 16 at most. */
  readonly rdmaDevices: readonly string[];
  readonly cores: number;
  /** The CPU has AES instructions, which fast encryption needs. */
  readonly hasAes: boolean;
}

/**
 * A request to a peer. Each has one answer, except `pull`, which is answered block by block.
 * Namespace keys have 32 bytes.
 */
export type PeerRequest =
  | { readonly op: "hello"; readonly hello: PeerHello }
  | {
      readonly op: "pull";
      readonly namespace: Uint8Array;
      readonly items: readonly PullItem[];
      /** Milliseconds from now after which the client discards answers. */
      readonly deadlineMs: number;
    }
  | {
      readonly op: "has";
      readonly namespace: Uint8Array;
      readonly blocks: readonly WantedBlock[];
    }
  | {
      /** Resolves engines' names (8 or 32 bytes each) in all namespaces. */
      readonly op: "find";
      readonly names: readonly Uint8Array[];
    }
  | {
      readonly op: "summary";
      readonly namespace: Uint8Array;
      /** Version of the summary that the client has; 0: none. */
      readonly known: bigint;
    };

/** A host's copy of a block; `tiers` 0: it has none. */
export interface PeerHas {
  /** Bit mask of `Tier` (RAM and SSD). */
  readonly tiers: number;
  readonly bytes: number;
  readonly generation: bigint;
  /** XXH3-64 of the payload. */
  readonly checksum: bigint;
}

/** A block found by name. */
export interface PeerFound extends WantedBlock, PeerHas {
  readonly namespace: Uint8Array;
}

export type PeerAnswer =
  | { readonly op: "hello"; readonly hello: PeerHello }
  | { readonly op: "has"; readonly blocks: readonly PeerHas[] }
  /** Blocks that each name resolves to, 64 at most per name. */
  | { readonly op: "find"; readonly found: readonly (readonly PeerFound[])[] }
  /** `filter` null: the client has the latest version. */
  | { readonly op: "summary"; readonly version: bigint; readonly filter: Uint8Array | null }
  | { readonly op: "busy"; readonly retryAfterMs: number }
  | { readonly op: "refused"; readonly why: string };

/**
 * Header in front of a block's payload. The client compares length and address with its request.
 */
export interface FrameHeader {
  readonly digest: Uint8Array;
  readonly layer: number;
  /** Model name, at most 255 bytes of UTF-8; empty: unknown to the sender. */
  readonly model: string;
  /** Payload bytes. */
  readonly bytes: number;
  readonly namespace: Uint8Array;
  /** Generation of the sender's copy; changes whenever the sender stores the block again. */
  readonly generation: bigint;
  /** XXH3-64 of the payload, as computed when the block was written. */
  readonly checksum: bigint;
  /** MAC of 16 bytes under the namespace key; null: the block has none, or the peer is too old. */
  readonly mac: Uint8Array | null;
  /** Digest of the preceding block of the prompt; null: none, or unknown to the sender. */
  readonly parent: Uint8Array | null;
  /** The block must not be written to SSD. */
  readonly transient: boolean;
  /**
   * Aliases of the block, 8 bytes (engine hash, little-endian) or 32 bytes (page key); 8 at most.
   */
  readonly aliases: readonly Uint8Array[];
}

/** Answer for one block of a pull instead of a frame. */
export type ItemRefusal =
  | { readonly kind: "absent" }
  | { readonly kind: "busy"; readonly retryAfterMs: number }
  /** The payload is longer than `bytesMax`. */
  | { readonly kind: "tooLong"; readonly bytes: number }
  | { readonly kind: "refused"; readonly why: string };
