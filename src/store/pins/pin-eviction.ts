import { type Clock, NO_NODE, type NodeId } from "../../core/index.ts";
import { type BlockTable, Tier } from "../blocks/index.ts";
import { MinHeap } from "./min-heap.ts";
import type { Pin, PinPart, PinTable } from "./pin-table.ts";
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

type EvictionTier = "ram" | "ssd";

interface Ranked {
  readonly pin: Pin;
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
  scan: PinScan | null;
  again: PinScan | null;
  hasFound: boolean;
  readonly madeMs: number;
  tookMs: number;
}

/** A hold that is being looked at. */
interface PinScan {
  readonly pin: Pin;
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
export class PinEviction {
  readonly #table: BlockTable;
  readonly #pinTable: PinTable;
  readonly #clock: Clock;
  readonly #orders = new Map<string, Order>();
  /** Nodes that keep nothing on the tier, nor does what is above them: not looked at again. */
  readonly #unpinnedPaths = { ram: new Set<NodeId>(), ssd: new Set<NodeId>() };
  #steps = 0;
  #clockCheckAtStep = 0;
  #untilMs = 0;

  constructor(table: BlockTable, pinTable: PinTable, clock: Clock) {
    this.#table = table;
    this.#pinTable = pinTable;
    this.#clock = clock;
  }

  /** Null where no hold of the level keeps a block from leaving the tier, as far as it looked. */
  least(tier: EvictionTier, level: ReliefLevel): Pin | null {
    if (this.#pinTable.size === 0 || this.#keepsNothing(tier)) return null;
    const key = `${tier}/${level}`;
    const old = this.#orders.get(key);
    const nowMs = this.#clock.monotonicMs();
    const oldMs = old?.hasFound ? ORDER_MS : ORDER_FOUND_NONE_MS;
    if (old !== undefined && nowMs - old.madeMs < oldMs) {
      const found = this.#takeFrom(old, tier, level);
      if (found !== null || !isOver(old)) return found;
      if (nowMs - old.madeMs < old.tookMs * REST) return null;
    }
    this.#unpinnedPaths[tier].clear();
    const fresh = {
      rankedTo: 0,
      isRanked: false,
      scan: null,
      again: null,
      hasFound: false,
      tookMs: 0,
    };
    const order: Order = { heap: new MinHeap(isWorthLess), madeMs: nowMs, ...fresh };
    this.#orders.set(key, order);
    return this.#takeFrom(order, tier, level);
  }

  #keepsNothing(tier: EvictionTier): boolean {
    return (tier === "ram" ? this.#table.keptInRamAloneBytes : this.#table.keptBytes) === 0;
  }

  /** What keeps nothing on this tier is passed over until the next ranking. */
  #takeFrom(order: Order, tier: EvictionTier, level: ReliefLevel): Pin | null {
    const beginMs = this.#clock.monotonicMs();
    this.#setBudget(STEPS_A_CALL, CALL_MS);
    if (!order.isRanked) this.#rankMore(order, tier, level);
    // The least of those so far is looked for all the same.
    this.#setBudget(STEPS_A_CALL / 2, CALL_MS / 2);
    const found = this.#next(order, tier);
    if (found !== null) order.hasFound = true;
    order.tookMs += this.#clock.monotonicMs() - beginMs;
    return found;
  }

  #setBudget(steps: number, ms: number): void {
    this.#steps = steps;
    this.#clockCheckAtStep = steps - STEPS_A_LOOK;
    this.#untilMs = this.#clock.monotonicMs() + ms;
  }

