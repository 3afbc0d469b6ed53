import { HearthError, NO_NODE, type NodeId } from "../../core/index.ts";
import { type CreateOrder, createHearthOrder } from "../../store/index.ts";
import type { Trace } from "../traces/index.ts";
import { type FlatTrace, flattenTrace } from "./flat-trace.ts";
import { rounded, yieldOrAbort } from "./measure.ts";

/**
 * A simulated eviction policy: opens an empty cache of `capacity` blocks, at least 1, for one
 * run over `trace`. The cache holds whole blocks of one size and serves the prompts of the trace.
 * Blocks are numbers from 0 without gaps, so state is flat arrays. Rules of every policy:
 *
 * - A request hits its leading blocks that are present when it arrives, up to the first that is
 *   not.
 * - Then all its blocks are used, from the last to the first. A present block, before or after
 *   the first miss, is refreshed; an absent one is stored, and if the cache is full, one block is
 *   evicted just before. The evicted block may belong to the same request, even if it was hit.
 * - A prompt longer than the cache follows the same steps: the blocks stored last remain.
 *
 * Only `best` decides after the whole request, and may keep nothing of it. These rules were found
 * by experiment: they reproduce the published figures of the traces to four digits.
 */
type LabPolicy = (trace: FlatTrace, capacity: number) => LabCache;

interface LabCache {
  /**
   * Simulates the next request of the trace, whose blocks are `trace.blocks[from .. to)`. Returns
   * the number of its blocks that hit. Called once for each request, in order.
   */
  serve(from: number, to: number): number;
}

/**
 * Least recently used. The blocks of a prompt are used from the last to the first, so a block is
 * always more recently used than its descendants, and leaves are evicted first.
 */
const lru: LabPolicy = ({ blocks, distinct }, capacity) => {
  const lists = createLists(distinct, 1);
  let size = 0;

  function use(block: number): void {
    if (lists.has(block)) lists.remove(block);
    else if (size < capacity) size++;
    else lists.remove(lists.first(0));
    lists.append(0, block);
  }

  return {
    serve(from, to) {
      const hits = lists.leading(blocks, from, to);
      for (let at = to - 1; at >= from; at--) use(blocks[at]);
      return hits;
    },
  };
};

/** Number of blocks that an engine names in one frame. */
const FRAME_BLOCKS = 64;

/** The agent's own eviction order, driven as the agent drives it. */
const hearth: LabPolicy = (trace, capacity) => new OrderedCache(trace, capacity, createHearthOrder);

const NEVER = 0xffff_ffff;

/**
 * The highest possible hit ratio, with full knowledge of the future and the choice not to store a
 * block (Belady 1966): evicts the block whose next use is farthest, the deepest first. A prefix is
 * always needed no later than its last block, so this never breaks a prefix. A next use is an index
 * in the flat trace, which orders uses by request and then by depth; the set of these indices
 * represents the cached blocks.
 */
const best: LabPolicy = (trace, capacity) => {
  const { blocks, distinct } = trace;
  const nextUse = nextUses(trace);
  const present = new Uint8Array(distinct);
  const positions = createPositions(blocks.length);
  let size = 0;
  return {
    serve(from, to) {
      let miss = from;
      while (miss < to && present[blocks[miss]] === 1) miss++;
      for (let at = from; at < to; at++) {
        const block = blocks[at];
        if (present[block] === 1) {
          positions.remove(at);
          present[block] = 0;
          size--;
        }
        const next = nextUse[at];
        if (next === NEVER) continue;
        positions.add(next);
        present[block] = 1;
        size++;
      }
      while (size > capacity) {
        const farthest = positions.last();
        positions.remove(farthest);
        present[blocks[farthest]] = 0;
        size--;
      }
      return miss - from;
    },
  };
};

const POLICIES = { lru, hearth, best } as const satisfies Record<string, LabPolicy>;

export type PolicyName = keyof typeof POLICIES;

export const POLICY_NAMES = Object.keys(POLICIES) as readonly PolicyName[];

export interface PolicyBenchOptions {
  readonly trace: Trace;
  /** Cache sizes in blocks of the trace, each a whole number of at least 1. */
  readonly capacities: readonly number[];
  readonly policies: readonly PolicyName[];
  /**
   * Called periodically with the number of simulated block uses and the total, after the trace is
   * read.
   */
  readonly onProgress?: (done: number, total: number) => void;
  readonly signal?: AbortSignal;
}

