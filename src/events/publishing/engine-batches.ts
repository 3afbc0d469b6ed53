import { Column, HashTable, LAYER_ALL, NO_ENTRY } from "../../core/index.ts";
import { blockKeys, type Hashing, PromptDigests } from "../../identity/index.ts";
import type { ResidencyChange, ResidencyTier } from "../../observability/activity/index.ts";
import type { EngineEvent, IngestChange } from "../index.ts";

type Tier = ResidencyTier;

/** Media of the tiers, named as in vLLM. */
const MEDIA: Readonly<Record<Tier, string>> = { device: "GPU", host: "CPU", disk: "STORAGE" };
const TIERS = ["device", "host", "disk"] as const;

/**
 * Translates residency changes into engine events, with blocks named by the hash of their tokens
 * and described by their tokens. Changes from an engine pass through. A block in this host's store
 * is published once an engine's event has revealed its tokens.
 */
export class EngineBatches {
  readonly #book: TokenTable;
  readonly #blockTokens: number;
  readonly #unnamedMax: number;
  /**
   * Key hashes of the blocks in this host's store, per tier. The value is the sequence hash
   * published for the block, or null if its tokens are unknown.
   */
  readonly #kept = {
    host: new Map<bigint, bigint | null>(),
    disk: new Map<bigint, bigint | null>(),
  };
  /** Sequence hashes published for the engine's own tiers. */
  readonly #published = {
    device: new Set<bigint>(),
    host: new Set<bigint>(),
    disk: new Set<bigint>(),
  };

  constructor(book: TokenTable, blockTokens: number, unnamedMax: number) {
    this.#book = book;
    this.#blockTokens = blockTokens;
    this.#unnamedMax = unnamedMax;
  }

  /**
   * Starts with the store's blocks from an object for another block size. Their tokens count as
   * unknown again.
   */
  takeKept({ host, disk }: EngineBatches["kept"]): void {
    for (const key of host.keys()) this.#kept.host.set(key, null);
    for (const key of disk.keys()) this.#kept.disk.set(key, null);
  }

  get kept() {
    return this.#kept;
  }

  /** Number of blocks in the store whose tokens are unknown. */
  get unnamed(): number {
    let unnamed = 0;
    for (const kept of [this.#kept.host, this.#kept.disk]) {
      for (const name of kept.values()) if (name === null) unnamed++;
    }
    return unnamed;
  }

  /**
   * Translates an engine's changes. `named` contains the key hashes of blocks whose tokens these
   * changes revealed.
   */
  engine(changes: readonly IngestChange[], named: readonly bigint[]): readonly EngineEvent[] {
    const events: EngineEvent[] = [];
    for (const { change } of changes) {
      if (change.kind === "stored") this.#engineStored(change, events);
      else if (change.kind === "removed") this.#engineRemoved(change.tier, change.hashes, events);
      else {
        for (const tier of change.tier === null ? TIERS : [change.tier]) {
          this.#engineRemoved(tier, BigUint64Array.from(this.#published[tier]), events);
        }
      }
    }
    for (const key of named) this.#nameKept(key, events);
    return events;
  }

  /**
   * Translates changes of this host's store, except those of the GPU tier, which the engine itself
   * publishes.
   */
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
      if (block === null || this.#published[tier].has(hash)) continue;
      this.#published[tier].add(hash);
      known.push(block);
    }
    this.#stored(tier, known, events);
  }

  #engineRemoved(tier: Tier, hashes: BigUint64Array, events: EngineEvent[]): void {
    const gone = hashes.filter((hash) => this.#published[tier].delete(hash));
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

  /** Publishes the store's block with this key hash, whose tokens have just become known. */
  #nameKept(key: bigint, events: EngineEvent[]): void {
    const block = this.#book.findKey(key);
    if (block === null) return;
    for (const tier of ["host", "disk"] as const) {
      if (this.#kept[tier].get(key) !== null) continue;
      this.#kept[tier].set(key, block.sequence);
      this.#stored(tier, [block], events);
    }
  }

  /** Appends one `stored` event per run of consecutive blocks. */
  #stored(tier: Tier, blocks: readonly KnownTokens[], events: EngineEvent[]): void {
    let from = 0;
    for (let i = 1; i <= blocks.length; i++) {
      if (i < blocks.length && blocks[i].parent === blocks[i - 1].sequence) continue;
      events.push(storedEvent(tier, blocks.slice(from, i), this.#blockTokens));
      from = i;
    }
  }
}

const NO_EXTRAS = {
  loraName: null,
  loraId: null,
  extras: null,
  group: null,
  cacheSalt: null,
  locality: null,
  ownership: null,
  sessionId: null,
  eagleNext: null,
} as const;

function storedEvent(tier: Tier, blocks: readonly KnownTokens[], blockTokens: number): EngineEvent {
  const tokens = new Uint32Array(blocks.length * blockTokens);
  blocks.forEach((block, i) => {
    copyTokens(block, blockTokens, tokens, i);
  });
  return {
    ...NO_EXTRAS,
    kind: "stored",
    hashes: blocks.map(({ sequence }) => sequence),
    parent: blocks[0].parent,
    tokens,
    blockTokens,
    medium: MEDIA[tier],
  };
}

function removed(tier: Tier, hashes: readonly bigint[]): EngineEvent {
  const elsewhere = { group: null, locality: null, ownership: null };
  return { kind: "removed", hashes, medium: MEDIA[tier], ...elsewhere };
}

interface NamedNamespace {
  readonly key: Uint8Array;
  /**
   * Chain function by which the engine's keys are computed. Null: blocks are named by digests of
   * tokens.
   */
  readonly chain: string | null;
}

export interface TokenTableOptions {
  readonly hashing: Hashing;
  readonly blockTokens: number;
  /** Maximum remembered blocks. Beyond it, the oldest are evicted. */
  readonly blocksMax: number;
  /** Returns the namespaces in which this host stores blocks of the same model and block size. */
  readonly namespaces: () => readonly NamedNamespace[];
}

interface KnownTokens {
  /**
   * Sequence hash: the hash of all tokens up to the block's end. `parent` is the sequence hash of
   * the previous block.
   */
  readonly sequence: bigint;
  readonly parent: bigint | null;
  /**
   * Tokens of a run of blocks that contains this block. All blocks of the run share the array,
   * because a view per block would take more memory than the tokens.
   */
  readonly run: Uint32Array;
  /** Index in `run` of the block's first token. */
  readonly at: number;
}

const NO_KEYS: readonly Uint32Array[] = [];
const NO_RUN = new Uint32Array();

/** Copies the tokens of a block to position `nth` (in blocks) of `into`. */
function copyTokens(
  { run, at }: KnownTokens,
  blockTokens: number,
  into: Uint32Array,
  nth: number,
): void {
  const to = nth * blockTokens;
  for (let i = 0; i < blockTokens; i++) into[to + i] = run[at + i];
}

/**
 * Maximum length in blocks of a prompt whose keys are computed. A longer one would take too long,
 * because all its keys are computed in one turn of the event loop.
 */
const CHAIN_BLOCKS_MAX = 16_384;
const KEY_BYTES = 32;
/** Maximum namespaces for which keys are computed. Each costs one more digest of the prompt. */
const NAMESPACES_MAX = 4;

/**
 * Tokens of blocks, learned from an engine's events. Finds a block by its sequence hash, and by the
 * key hash under which this host stores the block.
 */
export class TokenTable {
  readonly #options: TokenTableOptions;
  readonly #sequences: HashTable;
  readonly #parent = new Column(BigUint64Array);
  readonly #hasParent = new Column(Uint8Array);
  /** Token arrays by table entry. Blocks from the same event share one array. */
  readonly #runs: Uint32Array[] = [];
  /** Index in that array of the block's first token. */
  readonly #at = new Column(Uint32Array);
  /** Position of the block in its prompt, counted from 1. 0 if an earlier block is unknown. */
  readonly #depth = new Column(Uint32Array);
  /** Keys of the block in this host's namespaces, by table entry; eight 32-bit words per key. */
  readonly #keys = new Map<number, Uint32Array[]>();
  /** Table of the first eight bytes of all keys, from which the block's sequence hash is found. */
  readonly #byKey: HashTable;
  readonly #sequenceOfKey = new Column(BigUint64Array);

  constructor(options: TokenTableOptions) {
    this.#options = options;
    this.#sequences = new HashTable(options.blocksMax);
    this.#byKey = new HashTable(options.blocksMax);
  }

  get size(): number {
    return this.#sequences.size;
  }

  find(sequence: bigint): KnownTokens | null {
    const entry = this.#sequences.find(sequence);
    return entry === NO_ENTRY ? null : this.#blockAt(entry);
  }

  has(sequence: bigint): boolean {
    return this.#sequences.find(sequence) !== NO_ENTRY;
  }

  /**
   * Returns the keys under which this host may store the block, eight 32-bit words each. Empty if
   * none is known.
   */
  keysOf(sequence: bigint): readonly Uint32Array[] {
    return this.#keys.get(this.#sequences.find(sequence)) ?? NO_KEYS;
  }

  /** Finds a block by `hash`, the first eight bytes of its key. Null if unknown. */
  findKey(hash: bigint): KnownTokens | null {
    const entry = this.#byKey.find(hash);
    return entry === NO_ENTRY ? null : this.find(this.#sequenceOfKey.get(entry));
  }

  /**
   * Learns the tokens of a change. Returns the key hashes of the blocks whose tokens were unknown
   * before.
   */
  learn({ change, tokens, isPlain }: IngestChange): readonly bigint[] {
    const { blockTokens } = this.#options;
    if (change.kind !== "stored" || tokens === null || !isPlain) return [];
    if (tokens.length !== change.hashes.length * blockTokens) return [];
    const fresh = new Set<bigint>();
    const run = tokens.slice();
    let { parent } = change;
    change.hashes.forEach((sequence, i) => {
      if (!this.has(sequence)) {
        this.#add(sequence, parent, run, i * blockTokens);
        fresh.add(sequence);
      }
      parent = sequence;
    });
    const last = change.hashes.at(-1);
    const named = fresh.size === 0 || last === undefined ? [] : this.#name(last, fresh);
    this.#forgetOldest();
    return named;
  }

  #add(sequence: bigint, parent: bigint | null, run: Uint32Array, at: number): void {
    const before = parent === null ? NO_ENTRY : this.#sequences.find(parent);
    const isWhole = parent === null || (before !== NO_ENTRY && this.#depth.get(before) > 0);
    const entry = this.#sequences.add(sequence);
    this.#parent.set(entry, parent ?? 0n);
    this.#hasParent.set(entry, parent === null ? 0 : 1);
    this.#runs[entry] = run;
    this.#at.set(entry, at);
    this.#depth.set(entry, !isWhole ? 0 : parent === null ? 1 : this.#depth.get(before) + 1);
  }

  #blockAt(entry: number): KnownTokens {
    return {
      sequence: this.#sequences.keyOf(entry),
      parent: this.#hasParent.get(entry) === 0 ? null : this.#parent.get(entry),
      run: this.#runs[entry],
      at: this.#at.get(entry),
    };
  }

  /**
   * Computes the keys of the blocks in `fresh`, on the path from the prompt's start to `last`, in
   * all namespaces. Returns the key hashes.
   */
  #name(last: bigint, fresh: ReadonlySet<bigint>): readonly bigint[] {
    const { hashing, blockTokens } = this.#options;
    const namespaces = this.#options.namespaces().slice(-NAMESPACES_MAX);
    const chain = namespaces.length === 0 ? null : this.#chainTo(last);
    if (chain === null) return [];
    const tokens = new Uint32Array(chain.length * blockTokens);
    chain.forEach((block, i) => {
      copyTokens(block, blockTokens, tokens, i);
    });
    const named: bigint[] = [];
    const prompt = new PromptDigests(hashing, { tokens, blockTokens });
    for (const namespace of namespaces) {
      const digests = prompt.in(namespace.key, namespace.chain);
      if (digests === null) continue;
      const packed = blockKeys(hashing, digests, LAYER_ALL);
      const view = new DataView(packed.buffer, packed.byteOffset, packed.byteLength);
      chain.forEach((block, i) => {
        const { sequence } = block;
        if (!fresh.has(sequence)) return;
        const hash = view.getBigUint64(i * KEY_BYTES, true);
        const key = new Uint32Array(packed.slice(i * KEY_BYTES, (i + 1) * KEY_BYTES).buffer);
        const entry = this.#sequences.find(sequence);
        const keys = this.#keys.get(entry);
        if (keys === undefined) this.#keys.set(entry, [key]);
        else keys.push(key);
        const known = this.#byKey.find(hash);
        this.#sequenceOfKey.set(known === NO_ENTRY ? this.#byKey.add(hash) : known, sequence);
        named.push(hash);
      });
    }
    return named;
  }

  /** Returns the prompt's blocks from the first to `last`. Null if one is unknown. */
  #chainTo(last: bigint): KnownTokens[] | null {
    const depth = this.#depth.get(this.#sequences.find(last));
    if (depth === 0 || depth > CHAIN_BLOCKS_MAX) return null;
    const chain: KnownTokens[] = [];
    for (let at: bigint | null = last; at !== null; ) {
      const block = this.find(at);
      if (block === null) return null;
      chain.push(block);
      at = block.parent;
    }
    return chain.reverse();
  }

  #forgetOldest(): void {
    while (this.#sequences.size > this.#options.blocksMax) {
      const entry = this.#sequences.oldest();
      for (const [low, high] of this.#keys.get(entry) ?? NO_KEYS) {
        const key = this.#byKey.find((BigInt(high!) << 32n) | BigInt(low!));
        if (key !== NO_ENTRY) this.#byKey.delete(key);
      }
      this.#keys.delete(entry);
      this.#runs[entry] = NO_RUN;
      this.#sequences.delete(entry);
    }
  }
}
