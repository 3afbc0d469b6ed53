import { assert, DIGEST_BYTES } from "../../core/index.ts";
import { type Hashing, PromptDigests } from "../../identity/index.ts";
import type { KeySpace } from "../../observability/activity/index.ts";
import type { RouteRequest } from "../route.ts";
import type { Target } from "../workers.ts";

const WORDS = DIGEST_BYTES / 4;

/** The digests of a prompt's full blocks in one namespace, one after the other. */
export interface ChainDigests {
  readonly blockTokens: number;
  readonly digests: Uint8Array;
}

/**
 * A prompt's full blocks under the names that an agent knows them by. An agent has one namespace
 * for each shard of its model; blocks are counted in the first one, and named in all. A digest
 * stands for all before it, so two chains with equal blocks at one place are equal up to there.
 */
export class PromptChain {
  readonly blocks: number;
  readonly blockTokens: number;
  /** Chains of one group name equal prefixes alike. */
  readonly group: string;
  readonly #spaces: readonly ChainDigests[];
  readonly #words: Uint32Array;

  /** `spaces`: one at least; digests are kept, not copied. */
  constructor(group: string, spaces: readonly ChainDigests[]) {
    const first = spaces[0];
    assert(first !== undefined && first.digests.byteOffset % 4 === 0, "aligned digests");
    this.group = group;
    this.blockTokens = first.blockTokens;
    this.blocks = first.digests.length / DIGEST_BYTES;
    this.#spaces = spaces;
    const { buffer, byteOffset } = first.digests;
    this.#words = new Uint32Array(buffer, byteOffset, this.blocks * WORDS);
  }

  /** The first 32 bits of a block's digest. */
  lo(block: number): number {
    return this.#words[block * WORDS]!;
  }

  /** The 32 bits behind them. */
  hi(block: number): number {
    return this.#words[block * WORDS + 1]!;
  }

  has(block: number, lo: number, hi: number): boolean {
    return block < this.blocks && this.lo(block) === lo && this.hi(block) === hi;
  }

  /** How many leading blocks both have. */
  common(other: PromptChain): number {
    if (other.group !== this.group) return 0;
    let same = 0;
    let differs = Math.min(this.blocks, other.blocks);
    while (same < differs) {
      const middle = (same + differs) >>> 1;
      if (other.has(middle, this.lo(middle), this.hi(middle))) same = middle + 1;
      else differs = middle;
    }
    return same;
  }

  /** Names of the blocks [from, to), in all spaces; of those that lie wholly inside. */
  names(from: number, to: number): string[] {
    const names: string[] = [];
    for (const { blockTokens, digests } of this.#spaces) {
      const first = Math.ceil((from * this.blockTokens) / blockTokens);
      const end = Math.floor((to * this.blockTokens) / blockTokens);
      for (let block = first; block < end; block++) {
        const at = block * DIGEST_BYTES;
        if (at + DIGEST_BYTES > digests.length) break;
        names.push(digests.subarray(at, at + DIGEST_BYTES).toHex());
      }
    }
    return names;
  }

  /** Packed digests of the blocks [from, to) in the first space: a view. */
  digests(from: number, to: number): Uint8Array {
    return this.#spaces[0]!.digests.subarray(from * DIGEST_BYTES, to * DIGEST_BYTES);
  }
}

/** Finds the names by which a target's agent knows the blocks of a prompt. */
export interface BlockNamer {
  /** Null: they have none that we know. `output`: tokens that follow the prompt. */
  chain(target: Target, request: RouteRequest, output?: Uint32Array): PromptChain | null;
  /** That of the target's chains; null: it has no blocks that we could name. */
  group(target: Target): string | null;
}

/** Shards of a model, say; more are not named. */
const SPACES_MAX = 4;

type BlockSpace = Extract<KeySpace, { kind: "blocks" }>;

/**
 * Digests from tokens and the namespace keys that the target's agent told. A prompt that is known
 * by hashes only has no names. Which salt or adapter a namespace is of, its key does not tell: a
 * prompt with a salt has names only in namespaces with chain keys, one with LoRA only in a
 * namespace of that LoRA.
 */
export function createDigestNamer(hashing: Hashing): BlockNamer {
  return {
    chain(target, { prompt, loraName, cacheSalt }, output) {
      const all = spacesOf(target);
      const spaces = loraName ? all.filter(({ model }) => model === loraName) : all;
      if (spaces.length === 0 || prompt.kind !== "tokens") return null;
      const tokens = output === undefined ? prompt.tokens : joined(prompt.tokens, output);
      const prompts = new Map<number, PromptDigests>();
      const named = spaces.flatMap(({ namespaceKey, blockTokens, chain }) => {
        const known = prompts.get(blockTokens);
        const of = known ?? new PromptDigests(hashing, { tokens, blockTokens, cacheSalt });
        if (known === undefined) prompts.set(blockTokens, of);
        const digests = of.in(namespaceKey, chain);
        return digests === null ? [] : [{ blockTokens, digests }];
      });
      return named.length === 0 ? null : new PromptChain(groupOf(spaces), named);
    },
    group(target) {
      const spaces = spacesOf(target);
      return spaces.length === 0 ? null : groupOf(spaces);
    },
  };
}

