import { type Clock, NO_NODE, type NodeId } from "../../core/index.ts";
import { type BlockTable, Tier } from "../blocks/index.ts";
import { MinHeap } from "./min-heap.ts";
import type { Pin, PinPart, PinTable } from "./pin-table.ts";
import type { PinEvictionLevel } from "./pins.ts";

/**
 * Milliseconds after which a ranking of the pins is discarded. Uses of blocks after the ranking was
 * made count in the next one.
 */
const ORDER_MS = 1_000;
/** Milliseconds after which a ranking is discarded if it has not found a pin to end yet. */
const ORDER_FOUND_NONE_MS = 60_000;
/** A ranking that found no pin is not repeated for this many times the time that it took. */
const REST = 9;
/**
 * Limits of the ranking part of one call: milliseconds, and blocks visited (steps). The final check
 * of the chosen pin may take half as much again.
 */
const CALL_MS = 2;
const STEPS_A_CALL = 32_768;
/** Number of blocks visited (steps) between two reads of the clock. */
const STEPS_A_LOOK = 64;

type EvictionTier = "ram" | "ssd";

interface Ranked {
  readonly pin: Pin;
  /**
   * For a soft pin: its remaining priority. For a pin or lease: the time of the latest use of its
   * blocks.
   */
  readonly rank: number;
  readonly lastUsed: number;
}

/** Ranking of the pins by value. Pins may still be missing. */
interface Order {
  readonly heap: MinHeap<Ranked>;
  /** Id of the latest pin that was ranked. Pins with greater ids are not ranked yet. */
  rankedTo: number;
  isRanked: boolean;
  /**
   * `scan`: progress on the pin being ranked. `again`: progress on the ranked pin that is checked
   * once more before it is returned.
   */
  scan: PinScan | null;
  again: PinScan | null;
  hasFound: boolean;
  readonly madeMs: number;
  tookMs: number;
}

/** Scan of the blocks of one pin and their ancestors. The scan can pause after any step. */
interface PinScan {
  readonly pin: Pin;
  /** Blocks of the pin that are not visited yet. */
  readonly nodes: Iterator<NodeId>;
  /**
   * `from`: the current block of the pin. `step`: the next node to visit, the block itself or one
   * of its ancestors.
   */
  from: NodeId;
  step: NodeId;
}

/**
 * Finds the least valuable pin that protects blocks on a tier. Ranks all pins together and reuses
 * the ranking for a while, so that evicting many pins takes one scan. A call visits a limited
 * number of blocks, and the next call continues. If that is too few to rank all pins, the result is
 * the least valuable pin ranked so far.
 */
export class PinEviction {
  readonly #table: BlockTable;
  readonly #pinTable: PinTable;
  readonly #clock: Clock;
  readonly #orders = new Map<string, Order>();
  /**
   * Nodes that are not protected by a pin on the tier and have no protected ancestor. Scans skip
   * them.
   */
  readonly #unpinnedPaths = { ram: new Set<NodeId>(), ssd: new Set<NodeId>() };
  #steps = 0;
  #clockCheckAtStep = 0;
  #untilMs = 0;

  constructor(table: BlockTable, pinTable: PinTable, clock: Clock) {
    this.#table = table;
    this.#pinTable = pinTable;
    this.#clock = clock;
  }

  /**
   * Returns the least valuable pin of the level that protects a block on the tier, or null if none
   * was found within this call's limit.
   */
  least(tier: EvictionTier, level: PinEvictionLevel): Pin | null {
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

  /**
   * Continues the ranking within this call's limit and returns the least valuable pin ranked so
   * far, or null.
   */
  #takeFrom(order: Order, tier: EvictionTier, level: PinEvictionLevel): Pin | null {
    const beginMs = this.#clock.monotonicMs();
    this.#setBudget(STEPS_A_CALL, CALL_MS);
    if (!order.isRanked) this.#rankMore(order, tier, level);
    // Use a limit of its own here, so that a ranking that used up its limit still yields a pin.
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

  /** Returns whether the call may visit another block. False after its limit of steps or time. */
  #hasBudget(): boolean {
    if (this.#steps > this.#clockCheckAtStep) return true;
    this.#clockCheckAtStep = this.#steps - STEPS_A_LOOK;
    if (this.#clock.monotonicMs() > this.#untilMs) this.#steps = 0;
    return this.#steps > 0;
  }

  /**
   * Ranks more pins until all are ranked or the call reaches its limit. A pin that protects nothing
   * on this tier is left out until the next ranking.
   */
  #rankMore(order: Order, tier: EvictionTier, level: PinEvictionLevel): void {
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

  /** Returns the least valuable ranked pin that still protects a block on the tier, or null. */
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
   * Returns whether the pin protects one of its blocks, or an ancestor of one, on the tier. Null if
   * the call reached its limit first.
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

/**
 * Returns whether `a` is ended before `b`: the one with the lower rank, then the one used longer
 * ago, then the larger one, then the one with the lower id.
 */
function isWorthLess(a: Ranked, b: Ranked): boolean {
  if (a.rank !== b.rank) return a.rank < b.rank;
  if (a.lastUsed !== b.lastUsed) return a.lastUsed < b.lastUsed;
  if (a.pin.bytes !== b.pin.bytes) return a.pin.bytes > b.pin.bytes;
  return a.pin.id < b.pin.id;
}

/** One request to unpin blocks. `record` writes all its changes to the ledger at the end. */
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

  /**
   * Removes one pin of the owner from the node. Returns false if the owner has no pin of this kind
   * there.
   */
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
