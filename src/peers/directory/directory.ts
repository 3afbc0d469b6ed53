import type { WorkerId } from "../../core/index.ts";
import type { HardwareReport } from "../messages.ts";
import type { Endpoint, TransportName } from "../transport.ts";

/** A host that blocks may be asked of, as the configuration or its own announcements say. */
export interface PeerRecord {
  readonly worker: WorkerId;
  /** Of its process; 0n: not known yet. Another one than before means that it was restarted. */
  readonly incarnation: bigint;
  readonly endpoints: Readonly<Partial<Record<TransportName, Endpoint>>>;
  /** Null: not known yet. */
  readonly hardware: HardwareReport | null;
  /** Keys (hex) of the namespaces it says it has blocks of; null: not known, so any. */
  readonly namespaces: ReadonlySet<string> | null;
  /** `static`: from the configuration, and never forgotten. */
  readonly origin: "static" | "announced";
  /** Monotonic, when it was last heard of; null for a static one that was not. */
  readonly heardMs: number | null;
}

/** The hosts that are known now. Bounded; the one not heard of for the longest time goes first. */
export interface Members {
  get(worker: WorkerId): PeerRecord | null;
  list(): readonly PeerRecord[];
  /** Called with each host that came, changed, was restarted or went. */
  onChange(
    listener: (change: {
      readonly kind: "came" | "changed" | "restarted" | "went";
      readonly peer: PeerRecord;
    }) => void,
  ): Disposable;
}

/**
 * Who probably has blocks, the likeliest first; at once, from what is known: summaries of peers and
 * earlier answers. Nobody is named who is known not to have the block.
 */
export interface Whereabouts {
  /** `key`: the `BlockKey`, 32 bytes at `at`. */
  holders(namespaceKey: Uint8Array, keys: Uint8Array, at: number): readonly WorkerId[];
  /** The peer did not have what it was believed to have. */
  wasWrong(worker: WorkerId, namespaceKey: Uint8Array, key: Uint8Array): void;
}

/** The router's word on who has blocks: the NATS service `kv-locate`. */
export interface Locator {
  /**
   * For each key (32 bytes) the workers that have it, the best first. Null: nobody answered within
   * `deadlineMs`, or there is no router. Never throws.
   */
  locate(
    namespaceKey: Uint8Array,
    keys: readonly Uint8Array[],
    deadlineMs: number,
    signal: AbortSignal,
  ): Promise<readonly (readonly WorkerId[])[] | null>;
}
