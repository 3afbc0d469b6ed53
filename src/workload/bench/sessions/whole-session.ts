import { createLists, type Lists } from "../policy/index.ts";
import type { SessionTrace } from "./session-trace.ts";
import type { Simulation } from "./simulation.ts";
import type { Tally } from "./tally.ts";

/** What a session keeps between two turns. */
interface Slot {
  /** Where the last turn's blocks begin in the trace. */
  from: number;
  /** How many of them are stored. */
  stored: number;
  /** How many of those are in the tree, locked. The rest is the session's own. */
  readonly inTree: number;
}

/**
 * Sessions as they were before blocks aged: as much as a session's first turn had goes into the
 * tree and is locked there; all that lies behind it is a tail of the session's own, which nobody
 * else finds, which never enters the tree and is freed as a whole. Where room is needed, blocks of
 * the tree that no session locks go first, the one used longest ago first; then whole sessions, the
 * one used longest ago first: its tail is freed at once, its first turn is unlocked. A session that
 * comes back after that finds what the tree still has and computes the rest, its tail anew.
 */
export function simulateWholeSessions(
  trace: SessionTrace,
  capacity: number,
  tally: Tally,
): Simulation {
  return new WholeSessions(trace, capacity, tally);
}

class WholeSessions implements Simulation {
  readonly #trace: SessionTrace;
  readonly #capacity: number;
  readonly #tally: Tally;
  /** Blocks of the tree: how many sessions lock each. One that none locks stands in the list. */
  readonly #locks: Uint32Array;
  readonly #unlocked: Lists;
  readonly #slots: (Slot | null)[];
  /** Blocks that the first turn of each session had. */
  readonly #firstTurn: Uint32Array;
  /** Sessions that have a slot, the one used longest ago first. */
  readonly #sessions: Lists;
  /** Blocks stored, in the tree and in tails. */
  #used = 0;

  constructor(trace: SessionTrace, capacity: number, tally: Tally) {
    this.#trace = trace;
    this.#capacity = capacity;
    this.#tally = tally;
    this.#locks = new Uint32Array(trace.distinct);
    this.#unlocked = createLists(trace.distinct, 1);
    this.#slots = new Array<Slot | null>(trace.sessions).fill(null);
    this.#firstTurn = new Uint32Array(trace.sessions);
    this.#sessions = createLists(trace.sessions, 1);
  }

  serve(request: number, from: number, to: number): void {
    const session = this.#trace.sessionOf[request]!;
    const slot = this.#slots[session]!;
    if (slot === null) {
      this.#begin(request, session, from, to);
      return;
    }
    const hits = Math.min(this.#trace.kept[request]!, slot.stored);
    if (hits < slot.inTree) {
      // The turn says something else than the first one did: the session begins anew.
      this.#end(session, slot);
      this.#begin(request, session, from, to);
      return;
    }
    this.#tally.served(request, from, hits);
    this.#sessions.remove(session);
    this.#used -= slot.stored - hits;
    slot.from = from;
    slot.stored = hits;
    const room = this.#makeRoom(to - from - hits);
    slot.stored += room;
    this.#used += room;
    this.#sessions.append(0, session);
  }

  /** A session that has no slot: its first turn, or the first since it was freed. */
  #begin(request: number, session: number, from: number, to: number): void {
    const { blocks } = this.#trace;
    let at = from;
    for (; at < to && this.#isInTree(blocks[at]!); at++) this.#lock(blocks[at]!);
    const hits = at - from;
    this.#tally.served(request, from, hits);
    const stored = hits + this.#makeRoom(to - at);
    if (this.#firstTurn[session] === 0) this.#firstTurn[session] = to - from;
    const inTree = Math.min(stored, Math.max(hits, this.#firstTurn[session]!));
    for (; at < from + inTree; at++) this.#locks[blocks[at]!] = 1;
    this.#used += stored - hits;
    this.#slots[session] = { from, stored, inTree };
    this.#sessions.append(0, session);
  }

  #isInTree(block: number): boolean {
    return this.#locks[block]! > 0 || this.#unlocked.has(block);
  }

  #lock(block: number): void {
    if (this.#locks[block]!++ === 0) this.#unlocked.remove(block);
  }

  /** Makes room for as many of `wanted` blocks as can be had; answers how many. */
  #makeRoom(wanted: number): number {
    while (this.#used + wanted > this.#capacity && this.#dropOne());
    return Math.min(wanted, this.#capacity - this.#used);
  }

  #dropOne(): boolean {
    if (!this.#unlocked.isEmpty(0)) {
      const oldest = this.#unlocked.first(0);
      this.#unlocked.remove(oldest);
      this.#used--;
      this.#tally.blockEvicted(oldest);
      return true;
    }
    if (this.#sessions.isEmpty(0)) return false;
    const session = this.#sessions.first(0);
    const slot = this.#slots[session]!;
    const { from, stored, inTree } = slot;
    if (stored > inTree) this.#tally.sessionEvicted(from + inTree, from + stored);
    this.#end(session, slot);
    return true;
  }

  /** Frees the tail; the first turn's blocks may go from now on, the last one first. */
  #end(session: number, { from, stored, inTree }: Slot): void {
    const { blocks } = this.#trace;
    this.#sessions.remove(session);
    this.#slots[session] = null;
    this.#used -= stored - inTree;
    for (let at = from + inTree - 1; at >= from; at--) {
      const block = blocks[at]!;
      if (--this.#locks[block]! === 0) this.#unlocked.append(0, block);
    }
  }
}
