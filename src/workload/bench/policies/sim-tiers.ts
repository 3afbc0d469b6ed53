import { createLists, type Lists } from "../policy/index.ts";
import type { SimTrace } from "./sim-trace.ts";

/** What one agent holds, by numbers of blocks. */
export class SimTiers {
  readonly #trace: SimTrace;
  readonly ram: SimTier;
  /** Of no blocks at all: there is none. */
  readonly ssd: SimTier;
  /** Never to be written to SSD. */
  readonly transient = new Set<number>();
  /** Holds on a block, or on one that builds upon it. */
  readonly #held = new Map<number, number>();
  /** RAM too: without SSD nothing that is held may leave it. */
  readonly #isRamKept: boolean;
  /** Blocks that a warm brought to RAM and nobody asked for since. */
  readonly warmed = new Set<number>();
  #ssdWrites = 0;

  constructor(trace: SimTrace, ramBlocks: number, ssdBlocks: number) {
    this.#trace = trace;
    this.#isRamKept = ssdBlocks === 0;
    this.ssd = new SimTier(trace.items, ssdBlocks);
    this.ram = new SimTier(trace.items, ramBlocks);
  }

  /** Blocks that are held, those above the named ones too. */
  get held(): number {
    return this.#held.size;
  }

  get ssdWrites(): number {
    return this.#ssdWrites;
  }

  has(block: number): boolean {
    return this.ram.has(block) || this.ssd.has(block);
  }

  /** How many leading blocks are there, and how many of those in RAM. */
  leading(blocks: Uint32Array, from: number, to: number): { found: number; inRam: number } {
    let inRam = 0;
    let at = from;
    for (; at < to && this.has(blocks[at]!); at++) if (this.ram.has(blocks[at]!)) inRam++;
    return { found: at - from, inRam };
  }

  /** Blocks of a prompt, in order: in RAM, and on SSD by write-through; parents younger. */
  use(blocks: ArrayLike<number>, from: number, to: number): void {
    for (let at = to - 1; at >= from; at--) {
      this.ram.put(blocks[at]!);
      this.warmed.delete(blocks[at]!);
      this.#write(blocks[at]!);
    }
  }

  toRam(block: number): boolean {
    return this.ram.put(block);
  }

  /** False: it may not be written, or there is no room. */
  toSsd(block: number): boolean {
    return this.#write(block);
  }

  remove(block: number): void {
    this.ram.remove(block);
    this.ssd.remove(block);
    this.warmed.delete(block);
  }

  isHeld(block: number): boolean {
    return this.#held.has(block);
  }

  /** Whether something here builds upon it. */
  hasChild(block: number): boolean {
    const { firstChild, nextSibling } = this.#trace;
    for (let child = firstChild[block]!; child >= 0; child = nextSibling[child]!) {
      if (this.has(child)) return true;
    }
    return false;
  }

  /** Also what it builds upon. */
  hold(block: number): void {
    for (let at = block; at >= 0; at = this.#trace.parents[at]!) {
      const holds = this.#held.get(at) ?? 0;
      this.#held.set(at, holds + 1);
      if (holds === 0) this.#keep(at, true);
    }
  }

  letGo(block: number): void {
    for (let at = block; at >= 0; at = this.#trace.parents[at]!) {
      const left = (this.#held.get(at) ?? 1) - 1;
      if (left > 0) this.#held.set(at, left);
      else if (this.#held.delete(at)) this.#keep(at, false);
    }
  }

  #keep(block: number, isKept: boolean): void {
    this.ssd.keep(block, isKept);
    if (this.#isRamKept) this.ram.keep(block, isKept);
  }

  /** What builds upon a block, children before parents. */
  below(block: number): number[] {
    const { firstChild, nextSibling } = this.#trace;
    const found: number[] = [];
    const open = [block];
    for (let at = open.pop(); at !== undefined; at = open.pop()) {
      if (at !== block) found.push(at);
      for (let child = firstChild[at]!; child >= 0; child = nextSibling[child]!) open.push(child);
    }
    return found.reverse();
  }

  #write(block: number): boolean {
    if (this.transient.has(block)) return false;
    const isThere = this.ssd.has(block);
    if (!this.ssd.put(block)) return false;
    if (!isThere) this.#ssdWrites++;
    return true;
  }
}

/** Lists: what may leave, the one used last at its end; and what is kept. */
const [FREE, KEPT] = [0, 1];

/** Least recently used first, but for what is kept. */
class SimTier {
  readonly #lists: Lists;
  readonly #capacity: number;
  readonly #isKept: Uint8Array;
  #size = 0;

  constructor(items: number, capacity: number) {
    this.#lists = createLists(items, 2);
    this.#capacity = capacity;
    this.#isKept = new Uint8Array(items);
  }

  has(block: number): boolean {
    return this.#lists.has(block);
  }

  /** As the one used last. False: there is no room. */
  put(block: number): boolean {
    if (this.#lists.has(block)) this.#lists.remove(block);
    else if (this.#size < this.#capacity) this.#size++;
    else if (this.#lists.isEmpty(FREE)) return false;
    else this.#lists.remove(this.#lists.first(FREE));
    this.#lists.append(this.#isKept[block] === 1 ? KEPT : FREE, block);
    return true;
  }

  /** What is kept no longer counts as used just now. */
  keep(block: number, isKept: boolean): void {
    this.#isKept[block] = isKept ? 1 : 0;
    if (!this.#lists.has(block)) return;
    this.#lists.remove(block);
    this.#lists.append(isKept ? KEPT : FREE, block);
  }

  remove(block: number): void {
    if (!this.#lists.has(block)) return;
    this.#lists.remove(block);
    this.#size--;
  }

  clear(): void {
    for (const list of [FREE, KEPT]) {
      while (!this.#lists.isEmpty(list)) this.remove(this.#lists.first(list));
    }
  }
}
