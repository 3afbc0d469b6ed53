import { assert, DIGEST_BYTES } from "../../core/index.ts";
import { type Hashing, PromptDigests } from "../../identity/index.ts";
import type { KeySpace } from "../../observability/activity/index.ts";
import { HashSlots } from "../prefix-runs.ts";
import type { RouteRequest } from "../route.ts";
import type { Target } from "../workers.ts";

const WORDS = DIGEST_BYTES / 4;

/**
 * Returns the number of leading blocks for which `holds` returns true, by binary search. After the
 * first block without it, `holds` must return false for all blocks.
 */
export function firstWithout(end: number, holds: (block: number) => boolean): number {
  let [from, to] = [0, end];
  while (from < to) {
    const middle = (from + to) >>> 1;
    if (holds(middle)) from = middle + 1;
    else to = middle;
  }
  return from;
}

/** Digests of a prompt's full blocks in one namespace, in prompt order. */
export interface ChainDigests {
  readonly blockTokens: number;
  readonly digests: Uint8Array;
}

/**
 * Names that an agent gives to a prompt's full blocks. An agent has one namespace per shard of its
 * model. Block indexes refer to the first namespace; a block has a name in each. A digest covers
 * all preceding blocks, so chains with equal digests at an index have equal prefixes.
 */
export class PromptChain {
  readonly blocks: number;
  readonly blockTokens: number;
  /**
   * Group of chains that can be compared: chains of one group have equal names for equal prefixes.
   */
  readonly group: string;
  readonly #spaces: readonly ChainDigests[];
  readonly #words: Uint32Array;

  /** `spaces` must have at least one element. The chain keeps references to the digests. */
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

  /** Returns bits 0 to 31 of a block's digest. */
  lo(block: number): number {
    return this.#words[block * WORDS];
  }

  /** Returns bits 32 to 63 of a block's digest. */
  hi(block: number): number {
    return this.#words[block * WORDS + 1];
  }

  has(block: number, lo: number, hi: number): boolean {
    return block < this.blocks && this.lo(block) === lo && this.hi(block) === hi;
  }

  /** Returns the number of leading blocks that both chains have. */
  common(other: PromptChain): number {
    if (other.group !== this.group) return 0;
    return firstWithout(Math.min(this.blocks, other.blocks), (block) =>
      other.has(block, this.lo(block), this.hi(block)),
    );
  }

  /**
   * Returns the names of the blocks in [from, to), in all namespaces. In a namespace with another
   * block size, only blocks entirely inside the range are named.
   */
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
}

/** Computes the names that a target's agent gives to a prompt's blocks. */
export interface BlockNamer {
  /**
   * Returns the names of a request's blocks. `output`: tokens that follow the prompt. Returns null
   * if the blocks cannot be named.
   */
  chain(target: Target, request: RouteRequest, output?: Uint32Array): PromptChain | null;
  /** Returns the group of the target's chains. Null if no block of the target can be named. */
  group(target: Target): string | null;
}

/** Maximum namespaces (one per shard of a model) of a target. Further ones are ignored. */
const SPACES_MAX = 4;

type BlockSpace = Extract<KeySpace, { kind: "blocks" }>;

/**
 * Creates a namer that computes digests from tokens and from the namespace keys that the target's
 * agent announces. A prompt given as hashes has no names. A namespace key does not reveal its salt
 * or adapter. Therefore a prompt with a salt has names only in namespaces with chain keys, and a
 * prompt with LoRA only in a namespace of that LoRA.
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

/** Counts the chains that contain each block. Blocks are identified by 64 bits of their digest. */
export class BlockUses {
  readonly #counts = new HashSlots<number>(0);

  /** Number of distinct blocks with at least one use. */
  get size(): number {
    return this.#counts.size;
  }

  add(chain: PromptChain, from: number, to: number): void {
    for (let block = from; block < to; block++) {
      this.#counts.set(chain.lo(block), chain.hi(block), this.of(chain, block) + 1);
    }
  }

  /** Removes one use of each block in [from, to). The blocks must have been added before. */
  remove(chain: PromptChain, from: number, to: number): void {
    for (let block = from; block < to; block++) {
      const [lo, hi, count] = [chain.lo(block), chain.hi(block), this.of(chain, block)];
      if (count > 1) this.#counts.set(lo, hi, count - 1);
      else this.#counts.delete(lo, hi);
    }
  }

  of(chain: PromptChain, block: number): number {
    return this.#counts.get(chain.lo(block), chain.hi(block)) ?? 0;
  }

  /** Returns the index of the chain's first unused block; `chain.blocks` if all are in use. */
  firstFree(chain: PromptChain): number {
    return firstWithout(chain.blocks, (block) => this.of(chain, block) > 0);
  }
}
