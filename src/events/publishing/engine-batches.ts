import type { ResidencyChange, ResidencyTier } from "../../observability/activity/index.ts";
import type { EngineEvent } from "../index.ts";
import type { EngineChange, KnownTokens, TokenBook } from "./token-book.ts";

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
