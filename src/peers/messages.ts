import type { WorkerId } from "../core/index.ts";

/** One block as peers name it: the digest (32 bytes) and its layer. */
export interface WantedBlock {
  readonly digest: Uint8Array;
  readonly layer: number;
}

/** A block that is asked for, and what of it is accepted. */
export interface PullItem extends WantedBlock {
  /** The longest payload that may come, in bytes: what is reserved for it. */
  readonly bytesMax: number;
  /** Of the copy that is meant, as `has` told it; 0: any. */
  readonly generation: bigint;
}

/** What a host says of itself to one it speaks to, first thing on each link. */
export interface PeerHello {
  readonly worker: WorkerId;
  /** Of the agent's process: another one means that it was restarted. */
  readonly incarnation: bigint;
  readonly hardware: HardwareReport;
}

/** What decides which transports two hosts have in common. */
export interface HardwareReport {
  readonly hasRdmaNic: boolean;
  /** RDMA devices by name, 16 at most; empty without. */
  readonly rdmaDevices: readonly string[];
  readonly cores: number;
  /** AES instructions, which sealing at speed needs. */
  readonly hasAes: boolean;
}

/**
 * What one host asks another. All but `pull` have one answer; a pull is answered block by block.
 * Namespace keys have 32 bytes.
 */
export type PeerRequest =
  | { readonly op: "hello"; readonly hello: PeerHello }
  | {
      readonly op: "pull";
      readonly namespace: Uint8Array;
      readonly items: readonly PullItem[];
      /** Milliseconds from now after which the asker does not want them any more. */
      readonly deadlineMs: number;
    }
  | {
      readonly op: "has";
      readonly namespace: Uint8Array;
      readonly blocks: readonly WantedBlock[];
    }
  | {
      /** Who is meant by an engine's name, in whatever namespace: 8 or 32 bytes each. */
      readonly op: "find";
      readonly names: readonly Uint8Array[];
    }
  | {
      readonly op: "summary";
      readonly namespace: Uint8Array;
      /** The version the asker has; 0: none. */
      readonly known: bigint;
    };

/** What a host has of a block. `tier` 0: nothing. */
export interface PeerHas {
  /** Bits of `Tier` (RAM and SSD). */
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
  /** For each name what it leads to, 64 at most. */
  | { readonly op: "find"; readonly found: readonly (readonly PeerFound[])[] }
  /** `filter` null: the version the asker has is the latest. */
  | { readonly op: "summary"; readonly version: bigint; readonly filter: Uint8Array | null }
  | { readonly op: "busy"; readonly retryAfterMs: number }
  | { readonly op: "refused"; readonly why: string };

/** What stands before a block's bytes. Length and address are compared with the request. */
export interface FrameHeader {
  readonly digest: Uint8Array;
  readonly layer: number;
  /** Name of the model; empty where the sender does not know it. At most 255 bytes of UTF-8. */
  readonly model: string;
  /** Length of the payload. */
  readonly bytes: number;
  readonly namespace: Uint8Array;
  /** Of the sender's copy: changes whenever the block is stored anew there. */
  readonly generation: bigint;
  /** XXH3-64 of the payload, as the block's writer gave it. */
  readonly checksum: bigint;
  /** 16 bytes under the key of the namespace; null: the block has none, or the peer is too old. */
  readonly mac: Uint8Array | null;
  /** Digest of the block before it in the prompt; null: none, or not known there. */
  readonly parent: Uint8Array | null;
  /** It must not be written to SSD. */
  readonly transient: boolean;
  /** Other names of the block, 8 (engine hash, little-endian) or 32 bytes (page key); 8 at most. */
  readonly aliases: readonly Uint8Array[];
}

/** How a block of a pull was answered instead of with a frame. */
export type ItemRefusal =
  | { readonly kind: "absent" }
  | { readonly kind: "busy"; readonly retryAfterMs: number }
  /** Longer than `bytesMax`. */
  | { readonly kind: "tooLong"; readonly bytes: number }
  | { readonly kind: "refused"; readonly why: string };
