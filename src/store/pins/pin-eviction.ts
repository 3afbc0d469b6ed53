import { type Clock, NO_NODE, type NodeId } from "../../core/index.ts";
import { type BlockTable, Tier } from "../blocks/index.ts";
import { MinHeap } from "./min-heap.ts";
import type { Hold, HoldBook, HoldPart } from "./pin-table.ts";
import type { ReliefLevel } from "./pins.ts";

/** An order of holds serves this long; what was used meanwhile counts in the next one. */
const ORDER_MS = 1_000;
/** One in which nothing was found yet goes on for so long. */
const ORDER_FOUND_NONE_MS = 60_000;
/** A scan that found nothing is repeated when this many times its own duration has gone by. */
const REST = 9;
/** How long one call may rank for, and how many steps at most; half as long to look once more. */
const CALL_MS = 2;
const STEPS_A_CALL = 32_768;
/** Steps between two looks at the clock. */
const STEPS_A_LOOK = 64;

type ReliefTier = "ram" | "ssd";

interface Ranked {
  readonly hold: Hold;
  /** Soft pins: what is left of the priority. Others: when they were last used. */
  readonly rank: number;
  readonly lastUsed: number;
}

/** Holds in their order, as far as they were looked at. */
interface Order {
  readonly heap: MinHeap<Ranked>;
  /** Those with a greater id are still to be ranked. */
  rankedTo: number;
  isRanked: boolean;
  /** Being ranked, and being looked at again before it goes. */
  looked: Looked | null;
  again: Looked | null;
  hasFound: boolean;
  readonly madeMs: number;
  tookMs: number;
}

/** A hold that is being looked at. */
interface Looked {
  readonly hold: Hold;
  /** Those of its blocks that are still to be looked at. */
  readonly nodes: Iterator<NodeId>;
  /** The one at hand, and how far it went upwards from there. */
  from: NodeId;
  step: NodeId;
}

/**
 * Finds the hold that is worth least among those that keep something on a tier. All holds are
 * ranked at once and the ranking serves for a while, so that many in a row cost one scan. A call
 * looks at so many blocks and no more; the next one goes on from there. Where holds have more
 * blocks than that, the one it finds is the least of those that it has come to.
 */
export class Relief {
  readonly #table: BlockTable;
  readonly #book: HoldBook;
  readonly #clock: Clock;
  readonly #orders = new Map<string, Order>();
  /** Nodes that keep nothing on the tier, nor does what is above them: not looked at again. */
  readonly #bare = { ram: new Set<NodeId>(), ssd: new Set<NodeId>() };
  #steps = 0;
  #lookAtStep = 0;
  #untilMs = 0;

  constructor(table: BlockTable, book: HoldBook, clock: Clock) {
    this.#table = table;
    this.#book = book;
    this.#clock = clock;
  }

  /** Null where no hold of the level keeps a block from leaving the tier, as far as it looked. */
  least(tier: ReliefTier, level: ReliefLevel): Hold | null {
    if (this.#book.size === 0 || this.#keepsNothing(tier)) return null;
    const key = `${tier}/${level}`;
    const old = this.#orders.get(key);
    const nowMs = this.#clock.monotonicMs();
    const oldMs = old?.hasFound ? ORDER_MS : ORDER_FOUND_NONE_MS;
    if (old !== undefined && nowMs - old.madeMs < oldMs) {
      const found = this.#takeFrom(old, tier, level);
      if (found !== null || !isOver(old)) return found;
      if (nowMs - old.madeMs < old.tookMs * REST) return null;
    }
    this.#bare[tier].clear();
    const fresh = {
      rankedTo: 0,
      isRanked: false,
      looked: null,
      again: null,
      hasFound: false,
      tookMs: 0,
    };
    const order: Order = { heap: new MinHeap(isWorthLess), madeMs: nowMs, ...fresh };
    this.#orders.set(key, order);
    return this.#takeFrom(order, tier, level);
  }

  #keepsNothing(tier: ReliefTier): boolean {
    return (tier === "ram" ? this.#table.keptInRamAloneBytes : this.#table.keptBytes) === 0;
  }

  /** What keeps nothing on this tier is passed over until the next ranking. */
  #takeFrom(order: Order, tier: ReliefTier, level: ReliefLevel): Hold | null {
    const beginMs = this.#clock.monotonicMs();
    this.#allow(STEPS_A_CALL, CALL_MS);
    if (!order.isRanked) this.#rankMore(order, tier, level);
    // The least of those so far is looked for all the same.
    this.#allow(STEPS_A_CALL / 2, CALL_MS / 2);
    const found = this.#next(order, tier);
    if (found !== null) order.hasFound = true;
    order.tookMs += this.#clock.monotonicMs() - beginMs;
    return found;
  }

