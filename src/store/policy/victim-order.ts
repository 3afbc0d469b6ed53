import { NO_NODE, type NodeId } from "../../core/index.ts";
import type { BlockTable } from "../blocks/index.ts";
import { createHearthOrder } from "./hearth-order.ts";

/**
 * Properties of nodes that an eviction order reads from its owner. Both calls must take constant
 * time.
 */
export interface OrderView {
  /** Returns the previous block of the prompt, resident or not; NO_NODE for a first block. */
  parentOf(node: NodeId): NodeId;
  /**
   * Returns 32 bits of the block's key, which are the same if the block returns under another node
   * id.
   */
  fingerprintOf(node: NodeId): number;
}

/**
 * Chooses eviction victims of one tier and keeps the state needed for that: one instance per tier.
 * Ids are dense integers from 1 below the bound given at creation. An id may denote another block
 * after `removed`.
 *
 * Calls by the owner, in the order of a block's life:
 *
 * - `stored(ids)`: a request has just written these, which are now resident. Ids run from the first
 *   block to the last; usually each is the parent of the next.
 * - `used(ids)`: a request found these resident. Called before `stored` of the same request.
 * - `protect(id)`: the block must not be evicted (it is locked, pinned, or an ancestor of such a
 *   block), whether or not it is resident. `unprotect(id)` ends that; of several, the deepest
 *   first. The calls are paired.
 * - `removed(id)`: the block has left the tier, for any reason. `parentOf` still works for it.
 *
 * A request is reported in pieces of any length. A piece continues an earlier one if the parent of
 * its first block is the earlier one's last block; no call marks the last piece. Pieces of several
 * requests may alternate. `used` and `stored` of one request count as one use.
 *
 * Guarantees:
 *
 * - `victim` returns a resident, unprotected id without resident descendants, or NO_NODE if every
 *   resident id is protected. It has no visible effect: without another call it returns the same
 *   id.
 * - The order is deterministic: it uses no clock, no randomness and no look-ahead.
 * - Amortised constant time per block named (`lru`: and per ancestor of a piece). All memory
 *   is allocated at creation.
 */
export interface VictimOrder {
  readonly name: string;
  used(ids: ArrayLike<NodeId>): void;
  stored(ids: ArrayLike<NodeId>): void;
  removed(id: NodeId): void;
  protect(id: NodeId): void;
  unprotect(id: NodeId): void;
  victim(): NodeId;
}

/** Creates an eviction order for node ids from 1 to `idsMax`. */
export type CreateOrder = (view: OrderView, idsMax: number) => VictimOrder;

/**
 * Creates the least-recently-used order. All resident, unprotected nodes are in one ring, each
 * newer than all its descendants: each reported piece of a request moves its blocks and all their
 * ancestors to the newest end, children before parents, and a node whose protection ends enters as
 * the newest. The oldest node is therefore a leaf.
 */
export function createLruOrder(view: OrderView, idsMax: number): VictimOrder {
  const newer = new Uint32Array(idsMax + 1);
  const older = new Uint32Array(idsMax + 1);
  const state = new Uint8Array(idsMax + 1);

  function unlink(id: number): void {
    older[newer[id]] = older[id];
    newer[older[id]] = newer[id];
  }

  /**
   * Adds a node as the newest. Entry 0 closes the ring: its successor is the oldest node, its
   * predecessor the newest.
   */
  function linkNewest(id: number): void {
    const newest = older[0];
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
      const id = ids[i];
      // Skip a node whose child was refreshed just before: one walk covers the whole chain.
      if (below === NO_NODE || view.parentOf(below) !== id) refreshPath(id);
      below = id;
    }
  }

  return {
    name: "lru",
    used: refresh,
    stored(ids) {
      for (let i = 0; i < ids.length; i++) {
        const id = ids[i];
        if ((state[id] & RESIDENT) !== 0) continue;
        state[id] = state[id] | RESIDENT;
        if (state[id] === RESIDENT) linkNewest(id);
      }
      refresh(ids);
    },
    removed(id) {
      if (state[id] === RESIDENT) unlink(id);
      state[id] = state[id] & ~RESIDENT;
    },
    protect(id) {
      if (state[id] === RESIDENT) unlink(id);
      state[id] = state[id] | PROTECTED;
    },
    unprotect(id) {
      if (state[id] === (RESIDENT | PROTECTED)) linkNewest(id);
      state[id] = state[id] & ~PROTECTED;
    },
    victim: () => newer[0] as NodeId,
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

/** Creates the order of this name for the nodes of a block table. */
export function createOrder(policy: PolicyName, table: BlockTable): VictimOrder {
  const key = new Uint32Array(8);
  const view = {
    parentOf: (node: NodeId) => table.parentOf(node),
    fingerprintOf(node: NodeId) {
      table.readKey(node, key, 0);
      return key[0];
    },
  };
  return ORDERS[policy](view, table.nodesMax);
}
