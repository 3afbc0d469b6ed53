/** One request of a tiny trace: whose it is, and its blocks by name, first to last. */
export interface Turn {
  readonly session: string;
  readonly blocks: readonly number[];
}

/** What both ways of making room come to, in blocks. */
export interface LiteralFigures {
  /** What was freed each time room was made; a session's tail or one block. */
  readonly freed: { readonly what: "session" | "block"; readonly blocks: number }[];
  hits: number;
  recomputed: number;
  turnsAgain: number;
  again: number;
}

function common(a: readonly number[], b: readonly number[]): number {
  const at = a.findIndex((block, i) => b[i] !== block);
  return at === -1 ? a.length : at;
}

/** Counts what a request finds; `hits` is how many of its leading blocks are there. */
class Counter implements LiteralFigures {
  readonly freed: { what: "session" | "block"; blocks: number }[] = [];
  hits = 0;
  recomputed = 0;
  turnsAgain = 0;
  again = 0;
  readonly #seen = new Set<number>();
  readonly #before = new Map<string, readonly number[]>();

  count({ session, blocks }: Turn, hits: number): void {
    const kept = common(this.#before.get(session) ?? [], blocks);
    this.hits += hits;
    this.recomputed += blocks.slice(hits).filter((block) => this.#seen.has(block)).length;
    if (kept > hits) this.turnsAgain++;
    this.again += Math.max(0, kept - hits);
    for (const block of blocks) this.#seen.add(block);
    this.#before.set(session, blocks);
  }
}

/** Least recently used, one block at a time, as it is said. */
export function literalAgeing(turns: readonly Turn[], capacity: number): LiteralFigures {
  const counter = new Counter();
  let order: number[] = [];
  for (const turn of turns) {
    const { blocks } = turn;
    counter.count(
      turn,
      common(
        blocks,
        blocks.map((b) => (order.includes(b) ? b : -1)),
      ),
    );
    for (const block of blocks.toReversed()) {
      if (order.includes(block)) order = order.filter((other) => other !== block);
      else if (order.length === capacity) {
        order.shift();
        counter.freed.push({ what: "block", blocks: 1 });
      }
      order.push(block);
    }
  }
  return counter;
}

interface Slot {
  tree: number[];
  tail: number[];
}

/** Sessions freed as a whole, as it is said in `whole-session.ts`. */
export function literalWhole(turns: readonly Turn[], capacity: number): LiteralFigures {
  return new Literal(turns, capacity).counter;
}

class Literal {
  readonly counter = new Counter();
  readonly #capacity: number;
  /** In the order in which sessions were used. */
  readonly #slots = new Map<string, Slot>();
  /** Blocks of the tree that no session locks, the one that goes next first. */
  #unlocked: number[] = [];
  readonly #firstTurn = new Map<string, number>();

  constructor(turns: readonly Turn[], capacity: number) {
    this.#capacity = capacity;
    for (const turn of turns) this.#serve(turn);
  }

  #serve(turn: Turn): void {
    const { session, blocks } = turn;
    const slot = this.#slots.get(session);
    const stored = slot === undefined ? [] : [...slot.tree, ...slot.tail];
    const hits = common(stored, blocks);
    if (slot === undefined || hits < slot.tree.length) {
      if (slot !== undefined) this.#end(session, slot);
      this.#begin(turn);
      return;
    }
    this.counter.count(turn, hits);
    this.#slots.delete(session);
    // While room is made nobody may take what the turn goes on from.
    const kept = { tree: slot.tree, tail: stored.slice(slot.tree.length, hits) };
    const room = this.#makeRoom(blocks.length - hits, kept);
    kept.tail.push(...blocks.slice(hits, hits + room));
    this.#slots.set(session, kept);
  }

  #begin(turn: Turn): void {
    const { session, blocks } = turn;
    const first = this.#firstTurn.get(session) ?? blocks.length;
    this.#firstTurn.set(session, first);
    const there = blocks.map((b) => (this.#unlocked.includes(b) || this.#isLocked(b) ? b : -1));
    const hits = common(blocks, there);
    this.counter.count(turn, hits);
    const slot: Slot = { tree: blocks.slice(0, hits), tail: [] };
    this.#unlocked = this.#unlocked.filter((block) => !slot.tree.includes(block));
    const room = this.#makeRoom(blocks.length - hits, slot);
    const stored = blocks.slice(0, hits + room);
    const inTree = Math.max(hits, first);
    this.#slots.set(session, { tree: stored.slice(0, inTree), tail: stored.slice(inTree) });
  }

  #isLocked(block: number): boolean {
    return [...this.#slots.values()].some(({ tree }) => tree.includes(block));
  }

  #used(also: Slot): number {
    const slots = [...this.#slots.values(), also];
    const tree = new Set([...this.#unlocked, ...slots.flatMap((slot) => slot.tree)]);
    return tree.size + slots.reduce((sum, { tail }) => sum + tail.length, 0);
  }

  #makeRoom(wanted: number, also: Slot): number {
    while (this.#used(also) + wanted > this.#capacity) {
      if (this.#unlocked.length > 0) {
        this.#unlocked.shift();
        this.counter.freed.push({ what: "block", blocks: 1 });
        continue;
      }
      const oldest = [...this.#slots].at(0);
      if (oldest === undefined) break;
      const [session, slot] = oldest;
      if (slot.tail.length > 0)
        this.counter.freed.push({ what: "session", blocks: slot.tail.length });
      this.#end(session, slot, also);
    }
    return Math.min(wanted, this.#capacity - this.#used(also));
  }

  #end(session: string, slot: Slot, also?: Slot): void {
    this.#slots.delete(session);
    for (const block of slot.tree.toReversed()) {
      if (this.#isLocked(block) || also?.tree.includes(block)) continue;
      this.#unlocked.push(block);
    }
  }
}
