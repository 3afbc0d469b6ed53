import type { WorkerId } from "../../core/index.ts";
import type { PromptChain } from "./prompt-chain.ts";

export interface PrefixBlock {
  readonly key: number;
  /** Its place in its prompts. */
  readonly block: number;
  /** Prompts that began with it; those of one conversation count once. Halved with time. */
  readonly uses: number;
  readonly names: readonly string[];
  /** Who served it last. */
  readonly worker: WorkerId;
}

type Entry = { -readonly [Member in keyof PrefixBlock]: PrefixBlock[Member] };

/** A chain of which nothing is known is entered so far; then at each use twice as far. */
const GROWTH_BLOCKS = 64;
const GENERATION_MS = 600_000;
const LIST_MS = 2_000;

/**
 * What many prompts begin with. A chain grows only where it was met before, so that the ends that
 * are each prompt's own cost no more than their first blocks. Uses fade: a generation that is full
 * or old makes way, and what is used again moves into the next one with half of its uses.
 */
export class RecentPrefixes {
  readonly #blocksMax: number;
  #current = new Map<number, Entry>();
  #previous = new Map<number, Entry>();
  #bornMs = 0;
  #listedMs = Number.NEGATIVE_INFINITY;
  #list: readonly PrefixBlock[] = [];

  /** `blocksMax`: entries of both generations. */
  constructor(blocksMax: number) {
    this.#blocksMax = blocksMax;
  }

  get size(): number {
    return this.#current.size + this.#previous.size;
  }

  /** A prompt that `worker` serves; its first `kept` blocks were counted with an earlier one. */
  note(chain: PromptChain, kept: number, worker: WorkerId, nowMs: number): void {
    this.#turn(nowMs);
    let block = 0;
    let last: Entry | null = null;
    for (; block < chain.blocks; block++) {
      const entry = this.#get(keyOf(chain, block));
      if (entry === null) break;
      if (block >= kept) entry.uses++;
      entry.worker = worker;
      last = entry;
    }
    if (block < kept || (last !== null && last.uses < 2)) return;
    const end = Math.min(chain.blocks, block * 2 + GROWTH_BLOCKS);
    for (; block < end && this.#current.size < this.#blocksMax / 2; block++) {
      const key = keyOf(chain, block);
      this.#current.set(key, { key, block, uses: 1, names: chain.names(block, block + 1), worker });
    }
  }

  /** Blocks of `usesMin` uses, the most used first, and parents before children. */
  best(usesMin: number, nowMs: number): readonly PrefixBlock[] {
    if (nowMs - this.#listedMs < LIST_MS) return this.#list;
    const found: Entry[] = [];
    for (const entry of this.#current.values()) if (entry.uses >= usesMin) found.push(entry);
    for (const entry of this.#previous.values()) if (entry.uses >= usesMin) found.push(entry);
    this.#list = found.sort((a, b) => b.uses - a.uses || a.block - b.block);
    this.#listedMs = nowMs;
    return this.#list;
  }

  #get(key: number): Entry | null {
    const entry = this.#current.get(key);
    if (entry !== undefined) return entry;
    const older = this.#previous.get(key);
    if (older === undefined || this.#current.size >= this.#blocksMax / 2) return older ?? null;
    older.uses = Math.max(1, older.uses / 2);
    this.#previous.delete(key);
    this.#current.set(key, older);
    return older;
  }

  #turn(nowMs: number): void {
    const isOld = nowMs - this.#bornMs >= GENERATION_MS;
    if (!isOld && this.#current.size < this.#blocksMax / 2) return;
    this.#previous = this.#current;
    this.#current = new Map();
    this.#bornMs = nowMs;
  }
}

/** 53 bits of its digest. */
function keyOf(chain: PromptChain, block: number): number {
  return chain.lo(block) + (chain.hi(block) & 0x1f_ffff) * 2 ** 32;
}
