import { NO_NODE, type NodeId } from "../../core/index.ts";
import type { BlockTable } from "../blocks/index.ts";
import { createHearthOrder } from "./hearth-order.ts";

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

/**
 * Least recently used. All resident, unprotected nodes stand in one ring, in which each is newer
 * than all its descendants: a piece refreshes its blocks and all their ancestors from the bottom
 * up, and what is no longer protected comes in as the newest. So the oldest is a leaf.
 */
export function createLruOrder(view: OrderView, idsMax: number): VictimOrder {
  const newer = new Uint32Array(idsMax + 1);
  const older = new Uint32Array(idsMax + 1);
  const state = new Uint8Array(idsMax + 1);

  function unlink(id: number): void {
    older[newer[id]!] = older[id]!;
    newer[older[id]!] = newer[id]!;
  }

  /** Entry 0 closes the ring: ahead of it stands the oldest, behind it the newest. */
  function linkNewest(id: number): void {
    const newest = older[0]!;
    newer[newest] = id;
    older[id] = newest;
    newer[id] = 0;
    older[0] = id;
  }

  function refreshPath(from: NodeId): void {
    for (let id = from; id !== NO_NODE; id = view.parentOf(id)) {
      if (state[id] !== RESIDENT) continue;
      unlink(id);
      linkNewest(id);
    }
  }

  function refresh(ids: ArrayLike<NodeId>): void {
    let below: NodeId = NO_NODE;
    for (let i = ids.length - 1; i >= 0; i--) {
      const id = ids[i]!;
      // One walk serves a whole chain.
      if (below === NO_NODE || view.parentOf(below) !== id) refreshPath(id);
      below = id;
    }
  }

  return {
    name: "lru",
    bytes: newer.byteLength + older.byteLength + state.byteLength,
    used: refresh,
    stored(ids) {
      for (let i = 0; i < ids.length; i++) {
        const id = ids[i]!;
        if ((state[id]! & RESIDENT) !== 0) continue;
        state[id] = state[id]! | RESIDENT;
        if (state[id] === RESIDENT) linkNewest(id);
      }
      refresh(ids);
    },
    removed(id) {
      if (state[id] === RESIDENT) unlink(id);
      state[id] = state[id]! & ~RESIDENT;
    },
    protect(id) {
      if (state[id] === RESIDENT) unlink(id);
      state[id] = state[id]! | PROTECTED;
    },
    unprotect(id) {
      if (state[id] === (RESIDENT | PROTECTED)) linkNewest(id);
      state[id] = state[id]! & ~PROTECTED;
    },
    victim: () => newer[0]! as NodeId,
  };
}

const RESIDENT = 1;
const PROTECTED = 2;

const ORDERS = { hearth: createHearthOrder, lru: createLruOrder } as const satisfies Record<
  string,
  CreateOrder
>;

export type PolicyName = keyof typeof ORDERS;
export const POLICIES = Object.keys(ORDERS) as readonly PolicyName[];

/** The order of this name over the nodes of a table. */
export function createOrder(policy: PolicyName, table: BlockTable): VictimOrder {
  const key = new Uint32Array(8);
  const view = {
    parentOf: (node: NodeId) => table.parentOf(node),
    fingerprintOf(node: NodeId) {
      table.readKey(node, key, 0);
      return key[0]!;
    },
  };
  return ORDERS[policy](view, table.nodesMax);
}
