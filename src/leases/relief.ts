import { type BlockTable, Tier } from "../blocks/index.ts";
import { type Clock, NO_NODE, type NodeId } from "../core/index.ts";
import type { Hold } from "./hold.ts";
import type { HoldBook } from "./hold-book.ts";
import type { ReliefLevel } from "./holds.ts";
import { MinHeap } from "./min-heap.ts";

/** An order of holds serves this long; what was used meanwhile counts in the next one. */
const ORDER_MS = 1_000;
/** A scan that found nothing is repeated when this many times its own duration has gone by. */
const REST = 9;

interface Ranked {
  readonly hold: Hold;
  /** Soft pins: what is left of the priority. Others: when they were last used. */
  readonly rank: number;
  readonly lastUsed: number;
}

interface Order {
  readonly heap: MinHeap<Ranked>;
  readonly madeMs: number;
  readonly tookMs: number;
}

/**
 * Finds the hold that is worth least among those that keep something on a tier. All holds are
 * ranked at once and the ranking serves for a while, so that many in a row cost one scan.
 */
export class Relief {
  readonly #table: BlockTable;
  readonly #book: HoldBook;
  readonly #clock: Clock;
  readonly #orders = new Map<string, Order>();

  constructor(table: BlockTable, book: HoldBook, clock: Clock) {
    this.#table = table;
    this.#book = book;
    this.#clock = clock;
  }

  /** Null where no hold of the level keeps a block from leaving the tier. */
  least(tier: "ram" | "ssd", level: ReliefLevel): Hold | null {
    if (this.#book.size === 0 || this.#keepsNothing(tier)) return null;
    const key = `${tier}/${level}`;
    const nowMs = this.#clock.monotonicMs();
    const old = this.#orders.get(key);
    if (old !== undefined && nowMs - old.madeMs < ORDER_MS) {
      const found = this.#takeFrom(old, tier);
      if (found !== null) return found;
      if (nowMs - old.madeMs < old.tookMs * REST) return null;
    }
    const order = this.#rank(level);
    this.#orders.set(key, order);
    return this.#takeFrom(order, tier);
  }

  #keepsNothing(tier: "ram" | "ssd"): boolean {
    return (tier === "ram" ? this.#table.keptInRamAloneBytes : this.#table.keptBytes) === 0;
  }

  #rank(level: ReliefLevel): Order {
    const madeMs = this.#clock.monotonicMs();
    const ranked: Ranked[] = [];
    for (const hold of this.#book.holds()) {
      if (hold.ended || (hold.kind === "retain") !== (level === "soft")) continue;
      const lastUsed = this.#book.lastUsed(hold);
      const rank = level === "soft" ? this.#book.worthOf(hold)! : lastUsed;
      ranked.push({ hold, rank, lastUsed });
    }
    const heap = new MinHeap(isWorthLess, ranked);
    return { heap, madeMs, tookMs: this.#clock.monotonicMs() - madeMs };
  }

  /** What keeps nothing on this tier is passed over until the next ranking. */
  #takeFrom({ heap }: Order, tier: "ram" | "ssd"): Hold | null {
    for (let next = heap.pop(); next !== undefined; next = heap.pop()) {
      if (!next.hold.ended && this.#keeps(next.hold, tier)) return next.hold;
    }
    return null;
  }

  /** Whether one of its blocks, or of those above them, stays on the tier because it is kept. */
  #keeps(hold: Hold, tier: "ram" | "ssd"): boolean {
    for (const node of hold.nodes) if (this.#isKeptOn(node, tier)) return true;
    const seen = new Set<NodeId>();
    for (const node of hold.nodes) {
      let step = this.#table.parentOf(node);
      for (; step !== NO_NODE && !seen.has(step); step = this.#table.parentOf(step)) {
        if (this.#isKeptOn(step, tier)) return true;
        seen.add(step);
      }
    }
    return false;
  }

  #isKeptOn(node: NodeId, tier: "ram" | "ssd"): boolean {
    const onSsd = this.#table.isResident(node, Tier.ssd);
    return tier === "ssd" ? onSsd : !onSsd && this.#table.isResident(node, Tier.ram);
  }
}

/** The lower rank first, then what was used longest ago, then the larger, then the older one. */
function isWorthLess(a: Ranked, b: Ranked): boolean {
  if (a.rank !== b.rank) return a.rank < b.rank;
  if (a.lastUsed !== b.lastUsed) return a.lastUsed < b.lastUsed;
  if (a.hold.bytes !== b.hold.bytes) return a.hold.bytes > b.hold.bytes;
  return a.hold.id < b.hold.id;
}
