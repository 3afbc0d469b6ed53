import { LAYER_ALL } from "../../core/index.ts";
import { blockKeys, type Hashing, PromptDigests } from "../../identity/index.ts";
import type { ResidencyChange, ResidencyTier } from "../../observability/activity/index.ts";
import type { EngineEvent } from "../index.ts";

type Tier = ResidencyTier;

/** As vLLM names them. */
const MEDIA: Readonly<Record<Tier, string>> = { device: "GPU", host: "CPU", disk: "STORAGE" };
const TIERS = ["device", "host", "disk"] as const;

/**
 * What others are told in the words of engines: each block under the hash of its tokens, with its
 * tokens. An engine's own changes pass; blocks that this host keeps are told as far as an engine
 * said what they are made of, as soon as it did.
 */
export class EngineBatches {
  readonly #book: TokenBook;
  readonly #blockTokens: number;
  readonly #unnamedMax: number;
  /** Key hashes that this host keeps on a tier, with the hash under which that was told, if any. */
  readonly #kept = {
    host: new Map<bigint, bigint | null>(),
    disk: new Map<bigint, bigint | null>(),
  };
  /** Sequence hashes that were told of an engine's own tiers. */
  readonly #told = { device: new Set<bigint>(), host: new Set<bigint>(), disk: new Set<bigint>() };

  constructor(book: TokenBook, blockTokens: number, unnamedMax: number) {
    this.#book = book;
    this.#blockTokens = blockTokens;
    this.#unnamedMax = unnamedMax;
  }

  /** Takes over what this host keeps, for blocks of another size: their tokens are not known. */
  takeKept({ host, disk }: EngineBatches["kept"]): void {
    for (const key of host.keys()) this.#kept.host.set(key, null);
    for (const key of disk.keys()) this.#kept.disk.set(key, null);
  }

  get kept() {
    return this.#kept;
  }

  /** Blocks this host keeps and nobody knows the tokens of. */
  get unnamed(): number {
    let unnamed = 0;
    for (const kept of [this.#kept.host, this.#kept.disk]) {
      for (const name of kept.values()) if (name === null) unnamed++;
    }
    return unnamed;
  }

  /** Of an engine. `named`: what the book has learnt of them. */
  engine(changes: readonly EngineChange[], named: readonly bigint[]): readonly EngineEvent[] {
    const events: EngineEvent[] = [];
    for (const { change } of changes) {
      if (change.kind === "stored") this.#engineStored(change, events);
      else if (change.kind === "removed") this.#engineRemoved(change.tier, change.hashes, events);
      else {
        for (const tier of change.tier === null ? TIERS : [change.tier]) {
          this.#engineRemoved(tier, BigUint64Array.from(this.#told[tier]), events);
        }
      }
    }
    for (const key of named) this.#nameKept(key, events);
    return events;
  }

  /** Of this host's store. What GPUs have is the engine's to tell. */
  store(changes: readonly ResidencyChange[]): readonly EngineEvent[] {
    const events: EngineEvent[] = [];
    for (const change of changes) {
      if (change.tier === "device") continue;
      if (change.kind === "cleared") this.#storeCleared(change.tier, events);
      else if (change.kind === "stored") this.#storeStored(change.tier, change.hashes, events);
      else this.#storeRemoved(change.tier, change.hashes, events);
    }
    return events;
  }

  #engineStored(
    { tier, hashes }: ResidencyChange & { kind: "stored" },
    events: EngineEvent[],
  ): void {
    const known: KnownTokens[] = [];
    for (const hash of hashes) {
      const block = this.#book.find(hash);
      if (block === null || this.#told[tier].has(hash)) continue;
      this.#told[tier].add(hash);
      known.push(block);
    }
    this.#stored(tier, known, events);
  }

  #engineRemoved(tier: Tier, hashes: BigUint64Array, events: EngineEvent[]): void {
    const gone = hashes.filter((hash) => this.#told[tier].delete(hash));
    if (gone.length > 0) events.push(removed(tier, [...gone]));
  }

  #storeStored(tier: "host" | "disk", hashes: BigUint64Array, events: EngineEvent[]): void {
    const kept = this.#kept[tier];
    const known: KnownTokens[] = [];
    for (const key of hashes) {
      if (kept.has(key)) continue;
      const block = this.#book.findKey(key);
      if (block === null && kept.size >= this.#unnamedMax) continue;
      kept.set(key, block?.sequence ?? null);
      if (block !== null) known.push(block);
    }
    this.#stored(tier, known, events);
  }

  #storeRemoved(tier: "host" | "disk", keys: Iterable<bigint>, events: EngineEvent[]): void {
    const kept = this.#kept[tier];
    const gone: bigint[] = [];
    for (const key of keys) {
      const sequence = kept.get(key) ?? null;
      kept.delete(key);
      if (sequence !== null) gone.push(sequence);
    }
    if (gone.length > 0) events.push(removed(tier, gone));
  }

  #storeCleared(tier: Tier | null, events: EngineEvent[]): void {
    for (const one of ["host", "disk"] as const) {
      if (tier === null || tier === one)
        this.#storeRemoved(one, [...this.#kept[one].keys()], events);
    }
  }

  /** The tokens of a block that this host keeps have just become known. */
  #nameKept(key: bigint, events: EngineEvent[]): void {
    const block = this.#book.findKey(key);
    if (block === null) return;
    for (const tier of ["host", "disk"] as const) {
      if (this.#kept[tier].get(key) !== null) continue;
      this.#kept[tier].set(key, block.sequence);
      this.#stored(tier, [block], events);
    }
  }

  /** One event for each stretch in which one block follows the other. */
  #stored(tier: Tier, blocks: readonly KnownTokens[], events: EngineEvent[]): void {
    let from = 0;
    for (let i = 1; i <= blocks.length; i++) {
      if (i < blocks.length && blocks[i]!.parent === blocks[i - 1]!.sequence) continue;
      events.push(storedEvent(tier, blocks.slice(from, i), this.#blockTokens));
      from = i;
    }
  }
}

const NO_EXTRAS = {
  ...{ loraName: null, loraId: null, extras: null, group: null, cacheSalt: null },
  ...{ locality: null, ownership: null, sessionId: null, eagleNext: null },
} as const;

function storedEvent(tier: Tier, blocks: readonly KnownTokens[], blockTokens: number): EngineEvent {
  const tokens = new Uint32Array(blocks.length * blockTokens);
  blocks.forEach((block, i) => {
    tokens.set(block.tokens, i * blockTokens);
  });
  return {
    ...NO_EXTRAS,
    kind: "stored",
    hashes: blocks.map(({ sequence }) => sequence),
    parent: blocks[0]!.parent,
    tokens,
    blockTokens,
    medium: MEDIA[tier],
  };
}

function removed(tier: Tier, hashes: readonly bigint[]): EngineEvent {
  const elsewhere = { group: null, locality: null, ownership: null };
  return { kind: "removed", hashes, medium: MEDIA[tier], ...elsewhere };
}

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

interface KnownTokens {
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