/** Result of one policy at one capacity, under the names in the printed JSON. */
export interface PolicyRow {
  readonly trace: string;
  readonly capacity: number;
  readonly policy: PolicyName;
  /** `blocks_hit / blocks_asked`, rounded to four digits. */
  readonly hit_ratio: number;
  readonly blocks_asked: number;
  readonly blocks_hit: number;
  /**
   * (hits − LRU hits) / (best hits − LRU hits), rounded to four digits: 0 is LRU, 1 the best
   * possible, below 0 worse than LRU. Null unless both `lru` and `best` were run and differ.
   */
  readonly score: number | null;
  /** Simulated block uses per second of wall time. */
  readonly decisions_per_s: number;
}

/** Number of block uses between two checks of the abort signal, which take some milliseconds. */
const SLICE_USES = 2 ** 18;

/**
 * Simulates a trace with each policy and capacity, each time from an empty cache, and returns the
 * hit ratios: capacities in the given order, and for each one the policies in theirs. `LabPolicy`
 * states the rules. Needs 4 bytes per use (`best`: 8 more) and about 16 per distinct block. Throws
 * USAGE for a capacity that is not a whole number from 1, TRACE_INVALID for a broken trace, ABORTED
 * when the signal fires.
 */
export async function benchPolicy(options: PolicyBenchOptions): Promise<PolicyRow[]> {
  const { trace, capacities, policies, signal } = options;
  for (const capacity of capacities)
    if (!Number.isSafeInteger(capacity) || capacity < 1)
      throw new HearthError("USAGE", `a capacity of ${capacity} blocks`, {
        fix: "give whole numbers from 1",
      });
  const flat = await flattenTrace(trace, signal);
  const asked = flat.blocks.length;
  const total = asked * capacities.length * policies.length;
  const rows: PolicyRow[] = [];
  for (const capacity of capacities) {
    const ofCapacity: Omit<PolicyRow, "score">[] = [];
    for (const policy of policies) {
      const before = (rows.length + ofCapacity.length) * asked;
      const report = (done: number) => options.onProgress?.(before + done, total);
      const start = Bun.nanoseconds();
      const hit = await simulate(flat, POLICIES[policy], capacity, report, signal);
      const seconds = (Bun.nanoseconds() - start) / 1e9;
      ofCapacity.push({
        trace: trace.name,
        capacity,
        policy,
        hit_ratio: asked === 0 ? 0 : rounded(hit / asked, 4),
        blocks_asked: asked,
        blocks_hit: hit,
        decisions_per_s: Math.round(asked / Math.max(seconds, 1e-9)),
      });
    }
    rows.push(...withScores(ofCapacity));
  }
  return rows;
}

/** Adds scores to the rows of one trace and capacity. */
function withScores(rows: readonly Omit<PolicyRow, "score">[]): PolicyRow[] {
  const hitsOf = (policy: PolicyName) => rows.find((row) => row.policy === policy)?.blocks_hit;
  const low = hitsOf("lru");
  const high = hitsOf("best");
  const isScored = low !== undefined && high !== undefined && low < high;
  return rows.map((row) => ({
    ...row,
    score: isScored ? rounded((row.blocks_hit - low) / (high - low), 4) : null,
  }));
}

async function simulate(
  trace: FlatTrace,
  policy: LabPolicy,
  capacity: number,
  report: (done: number) => void,
  signal: AbortSignal | undefined,
): Promise<number> {
  // A capacity above the number of distinct blocks changes no result and would waste memory.
  const cache = policy(trace, Math.min(capacity, Math.max(trace.distinct, 1)));
  let hits = 0;
  let from = 0;
  let pause = SLICE_USES;
  for (const to of trace.ends) {
    hits += cache.serve(from, to);
    from = to;
    if (to < pause && to < trace.blocks.length) continue;
    pause = to + SLICE_USES;
    report(to);
    await yieldOrAbort(signal);
  }
  return hits;
}

/**
 * A simulated cache that uses an eviction order of the agent. Only resident blocks have node ids,
 * requests arrive in frames, and all blocks of a frame are reserved before the first is stored. If
 * no block can be evicted for a new one, the rest of the prompt is not stored.
 */