  #allow(steps: number, ms: number): void {
    this.#steps = steps;
    this.#lookAtStep = steps - STEPS_A_LOOK;
    this.#untilMs = this.#clock.monotonicMs() + ms;
  }

  /** False once a call has looked for long enough. */
  #mayLook(): boolean {
    if (this.#steps > this.#lookAtStep) return true;
    this.#lookAtStep = this.#steps - STEPS_A_LOOK;
    if (this.#clock.monotonicMs() > this.#untilMs) this.#steps = 0;
    return this.#steps > 0;
  }

  /** What keeps nothing on this tier is passed over until the next ranking. */
  #rankMore(order: Order, tier: ReliefTier, level: ReliefLevel): void {
    const upcoming = this.#book.after(order.rankedTo);
    while (this.#mayLook()) {
      if (order.looked === null) {
        const { value: hold, done } = upcoming.next();
        order.isRanked = done === true;
        if (done) return;
        order.rankedTo = hold.id;
        this.#steps--;
        if ((hold.kind === "retain") === (level === "soft")) order.looked = lookAt(hold);
        continue;
      }
      const { hold } = order.looked;
      const keeps = this.#keeps(order.looked, tier);
      if (keeps === null) return;
      order.looked = null;
      if (!keeps || hold.ended) continue;
      this.#steps -= hold.nodes.size;
      const lastUsed = this.#book.lastUsed(hold);
      order.heap.push({ hold, rank: this.#book.worthOf(hold) ?? lastUsed, lastUsed });
    }
  }

  /** The least that still keeps something there. */
  #next(order: Order, tier: ReliefTier): Hold | null {
    for (let first = order.heap.peek(); first !== undefined; first = order.heap.peek()) {
      const { hold } = first;
      if (!hold.ended) {
        order.again ??= lookAt(hold);
        const keeps = this.#keeps(order.again, tier);
        if (keeps === null) return null;
        if (keeps) return hold;
      }
      order.heap.pop();
      order.again = null;
    }
    return null;
  }

  /**
   * Whether one of its blocks, or of those above them, stays on the tier because it is kept; null
   * where that is not yet seen.
   */
  #keeps(looked: Looked, tier: ReliefTier): boolean | null {
    const bare = this.#bare[tier];
    for (; this.#mayLook(); this.#steps--) {
      const { step } = looked;
      if (step === NO_NODE || bare.has(step)) {
        const next = looked.nodes.next();
        if (next.done) return false;
        looked.from = next.value;
        looked.step = next.value;
        continue;
      }
      if (this.#isKeptOn(step, tier)) {
        for (let below = looked.from; below !== step; below = this.#table.parentOf(below))
          bare.delete(below);
        return true;
      }
      bare.add(step);
      looked.step = this.#table.parentOf(step);
    }
    return null;
  }

  #isKeptOn(node: NodeId, tier: ReliefTier): boolean {
    const onSsd = this.#table.isResident(node, Tier.ssd);
    return tier === "ssd" ? onSsd : !onSsd && this.#table.isResident(node, Tier.ram);
  }
}

function lookAt(hold: Hold): Looked {
  return { hold, nodes: hold.nodes[Symbol.iterator](), from: NO_NODE, step: NO_NODE };
}

function isOver({ isRanked, heap }: Order): boolean {
  return isRanked && heap.size === 0;
}

/** The lower rank first, then what was used longest ago, then the larger, then the older one. */
function isWorthLess(a: Ranked, b: Ranked): boolean {
  if (a.rank !== b.rank) return a.rank < b.rank;
  if (a.lastUsed !== b.lastUsed) return a.lastUsed < b.lastUsed;
  if (a.hold.bytes !== b.hold.bytes) return a.hold.bytes > b.hold.bytes;
  return a.hold.id < b.hold.id;
}

/** An owner lets go of blocks, of each once; what that changes is written down at the end. */
export class LettingGo {
  readonly #book: HoldBook;
  readonly #kind: "pin" | "retain";
  readonly #owner: string;
  readonly #changed = new Map<HoldPart, Hold>();
  readonly #over = new Set<Hold>();

  constructor(book: HoldBook, kind: "pin" | "retain", owner: string) {
    this.#book = book;
    this.#kind = kind;
    this.#owner = owner;
  }

  /** False where the owner has no hold on it. */
  letGo(node: NodeId): boolean {
    const hold = this.#book.index.endsFirst(this.#kind, this.#owner, node);
    if (hold === null) return false;
    this.#changed.set(this.#book.leave(hold, node), hold);
    if (hold.nodes.size === 0) {
      this.#book.drop(hold);
      this.#over.add(hold);
    }
    return true;
  }

  record(): void {
    const { records } = this.#book;
    for (const [part, hold] of this.#changed) records.changePart(hold, part);
    for (const { id } of this.#over) records.forget(id);
  }
}
