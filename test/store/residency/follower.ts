import { expect } from "bun:test";
import { LAYER_ALL, NO_NODE, type NodeId } from "../../../src/core/index.ts";
import {
  mixHash,
  RESIDENCY_TIERS,
  type ResidencyChange,
  type ResidencyTier,
} from "../../../src/observability/activity/index.ts";
import { Tier } from "../../../src/store/blocks/index.ts";
import type { TieredStore } from "../../../src/store/index.ts";

const BITS = { device: Tier.gpu, host: Tier.ram, disk: Tier.ssd } as const;

type Sets = Record<ResidencyTier, Set<bigint>>;

const emptySets = (): Sets => ({ device: new Set(), host: new Set(), disk: new Set() });

/** Applies changes one by one, as any consumer does. */
export function applyChange(sets: Sets, change: ResidencyChange): void {
  if (change.kind === "cleared") {
    for (const tier of RESIDENCY_TIERS) {
      if (change.tier === null || change.tier === tier) sets[tier].clear();
    }
    return;
  }
  for (const hash of change.hashes) {
    if (change.kind === "stored") sets[change.tier].add(hash);
    else sets[change.tier].delete(hash);
  }
}

export function applyAll(sets: Sets, changes: readonly ResidencyChange[]): void {
  for (const change of changes) applyChange(sets, change);
}

/** Resident blocks by a walk of the table. */
export function realSets({ table }: TieredStore): Sets {
  const sets = emptySets();
  const key = new Uint32Array(8);
  let node: NodeId = NO_NODE;
  while (true) {
    node = table.nextOn(node, Tier.gpu | Tier.ram | Tier.ssd);
    if (node === NO_NODE) return sets;
    if (table.layerOf(node) !== LAYER_ALL) continue;
    table.readKey(node, key, 0);
    const hash = new DataView(key.buffer).getBigUint64(0, true);
    for (const tier of RESIDENCY_TIERS) {
      if (table.isResident(node, BITS[tier])) sets[tier].add(hash);
    }
  }
}

/** Follows one store by its published changes alone. */
export class Follower {
  readonly changes: ResidencyChange[] = [];
  readonly #store: TieredStore;
  readonly #sets = emptySets();
  wakes = 0;

  constructor(store: TieredStore) {
    this.#store = store;
    store.residency.start(() => {
      this.wakes++;
    });
  }

  drain(): void {
    for (const change of this.#store.residency.drain()) {
      this.changes.push(change);
      applyChange(this.#sets, change);
    }
    const digests = RESIDENCY_TIERS.map((tier) => digestOf(this.#sets[tier]));
    expect(this.#store.residency.digests).toEqual(digests);
  }

  /** Checks that the published set equals the table, and that the slices equal it too. */
  check(): void {
    do this.drain();
    while (this.#store.residency.isAnnouncing);
    expect(this.#sets).toEqual(realSets(this.#store));
    expect(this.#sliced(5)).toEqual(this.#sets);
  }

  #sliced(entries: number): Sets {
    const sets = emptySets();
    let from: number | null = 0;
    while (from !== null) {
      const slice = this.#store.residency.slice(from, entries);
      for (const change of slice.changes) {
        if (change.kind !== "stored") throw new Error(`a slice says ${change.kind}`);
        for (const hash of change.hashes) expect(sets[change.tier].has(hash)).toBe(false);
        applyChange(sets, change);
      }
      from = slice.next;
    }
    return sets;
  }
}

function digestOf(set: ReadonlySet<bigint>) {
  return { blocks: set.size, mix: [...set].reduce((mix, hash) => mix ^ mixHash(hash), 0n) };
}
