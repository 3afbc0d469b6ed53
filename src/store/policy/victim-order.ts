import type { NodeId } from "../../core/index.ts";

/** What an order may ask its owner about a node; both answers must cost constant time. */
export interface OrderView {
  /** The block before this one in its prompts, resident or not; NO_NODE at a prompt's start. */
  parentOf(node: NodeId): NodeId;
  /** 32 bits of the block's key: equal whenever the same block comes back under another id. */
  fingerprintOf(node: NodeId): number;
}

/**
 * Decides what leaves one tier, and keeps what it needs to know for that: one instance a tier. Ids
 * are dense whole numbers from 1 below the bound the order was made with; an id may name another
 * block once the owner has said that it was removed.
 *
 * What the owner says, in this order of life:
 *
 * - `stored(ids)`: these became resident just now, because a request wrote them. Ids run from the
 *   first block to the last; as a rule each is the parent of the next.
 * - `used(ids)`: a request found these resident. Said before the same request's `stored`.
 * - `protect(id)`: it must not go (locked, pinned, or above such a node), whether it is resident
 *   or not. `unprotect(id)`: it may again; the deepest of several first. They come in pairs.
 * - `removed(id)`: it is no longer resident, for whatever reason. Its parent can still be asked.
 *
 * A request comes in pieces of any length: a piece whose first block's parent was the last block of
 * an earlier piece continues that request, and no call says which piece is the last. Pieces of
 * several requests may alternate. `used` and `stored` of one request count as one use.
 *
 * What the order promises:
 *
 * - `victim` answers a resident, unprotected id with no resident descendant, or NO_NODE where
 *   nothing unprotected is resident. It changes nothing the owner can see: until something is said,
 *   it gives the same answer.
 * - Only what it was told counts: no clock, no chance, no look ahead. The same calls always get the
 *   same answers.
 * - Amortised constant time a block named (`lru`: and for each ancestor of a piece); memory as
 *   `bytes` says, all of it taken at the start.
 */
export interface VictimOrder {
  readonly name: string;
  /** Bytes of all its arrays. */
  readonly bytes: number;
  used(ids: ArrayLike<NodeId>): void;
  stored(ids: ArrayLike<NodeId>): void;
  removed(id: NodeId): void;
  protect(id: NodeId): void;
  unprotect(id: NodeId): void;
  victim(): NodeId;
}

/** Makes an order for ids from 1 to `idsMax`. */
export type CreateOrder = (view: OrderView, idsMax: number) => VictimOrder;
