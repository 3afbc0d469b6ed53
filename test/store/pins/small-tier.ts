import { NO_NODE, type NodeId, seededRandom } from "../../../src/core/index.ts";
import { BlockTable, Tier } from "../../../src/store/blocks/index.ts";
import { Sessions } from "../../../src/store/pins/index.ts";
import { ManualClock } from "../../support/index.ts";
import { block, keyWords, must, SPACE } from "../blocks/blocks.ts";

export const BLOCK_BYTES = 100;

/** A RAM tier of a few blocks over the real table: LRU, leaves first, and sessions. */
export class SmallTier {
  readonly table = new BlockTable({ nodesMax: 256, random: seededRandom(3) });
  readonly clock = new ManualClock();
  readonly sessions = new Sessions(this.table, this.clock);
  readonly #capacity: number;

  constructor(capacity: number) {
    this.#capacity = capacity;
  }

  /** The node of block `n`, or NO_NODE. */
  node(n: number): NodeId {
    return this.table.find(keyWords(n), 0);
  }

  isResident(n: number): boolean {
    const node = this.node(n);
    return node !== NO_NODE && this.table.isResident(node, Tier.ram);
  }

  /** Stores a prompt from its first block on; what was dropped for it, oldest first. */
  put(path: readonly number[]): number[] {
    const dropped: number[] = [];
    path.forEach((n, i) => {
      const parent = i === 0 ? null : path[i - 1]!;
      if (this.isResident(n)) return;
      // As a reservation does: what is on the way to the block stays meanwhile.
      const held = parent === null ? NO_NODE : this.node(parent);
      if (held !== NO_NODE) this.table.lock(held);
      while (this.table.residentBlocks(Tier.ram) >= this.#capacity && this.#dropOldest(dropped));
      if (this.table.residentBlocks(Tier.ram) < this.#capacity) {
        const source = block(n, parent, BLOCK_BYTES);
        must(this.table.insertResident(source, 0, SPACE, parent !== null, Tier.ram));
      }
      if (held !== NO_NODE) this.table.unlock(held);
    });
    const last = this.node(path.at(-1)!);
    if (last !== NO_NODE) this.table.touchPath(last);
    return dropped;
  }

  #dropOldest(dropped: number[]): boolean {
    const victim = this.table.oldest(Tier.ram);
    if (victim === NO_NODE) return false;
    const key = new Uint32Array(8);
    this.table.readKey(victim, key, 0);
    dropped.push(key[5]!);
    this.table.removeResidency(victim, Tier.ram);
    return true;
  }

  /** How many leading blocks of a prompt are there. */
  match(path: readonly number[]): number {
    const keys = new Uint32Array(8 * path.length);
    for (const [i, n] of path.entries()) keys.set(keyWords(n), 8 * i);
    return this.table.matchLeading(keys, path.length, SPACE, Tier.ram, new Uint8Array(path.length));
  }

  /** The blocks that may be dropped, in the order in which they would be. */
  order(): number[] {
    const found: number[] = [];
    const key = new Uint32Array(8);
    let node = this.table.oldest(Tier.ram);
    for (; node !== NO_NODE; node = this.table.newerThan(node, Tier.ram)) {
      this.table.readKey(node, key, 0);
      found.push(key[5]!);
    }
    return found;
  }

  commit(session: bigint, n: number): "ok" | "missing" | "full" {
    if (!this.isResident(n)) return "missing";
    return this.sessions.commit(SPACE, session, this.node(n));
  }

  release(session: bigint): "ok" | "missing" | "full" {
    return this.sessions.release(SPACE, session);
  }

  /** Blocks of a session in RAM; null where it is not known. */
  blocksOf(session: bigint): number | null {
    return this.sessions.state(SPACE, session)?.ram.blocks ?? null;
  }

  locksOf(n: number): number {
    const node = this.node(n);
    return node === NO_NODE ? 0 : this.table.locksOf(node);
  }

  /** All locks in the tree. */
  locks(): number {
    return Array.from({ length: 256 }, (_, n) => this.locksOf(n)).reduce((a, b) => a + b, 0);
  }
}