function spacesOf({ spaces }: Target): BlockSpace[] {
  const named = spaces.filter(
    (space) => space.kind === "blocks" && space.namespaceKey.length === DIGEST_BYTES,
  );
  return (named as BlockSpace[]).slice(0, SPACES_MAX);
}

function groupOf(spaces: readonly BlockSpace[]): string {
  return spaces
    .map(({ namespaceKey, blockTokens }) => `${namespaceKey.toHex()}/${blockTokens}`)
    .join(" ");
}

function joined(prompt: Uint32Array, output: Uint32Array): Uint32Array {
  const tokens = new Uint32Array(prompt.length + output.length);
  tokens.set(prompt);
  tokens.set(output, prompt.length);
  return tokens;
}

const SLOTS_AT_FIRST = 2 ** 12;
/** Slots used at most, of all. */
const FILL = 0.5;

/**
 * How many chains have each block: 12 bytes a slot, linear probing. Blocks go by 64 bits of their
 * digests, which are evenly spread.
 */
export class BlockUses {
  #lo = new Uint32Array(SLOTS_AT_FIRST);
  #hi = new Uint32Array(SLOTS_AT_FIRST);
  #count = new Uint32Array(SLOTS_AT_FIRST);
  #used = 0;

  /** Different blocks. */
  get size(): number {
    return this.#used;
  }

  add(chain: PromptChain, from: number, to: number): void {
    for (let block = from; block < to; block++) {
      if (this.#used >= this.#count.length * FILL) this.#grow();
      const [lo, hi] = [chain.lo(block), chain.hi(block)];
      const slot = this.#find(lo, hi);
      if (this.#count[slot]! === 0) {
        this.#lo[slot] = lo;
        this.#hi[slot] = hi;
        this.#used++;
      }
      this.#count[slot]!++;
    }
  }

  /** Of blocks that were added. */
  remove(chain: PromptChain, from: number, to: number): void {
    for (let block = from; block < to; block++) {
      const slot = this.#find(chain.lo(block), chain.hi(block));
      if (this.#count[slot]! === 0) continue;
      if (--this.#count[slot]! === 0) this.#vacate(slot);
    }
  }

  of(chain: PromptChain, block: number): number {
    return this.#count[this.#find(chain.lo(block), chain.hi(block))]!;
  }

  /** The first block that nobody has; `chain.blocks` where there is none such. */
  firstFree(chain: PromptChain): number {
    let [from, to] = [0, chain.blocks];
    while (from < to) {
      const middle = (from + to) >>> 1;
      if (this.of(chain, middle) > 0) from = middle + 1;
      else to = middle;
    }
    return from;
  }

  /** Its slot, or the free one where it would go. */
  #find(lo: number, hi: number): number {
    const mask = this.#count.length - 1;
    let slot = lo & mask;
    while (this.#count[slot]! > 0 && (this.#lo[slot]! !== lo || this.#hi[slot]! !== hi)) {
      slot = (slot + 1) & mask;
    }
    return slot;
  }

  /** Moves what probed past the slot up, so that no search ends too early. */
  #vacate(slot: number): void {
    const mask = this.#count.length - 1;
    this.#used--;
    let hole = slot;
    for (let at = (hole + 1) & mask; this.#count[at]! > 0; at = (at + 1) & mask) {
      const home = this.#lo[at]! & mask;
      if (((at - home) & mask) < ((at - hole) & mask)) continue;
      this.#lo[hole] = this.#lo[at]!;
      this.#hi[hole] = this.#hi[at]!;
      this.#count[hole] = this.#count[at]!;
      this.#count[at] = 0;
      hole = at;
    }
  }

  #grow(): void {
    const [lo, hi, count] = [this.#lo, this.#hi, this.#count];
    this.#lo = new Uint32Array(lo.length * 2);
    this.#hi = new Uint32Array(lo.length * 2);
    this.#count = new Uint32Array(lo.length * 2);
    for (let at = 0; at < count.length; at++) {
      if (count[at] === 0) continue;
      const slot = this.#find(lo[at]!, hi[at]!);
      this.#lo[slot] = lo[at]!;
      this.#hi[slot] = hi[at]!;
      this.#count[slot] = count[at]!;
    }
  }
}
