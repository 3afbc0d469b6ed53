import { LAYER_ALL } from "../../core/index.ts";
import { blockKeys, type Hashing, PromptDigests } from "../../identity/index.ts";
import type { ResidencyChange } from "../../observability/activity/index.ts";

/** A change of an engine's own, with what led to it. */
export interface EngineChange {
  readonly change: ResidencyChange;
  /** Of a `stored` all tokens of its blocks, in order; null where they are not known. */
  readonly tokens: Uint32Array | null;
  /** Neither LoRA, nor salt, nor media, nor anything else beside the tokens. */
  readonly isPlain: boolean;
}

interface NamedNamespace {
  readonly key: Uint8Array;
  /** Null: its blocks are named by digests of tokens. */
  readonly chain: string | null;
}

export interface TokenBookOptions {
  readonly hashing: Hashing;
  readonly blockTokens: number;
  /** Blocks that are remembered; the oldest are forgotten. */
  readonly blocksMax: number;
  /** The namespaces in which this host keeps blocks of the same model and length. */
  readonly namespaces: () => readonly NamedNamespace[];
}

export interface KnownTokens {
  /** By the sequence hash of its tokens, as is its parent. */
  readonly sequence: bigint;
  readonly parent: bigint | null;
  readonly tokens: Uint32Array;
}

interface NamedTokens extends KnownTokens {
  /** Eight words each. */
  readonly keys: Uint32Array[];
  /** Blocks from the first of the prompt to here; infinite where one was not known. */
  readonly depth: number;
}

/** Longer prompts are not followed to their start: naming a block is one turn's work. */
const CHAIN_BLOCKS_MAX = 16_384;
const KEY_BYTES = 32;
/** Namespaces looked at: each costs one more digest of the prompt. */
const NAMESPACES_MAX = 4;

/**
 * Which tokens blocks are made of, as far as an engine's own events said so: by the hash of its
 * tokens, and by that of the key under which this host keeps it.
 */
export class TokenBook {
  readonly #options: TokenBookOptions;
  readonly #blocks = new Map<bigint, NamedTokens>();
  readonly #byKey = new Map<bigint, bigint>();

  constructor(options: TokenBookOptions) {
    this.#options = options;
  }

  get size(): number {
    return this.#blocks.size;
  }

  find(sequence: bigint): KnownTokens | null {
    return this.#blocks.get(sequence) ?? null;
  }

  /** The keys, eight words each, under which this host keeps that block where it has it. */
  keysOf(sequence: bigint): readonly Uint32Array[] {
    return this.#blocks.get(sequence)?.keys ?? [];
  }

  /** By the first eight bytes of a block's key. */
  findKey(hash: bigint): KnownTokens | null {
    const sequence = this.#byKey.get(hash);
    return sequence === undefined ? null : this.find(sequence);
  }

  /** The key hashes that it can name from now on. */
  learn({ change, tokens, isPlain }: EngineChange): readonly bigint[] {
    const { blockTokens } = this.#options;
    if (change.kind !== "stored" || tokens === null || !isPlain) return [];
    if (tokens.length !== change.hashes.length * blockTokens) return [];
    const fresh: bigint[] = [];
    let { parent } = change;
    change.hashes.forEach((sequence, i) => {
      if (!this.#blocks.has(sequence)) {
        const own = tokens.slice(i * blockTokens, (i + 1) * blockTokens);
        const before = parent === null ? 0 : this.#blocks.get(parent)?.depth;
        const depth = (before ?? Number.POSITIVE_INFINITY) + 1;
        this.#blocks.set(sequence, { sequence, parent, tokens: own, keys: [], depth });
        fresh.push(sequence);
      }
      parent = sequence;
    });
    const last = change.hashes.at(-1);
    const named = fresh.length === 0 || last === undefined ? [] : this.#name(last, new Set(fresh));
    this.#forgetOldest();
    return named;
  }

  /** Computes the keys of blocks on the way to `last`. */
  #name(last: bigint, fresh: ReadonlySet<bigint>): readonly bigint[] {
    const { hashing, blockTokens } = this.#options;
    const namespaces = this.#options.namespaces().slice(-NAMESPACES_MAX);
    const chain = namespaces.length === 0 ? null : this.#chainTo(last);
    if (chain === null) return [];
    const tokens = new Uint32Array(chain.length * blockTokens);
    chain.forEach((block, i) => {
      tokens.set(block.tokens, i * blockTokens);
    });
    const named: bigint[] = [];
    const prompt = new PromptDigests(hashing, { tokens, blockTokens });
    for (const namespace of namespaces) {
      const digests = prompt.in(namespace.key, namespace.chain);
      if (digests === null) continue;
      const packed = blockKeys(hashing, digests, LAYER_ALL);
      const view = new DataView(packed.buffer, packed.byteOffset, packed.byteLength);
      chain.forEach(({ sequence, keys: own }, i) => {
        if (!fresh.has(sequence)) return;
        const hash = view.getBigUint64(i * KEY_BYTES, true);
        own.push(new Uint32Array(packed.slice(i * KEY_BYTES, (i + 1) * KEY_BYTES).buffer));
        this.#byKey.set(hash, sequence);
        named.push(hash);
      });
    }
    return named;
  }

  /** From the first block of the prompt on; null where one is not known. */
  #chainTo(last: bigint): NamedTokens[] | null {
    const chain: NamedTokens[] = [];
    if ((this.#blocks.get(last)?.depth ?? 0) > CHAIN_BLOCKS_MAX) return null;
    for (let at: bigint | null = last; at !== null; ) {
      const block = this.#blocks.get(at);
      if (block === undefined) return null;
      chain.push(block);
      at = block.parent;
    }
    return chain.reverse();
  }

  #forgetOldest(): void {
    const excess = this.#blocks.size - this.#options.blocksMax;
    if (excess <= 0) return;
    for (const [sequence, { keys }] of this.#blocks.entries().take(excess)) {
      this.#blocks.delete(sequence);
      for (const [lo, hi] of keys) this.#byKey.delete((BigInt(hi!) << 32n) | BigInt(lo!));
    }
  }
}
