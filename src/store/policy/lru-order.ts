import { NO_NODE, type NodeId } from "../../core/index.ts";
import type { OrderView, VictimOrder } from "./victim-order.ts";

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