  /** False once a call has looked for long enough. */
  #hasBudget(): boolean {
    if (this.#steps > this.#clockCheckAtStep) return true;
    this.#clockCheckAtStep = this.#steps - STEPS_A_LOOK;
    if (this.#clock.monotonicMs() > this.#untilMs) this.#steps = 0;
    return this.#steps > 0;
  }

  /** What keeps nothing on this tier is passed over until the next ranking. */
  #rankMore(order: Order, tier: EvictionTier, level: ReliefLevel): void {
    const upcoming = this.#pinTable.after(order.rankedTo);
    while (this.#hasBudget()) {
      if (order.scan === null) {
        const { value: pin, done } = upcoming.next();
        order.isRanked = done === true;
        if (done) return;
        order.rankedTo = pin.id;
        this.#steps--;
        if ((pin.kind === "retain") === (level === "soft")) order.scan = scanOf(pin);
        continue;
      }
      const { pin } = order.scan;
      const keeps = this.#keeps(order.scan, tier);
      if (keeps === null) return;
      order.scan = null;
      if (!keeps || pin.ended) continue;
      this.#steps -= pin.nodes.size;
      const lastUsed = this.#pinTable.lastUsed(pin);
      order.heap.push({ pin, rank: this.#pinTable.worthOf(pin) ?? lastUsed, lastUsed });
    }
  }

  /** The least that still keeps something there. */
  #next(order: Order, tier: EvictionTier): Pin | null {
    for (let first = order.heap.peek(); first !== undefined; first = order.heap.peek()) {
      const { pin } = first;
      if (!pin.ended) {
        order.again ??= scanOf(pin);
        const keeps = this.#keeps(order.again, tier);
        if (keeps === null) return null;
        if (keeps) return pin;
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
  #keeps(scan: PinScan, tier: EvictionTier): boolean | null {
    const unpinnedPaths = this.#unpinnedPaths[tier];
    for (; this.#hasBudget(); this.#steps--) {
      const { step } = scan;
      if (step === NO_NODE || unpinnedPaths.has(step)) {
        const next = scan.nodes.next();
        if (next.done) return false;
        scan.from = next.value;
        scan.step = next.value;
        continue;
      }
      if (this.#isKeptOn(step, tier)) {
        for (let below = scan.from; below !== step; below = this.#table.parentOf(below))
          unpinnedPaths.delete(below);
        return true;
      }
      unpinnedPaths.add(step);
      scan.step = this.#table.parentOf(step);
    }
    return null;
  }

  #isKeptOn(node: NodeId, tier: EvictionTier): boolean {
    const onSsd = this.#table.isResident(node, Tier.ssd);
    return tier === "ssd" ? onSsd : !onSsd && this.#table.isResident(node, Tier.ram);
  }
}

function scanOf(pin: Pin): PinScan {
  return { pin, nodes: pin.nodes[Symbol.iterator](), from: NO_NODE, step: NO_NODE };
}

function isOver({ isRanked, heap }: Order): boolean {
  return isRanked && heap.size === 0;
}

/** The lower rank first, then what was used longest ago, then the larger, then the older one. */
function isWorthLess(a: Ranked, b: Ranked): boolean {
  if (a.rank !== b.rank) return a.rank < b.rank;
  if (a.lastUsed !== b.lastUsed) return a.lastUsed < b.lastUsed;
  if (a.pin.bytes !== b.pin.bytes) return a.pin.bytes > b.pin.bytes;
  return a.pin.id < b.pin.id;
}

/** An owner lets go of blocks, of each once; what that changes is written down at the end. */
export class Unpinning {
  readonly #pinTable: PinTable;
  readonly #kind: "pin" | "retain";
  readonly #owner: string;
  readonly #changed = new Map<PinPart, Pin>();
  readonly #drained = new Set<Pin>();

  constructor(pinTable: PinTable, kind: "pin" | "retain", owner: string) {
    this.#pinTable = pinTable;
    this.#kind = kind;
    this.#owner = owner;
  }

  /** False where the owner has no hold on it. */
  letGo(node: NodeId): boolean {
    const pin = this.#pinTable.index.endsFirst(this.#kind, this.#owner, node);
    if (pin === null) return false;
    this.#changed.set(this.#pinTable.leave(pin, node), pin);
    if (pin.nodes.size === 0) {
      this.#pinTable.drop(pin);
      this.#drained.add(pin);
    }
    return true;
  }

  record(): void {
    const { records } = this.#pinTable;
    for (const [part, pin] of this.#changed) records.changePart(pin, part);
    for (const { id } of this.#drained) records.forget(id);
  }
}
