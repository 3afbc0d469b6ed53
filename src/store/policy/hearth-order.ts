import { NO_NODE, type NodeId } from "../../core/index.ts";
import { ageStep } from "./return-model.ts";
import { ReuseStatistics } from "./reuse-statistics.ts";
import { Part, Segments, turnOf, useKind } from "./segments.ts";
import type { OrderView, VictimOrder } from "./victim-order.ts";

/**
 * Capacity of the statistics: one segment per 2.5 node ids and one ghost (record of an evicted
 * segment) per 4. A small cache gets the minimum.
 */
const IDS_A_SEGMENT = 2.5;
const SEGMENTS_MIN = 512;
const IDS_A_GHOST = 4;
const GHOSTS_MIN = 4096;
/**
 * A block with at least this many children is a shared prefix, so none of its children counts as
 * the conversation that returns.
 */
const CHILDREN_OF_A_START = 4;
/**
 * Shift that maps the bits of non-negative 32-bit floats to integers below 2^27 and preserves their
 * order.
 */
const WORTH_SHIFT = 5;
const KEY_MAX = 2 ** 27 - 1;

/**
 * Creates an eviction order that keeps the blocks most likely to be used again. Divides the path of
 * each request into segments with a common history. Learns from statistics of such segments the
 * worth of keeping a segment at each age, and evicts the leaf with the least worth. If LRU misses
 * hardly any hits, behaves exactly like LRU. See `docs/internals/policy.md`.
 */
export function createHearthOrder(view: OrderView, idsMax: number): VictimOrder {
  return new HearthOrder(view, idsMax);
}

class HearthOrder implements VictimOrder {
  readonly name = "hearth";
  readonly #view: OrderView;
  readonly #segments: Segments;
  readonly #leaves: Leaves;
  readonly #experience: ReuseStatistics;
  readonly #queue: VictimQueue;
  /** Number of requests so far. The order uses no other clock. */
  #now = 1;
  /** True if a block was removed before: the tier has been full. */
  #wasFull = false;
  /** Number of removals after which victims are chosen again. */
  #mayGo = 0;
  #eldest = 0;

  // State of the current request. Its deepest block is not evicted, since the next piece of the
  // request continues there.
  #isOpen = false;
  #known = 0;
  #fresh = 0;
  #turn = 0;
  #gap = 0;
  #added = 0;

  constructor(view: OrderView, idsMax: number) {
    this.#view = view;
    this.#segments = new Segments(SEGMENTS_MIN + Math.ceil(idsMax / IDS_A_SEGMENT));
    this.#queue = new VictimQueue(this.#segments, (segment) => this.#keyOf(segment));
    const offer = (segment: number) => this.#queue.offer(segment);
    this.#leaves = new Leaves(view, idsMax, this.#segments, offer);
    const ghostsMax = Math.max(GHOSTS_MIN, Math.ceil(idsMax / IDS_A_GHOST));
    this.#experience = new ReuseStatistics(this.#segments, ghostsMax);
  }

  used(ids: ArrayLike<NodeId>): void {
    this.#say(ids, false);
  }

  stored(ids: ArrayLike<NodeId>): void {
    this.#say(ids, true);
  }

