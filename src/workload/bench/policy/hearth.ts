import { NO_NODE, type NodeId } from "../../../core/index.ts";
import { type CreateOrder, createHearthOrder } from "../../../store/index.ts";
import type { FlatTrace } from "./flat-trace.ts";
import type { LabCache, LabPolicy } from "./policy.ts";

/** Blocks an engine names in a frame. */
const FRAME_BLOCKS = 64;

/** The agent's own order, driven as the agent drives it. */
export const hearth: LabPolicy = {
  name: "hearth",
  open: (trace, capacity) => new OrderedCache(trace, capacity, createHearthOrder),
};

/**
 * A cache that an order of the agent rules: ids are given to resident blocks only, a request comes
 * in frames, and a frame's blocks find their room before the first of them is stored. Where nothing
 * may go for a block, the rest of the prompt is not stored.
 */
export class OrderedCache implements LabCache {
  readonly #trace: FlatTrace;
  readonly #idOf: Uint32Array;
  readonly #blockOf: Uint32Array;
  readonly #parentOf: Uint32Array;
  readonly #free: number[] = [];
  readonly #order: ReturnType<CreateOrder>;

  constructor(trace: FlatTrace, capacity: number, create: CreateOrder) {
    this.#trace = trace;
    this.#idOf = new Uint32Array(trace.distinct);
    this.#blockOf = new Uint32Array(capacity + 1);
    this.#parentOf = new Uint32Array(capacity + 1);
    for (let id = capacity; id > 0; id--) this.#free.push(id);
    const view = {
      parentOf: (id: NodeId) => this.#parentOf[id]! as NodeId,
      fingerprintOf: (id: NodeId) => fingerprint(this.#blockOf[id]!),
    };
    this.#order = create(view, capacity);
  }

  serve(from: number, to: number): number {
    const { blocks } = this.#trace;
    let miss = from;
    while (miss < to && this.#idOf[blocks[miss]!] !== 0) miss++;
    for (let at = from; at < miss; ) {
      const ids: NodeId[] = [];
      const end = Math.min(miss, at + FRAME_BLOCKS);
      for (; at < end; at++) ids.push(this.#idOf[blocks[at]!]! as NodeId);
      this.#order.used(ids);
    }
    for (let at = miss; at < to; at += FRAME_BLOCKS) {
      const parent = at === from ? NO_NODE : (this.#idOf[blocks[at - 1]!]! as NodeId);
      if (!this.#store(blocks.subarray(at, Math.min(to, at + FRAME_BLOCKS)), parent)) break;
    }
    return miss - from;
  }

  /** False where not all of them found room. */
  #store(frame: Uint32Array, above: NodeId): boolean {
    const ids: NodeId[] = [];
    let parent = above;
    // A block's parent must not go for it, nor what was just written above it.
    if (parent !== NO_NODE) this.#order.protect(parent);
    for (const block of frame) {
      const id = this.#free.pop() ?? this.#evict();
      if (id === NO_NODE) break;
      this.#idOf[block] = id;
      this.#blockOf[id] = block;
      this.#parentOf[id] = parent;
      parent = id as NodeId;
      ids.push(parent);
    }
    this.#order.stored(ids);
    if (above !== NO_NODE) this.#order.unprotect(above);
    return ids.length === frame.length;
  }

  #evict(): number {
    const victim = this.#order.victim();
    if (victim === NO_NODE) return victim;
    this.#order.removed(victim);
    this.#idOf[this.#blockOf[victim]!] = 0;
    return victim;
  }
}

/** As evenly spread as the agent's, which is part of a hash (the finaliser of MurmurHash3). */
function fingerprint(block: number): number {
  let hash = block + 1;
  hash = Math.imul(hash ^ (hash >>> 16), 0x85eb_ca6b);
  hash = Math.imul(hash ^ (hash >>> 13), 0xc2b2_ae35);
  return (hash ^ (hash >>> 16)) >>> 0;
}
