import {
  LAYER_ALL,
  type NamespaceIndex,
  type NodeId,
  type Random,
  randomBelow,
  seededRandom,
  type WorkerId,
} from "../../../src/core/index.ts";
import { HostFeeds, type HostResidencyOptions } from "../../../src/events/publishing/index.ts";
import type { KeySpace, ResidencyTier } from "../../../src/observability/activity/index.ts";
import { type BlockTable, createBlockTable, Tier } from "../../../src/store/blocks/index.ts";
import { createAddressBatch, StoreResidency } from "../../../src/store/index.ts";
import { emptySets, type Sets } from "./consumer.ts";

export const WORKER = "gpu-01" as WorkerId;
export const CLUSTER = "test.cluster";

const BITS = { device: Tier.gpu, host: Tier.ram, disk: Tier.ssd } as const;
const TIERS = ["device", "host", "disk"] as const;

/** A table whose blocks come and go as a test wants, without bytes behind them. */
export class Blocks {
  readonly table: BlockTable;
  readonly residency: StoreResidency;
  readonly sets: Sets = emptySets();
  readonly #batch = createAddressBatch(1);
  readonly #random: Random;

  constructor(nodesMax = 4_096, seed = 1, blocksMax?: number) {
    this.#random = seededRandom(seed);
    this.table = createBlockTable({
      nodesMax,
      random: this.#random,
      onResidency: (node, tier, on) => this.residency.noted(node, tier, on),
    });
    this.residency = new StoreResidency(this.table, blocksMax);
    this.#batch.count = 1;
    this.#batch.layer = LAYER_ALL;
  }

  /** Block `id` behind block `parent`, on a tier. */
  store(id: number, parent: number | null, tier: ResidencyTier): void {
    const batch = this.#batch;
    batch.keys.set(keyOf(id));
    if (parent !== null) batch.parentKeys.set(keyOf(parent));
    const known = this.table.find(batch.keys, 0);
    if (known !== 0 && this.table.isResident(known, BITS[tier])) return;
    const of = 1 as NamespaceIndex;
    this.table.insertResident(batch, 0, of, parent !== null, BITS[tier]);
    this.sets[tier].add(hashOf(id));
  }

  remove(id: number, tier: ResidencyTier): void {
    this.#batch.keys.set(keyOf(id));
    const node = this.table.find(this.#batch.keys, 0);
    if (node === 0 || !this.table.isResident(node, BITS[tier])) return;
    if (tier === "device") this.table.removeGpuHolder(node as NodeId);
    else this.table.removeResidency(node as NodeId, BITS[tier]);
    this.sets[tier].delete(hashOf(id));
  }

  /** Some changes of one of `ids` blocks, in chains of ten. */
  churn(count: number, ids = 1_000): void {
    for (let i = 0; i < count; i++) {
      const id = 1 + randomBelow(this.#random, ids);
      const tier = TIERS[randomBelow(this.#random, 3)]!;
      if (randomBelow(this.#random, 5) < 3) this.store(id, id % 10 === 0 ? null : id - 1, tier);
      else this.remove(id, tier);
    }
  }

  /** A chain of so many blocks. */
  chain(from: number, count: number, tier: ResidencyTier): void {
    for (let i = 0; i < count; i++) this.store(from + i, i === 0 ? null : from + i - 1, tier);
  }
}

/** Words of a block's key: no two start alike. */
function keyOf(id: number): Uint32Array {
  return Uint32Array.from({ length: 8 }, (_, i) => Math.imul(id, 0x9e3779b1 + 2 * i) >>> 0);
}

export function hashOf(id: number): bigint {
  const [lo, hi] = keyOf(id);
  return (BigInt(hi!) << 32n) | BigInt(lo!);
}

export const SPACE: KeySpace = {
  kind: "blocks",
  model: "m",
  blockTokens: 16,
  namespaceKey: new Uint8Array(32).fill(7),
};

export const TOKENS: KeySpace = { kind: "tokens", model: "m", blockTokens: 16 };

export function feedsOf(
  blocks: Pick<Blocks, "residency">,
  options: Partial<HostResidencyOptions> = {},
): HostFeeds {
  return new HostFeeds({
    worker: WORKER,
    incarnation: 1n,
    ranks: [0],
    residency: blocks.residency,
    ring: { changesMax: 10_000, blocksMax: 100_000 },
    mode: "ring",
    everyMs: 50,
    engineBlocksMax: 1_000,
    hasEngines: false,
    spaces: () => [SPACE],
    ...options,
  });
}
