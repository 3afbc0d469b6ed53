import type { NodeId } from "../core/index.ts";
import type { SlotCopies } from "./lent-slot.ts";

/** One slot that a connection holds: either being written by it, or read by it `reads` times. */
export interface Hold {
  readonly node: NodeId;
  readonly slot: number;
  readonly generation: number;
  readonly offset: number;
  readonly bytes: number;
  readonly writing: boolean;
  /** Its bytes are being hashed: it can be neither aborted nor committed again. */
  committing: boolean;
  reads: number;
  /** Copies by devices into it; null: there was none. */
  copies: SlotCopies | null;
}
