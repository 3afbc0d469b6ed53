import type { WorkerId } from "../core/index.ts";

/** Identifies a block within its namespace: digest (32 bytes) and layer. */
export interface WantedBlock {
  readonly digest: Uint8Array;
  readonly layer: number;
}

/** A block requested in a pull. */
export interface PullItem extends WantedBlock {
  /** Maximum payload bytes that the client accepts: it has reserved this much memory. */
  readonly bytesMax: number;
  /**
   * Generation of the copy to send, as the peer reported it in a `has` reply. 0 if any copy is
   * acceptable.
   */
  readonly generation: bigint;
}

/** First message on each connection, with which a host introduces itself to its peer. */
export interface PeerHello {
  readonly worker: WorkerId;
  /** Identifies a run of the agent's process; changes at each start. */
  readonly incarnation: bigint;
  readonly hardware: HardwareReport;
}

/** Hardware of a host that decides which transports two hosts can use. */
export interface HardwareReport {
  readonly hasRdmaNic: boolean;
  /** Names of the host's RDMA devices, at most 16. */
  readonly rdmaDevices: readonly string[];
  readonly cores: number;
  /** True if the CPU has AES instructions, without which encryption is slow. */
  readonly hasAes: boolean;
}

/**
 * A request to a peer. Each request has one reply, except `pull`, which has one reply per block.
 * Namespace keys have 32 bytes.
 */
export type PeerRequest =
  | { readonly op: "hello"; readonly hello: PeerHello }
  | {
      readonly op: "pull";
      readonly namespace: Uint8Array;
      readonly items: readonly PullItem[];
      /** Milliseconds from now after which the client discards replies. */
      readonly deadlineMs: number;
    }
  | {
      readonly op: "has";
      readonly namespace: Uint8Array;
      readonly blocks: readonly WantedBlock[];
    }
  | {
      /**
       * Asks for blocks by the names that engines use for them (8 or 32 bytes each), in all
       * namespaces.
       */
      readonly op: "find";
      readonly names: readonly Uint8Array[];
    }
  | {
      readonly op: "summary";
      readonly namespace: Uint8Array;
      /** Version of the summary that the client already has. 0 if it has none. */
      readonly known: bigint;
    };

/** A host's copy of a block. `tiers` is 0 if the host has no copy. */
export interface PeerHas {
  /** Tiers that hold the block, as a bit mask of `Tier` (RAM and SSD). */
  readonly tiers: number;
  readonly bytes: number;
  readonly generation: bigint;
  /** XXH3-64 of the payload, as it was when the host stored the block. */
  readonly checksum: bigint;
}

/** A host's copy of a block that was found by an engine's name. */
export interface PeerFound extends WantedBlock, PeerHas {
  readonly namespace: Uint8Array;
}

export type PeerAnswer =
  | { readonly op: "hello"; readonly hello: PeerHello }
  | { readonly op: "has"; readonly blocks: readonly PeerHas[] }
  /** For each name of the request, the blocks that it identifies, at most 64. */
  | { readonly op: "find"; readonly found: readonly (readonly PeerFound[])[] }
  /** The host's current summary. `filter` is null if the client already has this version. */
  | { readonly op: "summary"; readonly version: bigint; readonly filter: Uint8Array | null }
  | { readonly op: "busy"; readonly retryAfterMs: number }
  | { readonly op: "refused"; readonly why: string };

/**
 * Header of a block that is sent to a client. The client compares length, address and namespace
 * with its request.
 */
export interface FrameHeader {
  readonly digest: Uint8Array;
  readonly layer: number;
  /** Model name, at most 255 bytes of UTF-8. Empty if the sender does not know the name. */
  readonly model: string;
  /** Length of the payload in bytes. */
  readonly bytes: number;
  readonly namespace: Uint8Array;
  /** Generation of the sender's copy. Changes whenever the sender stores the block again. */
  readonly generation: bigint;
  /** XXH3-64 of the payload, computed when the block was written to the cache. */
  readonly checksum: bigint;
  /**
   * MAC of the block under the namespace's key: 16 bytes. Null if the block has none, or the peer's
   * version does not send it.
   */
  readonly mac: Uint8Array | null;
  /**
   * Digest of the block before this one in the prompt. Null if there is none or the sender does not
   * know it.
   */
  readonly parent: Uint8Array | null;
  /** True if the receiver must not write the block to SSD. */
  readonly transient: boolean;
  /**
   * Engines' names of the block, at most 8: engine hashes (8 bytes, little-endian) or page keys (32
   * bytes).
   */
  readonly aliases: readonly Uint8Array[];
}

/** Reply for one block of a pull that the peer does not send. */
export type ItemRefusal =
  | { readonly kind: "absent" }
  | { readonly kind: "busy"; readonly retryAfterMs: number }
  /** The payload has `bytes` bytes, more than the `bytesMax` of the request. */
  | { readonly kind: "tooLong"; readonly bytes: number }
  | { readonly kind: "refused"; readonly why: string };