class OrderedCache implements LabCache {
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
      parentOf: (id: NodeId) => this.#parentOf[id] as NodeId,
      fingerprintOf: (id: NodeId) => fingerprint(this.#blockOf[id]),
    };
    this.#order = create(view, capacity);
  }

  serve(from: number, to: number): number {
    const { blocks } = this.#trace;
    let miss = from;
    while (miss < to && this.#idOf[blocks[miss]] !== 0) miss++;
    for (let at = from; at < miss; ) {
      const ids: NodeId[] = [];
      const end = Math.min(miss, at + FRAME_BLOCKS);
      for (; at < end; at++) ids.push(this.#idOf[blocks[at]] as NodeId);
      this.#order.used(ids);
    }
    for (let at = miss; at < to; at += FRAME_BLOCKS) {
      const parent = at === from ? NO_NODE : (this.#idOf[blocks[at - 1]] as NodeId);
      if (!this.#store(blocks.subarray(at, Math.min(to, at + FRAME_BLOCKS)), parent)) break;
    }
    return miss - from;
  }

  /** Stores the blocks of a frame below `above`. Returns false if not all were stored. */
  #store(frame: Uint32Array, above: NodeId): boolean {
    const ids: NodeId[] = [];
    let parent = above;
    // Storing a block must not evict its own ancestors.
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
    this.#idOf[this.#blockOf[victim]] = 0;
    return victim;
  }
}

/**
 * Returns a fingerprint as evenly distributed as the agent's, which is part of a hash. Uses the
 * last step of MurmurHash3.
 */
function fingerprint(block: number): number {
  let hash = block + 1;
  hash = Math.imul(hash ^ (hash >>> 16), 0x85eb_ca6b);
  hash = Math.imul(hash ^ (hash >>> 13), 0xc2b2_ae35);
  return (hash ^ (hash >>> 16)) >>> 0;
}

/** Returns, for each use of a block, the index of the next use of the same block. */
function nextUses({ blocks, distinct }: FlatTrace): Uint32Array {
  const following = new Uint32Array(distinct).fill(NEVER);
  const next = new Uint32Array(blocks.length);
  for (let at = blocks.length - 1; at >= 0; at--) {
    const block = blocks[at];
    next[at] = following[block];
    following[block] = at;
  }
  return next;
}

/**
 * A set of whole numbers below a limit that can return its largest member. It has a bit for each
 * number and, level by level above it, a bit for each nonzero word. An operation accesses at most
 * six words.
 */
function createPositions(below: number) {
  const levels: Uint32Array[] = [];
  for (let bits = Math.max(below, 1); levels.length === 0 || bits > 1; ) {
    const words = Math.ceil(bits / 32);
    levels.push(new Uint32Array(words));
    bits = words;
  }
  return {
    add(position: number) {
      let at = position;
      for (const words of levels) {
        const before = words[at >>> 5];
        words[at >>> 5] = before | (1 << (at & 31));
        if (before !== 0) return;
        at >>>= 5;
      }
    },
    remove(position: number) {
      let at = position;
      for (const words of levels) {
        const left = words[at >>> 5] & ~(1 << (at & 31));
        words[at >>> 5] = left;
        if (left !== 0) return;
        at >>>= 5;
      }
    },
    /** The largest; only of a set that is not empty. */
    last() {
      let at = 0;
      for (let level = levels.length - 1; level >= 0; level--)
        at = at * 32 + 31 - Math.clz32(levels[level][at]);
      return at;
    },
  };
}

const NONE = 0xffff_ffff;

/**
 * Doubly linked lists of the numbers 0 … items - 1; each item is in at most one list. Stored in
 * flat arrays: an item's links are at its own index, a list's first and last item at the index
 * `items + list`.
 */
export function createLists(items: number, lists: number) {
  const next = new Uint32Array(items + lists).fill(NONE, 0, items);
  const previous = new Uint32Array(items + lists);
  for (let head = items; head < items + lists; head++) {
    next[head] = head;
    previous[head] = head;
  }
  return {
    has: (item: number) => next[item] !== NONE,
    /** The item appended to `list` longest ago; only for a list that is not empty. */
    first: (list: number) => next[items + list],
    isEmpty: (list: number) => next[items + list] === items + list,
    /** Puts an item that is in no list at the end of one. */
    append(list: number, item: number) {
      const head = items + list;
      const last = previous[head];
      next[last] = item;
      previous[item] = last;
      next[item] = head;
      previous[head] = item;
    },
    remove(item: number) {
      const before = previous[item];
      const after = next[item];
      next[before] = after;
      previous[after] = before;
      next[item] = NONE;
    },
    /** How many of `items[from .. to)` are in a list, up to the first that is not. */
    leading(of: Uint32Array, from: number, to: number) {
      let at = from;
      while (at < to && next[of[at]] !== NONE) at++;
      return at - from;
    },
  };
}

export type Lists = ReturnType<typeof createLists>;