  removed(id: NodeId): void {
    const leaves = this.#leaves;
    if (!leaves.isResident(id)) return;
    this.#wasFull = true;
    const segment = leaves.segmentOf[id];
    const { blocks, gone } = this.#segments;
    if (gone[segment] < 0xffff) gone[segment] = gone[segment] + 1;
    if (blocks[segment] === 1 && !this.#isOfRequest(segment)) {
      this.#experience.leaveGhost(segment, this.#view.fingerprintOf(id), this.#now);
    }
    if (id === leaves.spared) leaves.spared = NO_NODE;
    leaves.leave(id);
    this.#leaveSegment(segment);
    // During mass removals, choose new victims only when one is requested.
    if (--this.#mayGo === 0) this.#queue.clear();
  }

  protect(id: NodeId): void {
    this.#leaves.protect(id);
  }

  unprotect(id: NodeId): void {
    this.#leaves.unprotect(id);
  }

  victim(): NodeId {
    let leaf = this.#queue.first();
    if (leaf === 0) {
      this.#choose();
      leaf = this.#queue.first();
    }
    if (leaf !== 0) return leaf as NodeId;
    const { spared } = this.#leaves;
    return spared !== NO_NODE && this.#leaves.isLeaf(spared) ? spared : NO_NODE;
  }

  #choose(): void {
    if (!this.#experience.guard.isBeaten) this.#eldest = this.#segments.eldest(this.#now);
    this.#mayGo = this.#queue.choose(this.#leaves.resident);
  }

  /**
   * Returns the sort key of a segment; the lowest keys are evicted first. The key is the worth, or
   * the time of the last use while the order behaves like LRU.
   */
  #keyOf(segment: number): number {
    const tick = this.#segments.tick[segment];
    const { guard, model } = this.#experience;
    if (!guard.isBeaten) return Math.min(KEY_MAX, Math.max(0, tick - this.#eldest));
    const kind = this.#segments.kind[segment];
    return model.worthBits(kind, ageStep(this.#now - tick)) >>> WORTH_SHIFT;
  }

  #say(ids: ArrayLike<NodeId>, stored: boolean): void {
    let from = 0;
    for (let at = 1; at <= ids.length; at++) {
      if (at < ids.length && this.#view.parentOf(ids[at]) === ids[at - 1]) continue;
      this.#piece(ids, from, at, stored);
      from = at;
    }
  }

  #piece(ids: ArrayLike<NodeId>, from: number, to: number, stored: boolean): void {
    const leaves = this.#leaves;
    const parent = this.#view.parentOf(ids[from]);
    if (!this.#isOpen || parent === NO_NODE || parent !== leaves.spared) this.#begin();
    this.#experience.used(to - from);
    const before = leaves.spared;
    for (let at = from; at < to; at++) {
      const id = ids[at];
      if (leaves.isResident(id)) this.#useAgain(id);
      else if (stored) this.#store(id);
      else continue;
      leaves.spared = id;
    }
    leaves.unlist(leaves.spared);
    if (before !== leaves.spared) leaves.list(before);
  }

  #begin(): void {
    this.#finish();
    this.#now++;
    if (this.#experience.isLookDue(this.#now)) this.#look();
    this.#isOpen = true;
    this.#known = this.#segments.open(useKind(Part.known, 0, 0, 0), this.#now);
    this.#fresh = this.#segments.open(useKind(Part.fresh, 0, 0, 0), this.#now);
    this.#turn = 0;
    this.#gap = 0;
    this.#added = 0;
  }

  #look(): void {
    const { guard } = this.#experience;
    const wasBeaten = guard.isBeaten;
    this.#experience.look(this.#now, this.#wasFull ? this.#leaves.resident : 0);
    if (guard.isBeaten !== wasBeaten) this.#choose();
  }

  #useAgain(id: NodeId): void {
    const segment = this.#leaves.segmentOf[id];
    if (this.#isOfRequest(segment)) return;
    const { kind, tick, size, blocks } = this.#segments;
    const age = this.#now - tick[segment];
    this.#experience.cameBack(kind[segment], age, size[segment], 1);
    this.#isKnown(kind[segment], age);
    if (this.#leaves.childrenOf(id) >= CHILDREN_OF_A_START) this.#turn = 0;
    this.#leaves.unlist(id);
    this.#join(id, this.#known);
    if (blocks[segment] === 1) this.#experience.awaitRest(segment, this.#now);
    this.#leaveSegment(segment);
  }

  #store(id: NodeId): void {
    this.#leaves.enter(id);
    const before = this.#experience.recall(this.#view.fingerprintOf(id), this.#now);
    if (before === null) {
      this.#join(id, this.#fresh);
      this.#added++;
      return;
    }
    this.#isKnown(before.kind, before.age);
    this.#join(id, this.#known);
    this.#knownAbove(id);
  }

  /**
   * Records that the blocks of the request so far were last used with this kind, `age` requests
   * ago.
   */
  #isKnown(kind: number, age: number): void {
    this.#turn = turnOf(kind) + 1;
    this.#gap = age;
    this.#added = 0;
  }

  /** Reclassifies the ancestors of a known block that were taken for new blocks of this request. */
  #knownAbove(id: NodeId): void {
    const { blocks } = this.#segments;
    let above = this.#view.parentOf(id);
    while (above !== NO_NODE && this.#leaves.isResident(above)) {
      if (this.#leaves.segmentOf[above] !== this.#fresh) return;
      this.#join(above, this.#known);
      blocks[this.#fresh] = blocks[this.#fresh] - 1;
      above = this.#view.parentOf(above);
    }
  }

  #isOfRequest(segment: number): boolean {
    return this.#isOpen && (segment === this.#known || segment === this.#fresh);
  }

  #join(id: number, segment: number): void {
    const { blocks } = this.#segments;
    this.#leaves.segmentOf[id] = segment;
    blocks[segment] = blocks[segment] + 1;
  }

  #leaveSegment(segment: number): void {
    const { blocks } = this.#segments;
    blocks[segment] = blocks[segment] - 1;
    if (blocks[segment] === 0 && !this.#isOfRequest(segment)) this.#segments.close(segment);
  }

  /** Finishes the current request: sets the final kind of its segments. */
  #finish(): void {
    if (!this.#isOpen) return;
    this.#experience.awaitNothing(this.#now);
    const end = this.#leaves.spared;
    this.#leaves.spared = NO_NODE;
    if (end !== NO_NODE) {
      const before = this.#leaves.segmentOf[end];
      const kind = useKind(Part.last, this.#turn, this.#gap, this.#added);
      this.#leaves.unlist(end);
      this.#join(end, this.#segments.open(kind, this.#now));
      this.#leaveSegment(before);
    }
    this.#isOpen = false;
    this.#seal(this.#known, Part.known);
    this.#seal(this.#fresh, Part.fresh);
    if (end !== NO_NODE) this.#leaves.list(end);
  }

  #seal(segment: number, part: Part): void {
    if (this.#segments.blocks[segment] === 0) {
      this.#segments.close(segment);
      return;
    }
    this.#segments.seal(segment, useKind(part, this.#turn, this.#gap, this.#added));
    if (this.#segments.leaf[segment] !== 0) this.#queue.offer(segment);
  }
}

const RESIDENT = 1;
const PROTECTED = 2;
/** State bit: the block is counted among its parent's children. */
const COUNTED = 4;
/** State bit: the block is in its segment's list of leaves. */
const LISTED = 8;

/**
 * The resident blocks, and those of them that can be evicted (leaves): unprotected blocks without
 * resident descendants. Each leaf is in a list of its segment. Takes 13 bytes per node id.
 */
class Leaves {
  /**
   * The last block of the current request. It is evicted only if no other leaf is left. NO_NODE if
   * there is none.
   */
  spared: NodeId = NO_NODE;
  /** Number of the segment of each resident block. */
  readonly segmentOf: Uint32Array;
  resident = 0;
  readonly #view: OrderView;
  readonly #segments: Segments;
  readonly #offer: (segment: number) => void;
  readonly #state: Uint8Array;
  /**
   * For a listed leaf: the next leaf of its segment. For other blocks: number of children that are
   * resident or have resident descendants.
   */
  readonly #nextOrChildren: Uint32Array;
  readonly #previous: Uint32Array;

  /** `offer`: called when a segment gets another leaf. */
  constructor(
    view: OrderView,
    idsMax: number,
    segments: Segments,
    offer: (segment: number) => void,
  ) {
    this.#view = view;
    this.#segments = segments;
    this.#offer = offer;
    this.segmentOf = new Uint32Array(idsMax + 1);
    this.#state = new Uint8Array(idsMax + 1);
    this.#nextOrChildren = new Uint32Array(idsMax + 1);
    this.#previous = new Uint32Array(idsMax + 1);
  }

  isResident(id: number): boolean {
    return (this.#state[id] & RESIDENT) !== 0;
  }

  /** Returns whether the block can be evicted. True for listed leaves and for the spared one. */
  isLeaf(id: number): boolean {
    const state = this.#state[id];
    if ((state & LISTED) !== 0) return true;
    return (state & (RESIDENT | PROTECTED)) === RESIDENT && this.#nextOrChildren[id] === 0;
  }

  /**
   * Returns the number of children that are resident or have resident descendants; 0 for a listed
   * leaf.
   */
  childrenOf(id: number): number {
    return (this.#state[id] & LISTED) !== 0 ? 0 : this.#nextOrChildren[id];
  }

  /** Adds a block that has become resident. */
  enter(id: NodeId): void {
    this.#state[id] = this.#state[id] | RESIDENT;
    this.resident++;
    this.#count(id);
  }

  /** Removes a block that has left the tier. */
  leave(id: NodeId): void {
    this.unlist(id);
    this.#state[id] = this.#state[id] & ~RESIDENT;
    this.resident--;
    if (this.#nextOrChildren[id] === 0) this.#uncount(id);
  }

  protect(id: NodeId): void {
    this.unlist(id);
    this.#state[id] = this.#state[id] | PROTECTED;
  }

  unprotect(id: NodeId): void {
    this.#state[id] = this.#state[id] & ~PROTECTED;
    this.list(id);
  }

  /**
   * Adds the block to its segment's list if it can be evicted. Call `unlist` before its segment
   * changes.
   */
  list(id: number): void {
    if ((this.#state[id] & LISTED) !== 0 || !this.isLeaf(id) || id === this.spared) return;
    const segment = this.segmentOf[id];
    const { leaf } = this.#segments;
    const next = leaf[segment];
    this.#nextOrChildren[id] = next;
    this.#previous[id] = 0;
    if (next !== 0) this.#previous[next] = id;
    leaf[segment] = id;
    this.#state[id] = this.#state[id] | LISTED;
    this.#offer(segment);
  }

  unlist(id: number): void {
    if ((this.#state[id] & LISTED) === 0) return;
    const next = this.#nextOrChildren[id];
    const previous = this.#previous[id];
    if (previous !== 0) this.#nextOrChildren[previous] = next;
    else this.#segments.leaf[this.segmentOf[id]] = next;
    if (next !== 0) this.#previous[next] = previous;
    this.#nextOrChildren[id] = 0;
    this.#state[id] = this.#state[id] & ~LISTED;
  }

  /** Counts a block that is resident, or has resident descendants, at its ancestors. */
  #count(from: NodeId): void {
    let id = from;
    while ((this.#state[id] & COUNTED) === 0) {
      const parent = this.#view.parentOf(id);
      if (parent === NO_NODE) return;
      this.#state[id] = this.#state[id] | COUNTED;
      this.unlist(parent);
      this.#nextOrChildren[parent] = this.#nextOrChildren[parent] + 1;
      id = parent;
    }
  }

  /** Reverts `#count` when neither the block nor a descendant is resident. */
  #uncount(from: NodeId): void {
    let id = from;
    while ((this.#state[id] & COUNTED) !== 0) {
      this.#state[id] = this.#state[id] & ~COUNTED;
      const parent = this.#view.parentOf(id);
      this.#nextOrChildren[parent] = this.#nextOrChildren[parent] - 1;
      if (this.#nextOrChildren[parent] !== 0) return;
      if ((this.#state[parent] & RESIDENT) !== 0) {
        this.list(parent);
        return;
      }
      id = parent;
    }
  }
}

/** Number of blocks chosen together: this share of the resident blocks, with a minimum. */
const SHARE = 1 / 32;
const BLOCKS_MIN = 32;
/**
 * Number of steps past blocks that are already chosen, per block, after which the choice is
 * repeated.
 */
const STEPS_EACH = 64;
const STEPS_MIN = 65_536;
const ORDER_BITS = 26;
const ORDER = 2 ** ORDER_BITS;

/**
 * The segments to evict next, the first one at the end of the array. Periodically chooses the
 * segments with the lowest keys. A segment that gets a leaf in between is inserted if its key is
 * low enough.
 */
class VictimQueue {
  readonly #segments: Segments;
  readonly #keyOf: (segment: number) => number;
  readonly #queue: number[] = [];
  #highestKey = -1;
  #steps = 0;
  #sorted = new Float64Array(64);

  /**
   * `keyOf`: returns the sort key of a segment, an integer from 0 up to, not including, 2^27. The
   * lowest keys are evicted first.
   */
  constructor(segments: Segments, keyOf: (segment: number) => number) {
    this.#segments = segments;
    this.#keyOf = keyOf;
  }

  /** Returns the leaf to evict next, or 0 if the queue is empty. */
  first(): number {
    const { leaf } = this.#segments;
    while (this.#queue.length > 0) {
      const segment = this.#queue.at(-1)!;
      if (leaf[segment] !== 0) return leaf[segment];
      this.#queue.pop();
      this.#segments.setQueued(segment, false);
    }
    return 0;
  }

  /**
   * Inserts the segment into the queue if its key is low enough. Call when the segment gets a leaf.
   */
  offer(segment: number): void {
    if (this.#segments.isQueued(segment)) return;
    const key = this.#keyOf(segment);
    if (key > this.#highestKey) return;
    this.#segments.setQueued(segment, true);
    let at = this.#queue.length;
    this.#queue.push(segment);
    for (; at > 0 && this.#keyOf(this.#queue[at - 1]) < key; at--) {
      this.#queue[at] = this.#queue[at - 1];
      this.#steps--;
    }
    this.#queue[at] = segment;
    // After too many steps, empty the queue: the choice is repeated when the next victim is
    // requested.
    if (this.#steps < 0) this.clear();
  }

  /** Empties the queue until the next `choose`. */
  clear(): void {
    for (const segment of this.#queue) this.#segments.setQueued(segment, false);
    this.#queue.length = 0;
    this.#highestKey = -1;
  }

  /**
   * Chooses the segments to evict next. Returns the number of blocks that may be evicted before the
   * next choice.
   */
  choose(resident: number): number {
    const segments = this.#segments;
    this.clear();
    const sorted = this.#sort();
    const wanted = Math.max(BLOCKS_MIN, resident * SHARE);
    let blocks = 0;
    for (let at = 0; at < sorted.length && blocks < wanted; at++) {
      const segment = sorted[at] % ORDER;
      this.#highestKey = Math.floor(sorted[at] / ORDER);
      blocks += segments.blocks[segment];
      segments.setQueued(segment, true);
      this.#queue.push(segment);
    }
    this.#queue.reverse();
    this.#steps = STEPS_MIN + STEPS_EACH * this.#queue.length;
    return Math.floor(wanted / 2);
  }

  /**
   * Returns key and number of each segment in one float, so that sorting needs no comparison
   * function.
   */
  #sort(): Float64Array {
    const { leaf, end } = this.#segments;
    if (this.#sorted.length < end) this.#sorted = new Float64Array(2 * end);
    let count = 0;
    for (let segment = 1; segment < end; segment++) {
      if (leaf[segment] === 0) continue;
      this.#sorted[count++] = this.#keyOf(segment) * ORDER + segment;
    }
    return this.#sorted.subarray(0, count).sort();
  }
}
