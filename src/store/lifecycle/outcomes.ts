import {
  type BlockName,
  type BlockResult,
  type CommandOrigin,
  type CommandOutcome,
  countOutcomes,
  type HeldBy,
  type NodeId,
} from "../../core/index.ts";
import { Tier } from "../blocks/index.ts";
import type { Cause, DepartureReason } from "../departures.ts";
import type { LifecycleContext } from "./context.ts";
import type { HeldBlock, LifecycleReport } from "./lifecycle.ts";

export const deferred = (reason: string): BlockResult =>
  Object.freeze({ outcome: "deferred", reason });
export const rejected = (reason: string): BlockResult =>
  Object.freeze({ outcome: "rejected", reason });

export const DONE: BlockResult = Object.freeze({ outcome: "done" });
export const ALREADY: BlockResult = Object.freeze({ outcome: "already" });
export const MISSING: BlockResult = Object.freeze({ outcome: "missing" });

/** Result for a pinned block whose copy on SSD is not complete yet. */
export const COPY_OUTSTANDING = deferred(
  "ssd: the block is in RAM only; the copy to SSD is retried",
);
export const NOT_DURABLE = deferred(
  "durable: done, but the disk did not confirm that it survives a power loss",
);
export const STUCK_ON_SSD = deferred(
  "ssd: no longer served, but its file is not removed yet; the removal is retried",
);

/**
 * Rank of each outcome. If a name resolves to several blocks, its result is the one with the
 * highest rank.
 */
const SEVERITY: Readonly<Record<CommandOutcome, number>> = {
  already: 0,
  done: 1,
  missing: 2,
  deferred: 3,
  held: 4,
  rejected: 5,
};

function worseOf(a: BlockResult, b: BlockResult): BlockResult {
  return SEVERITY[b.outcome] > SEVERITY[a.outcome] ? b : a;
}

/** Returns the reason and originator that a command's removals are recorded with. */
export function causeOf(reason: DepartureReason, { issuer, command }: CommandOrigin): Cause {
  return { reason, by: command === null ? issuer : `${issuer} ${command}` };
}

/** Returns a report with the given fields. All other fields are empty. */
export function reportOf(
  results: readonly BlockResult[],
  more: Partial<Omit<LifecycleReport, "results">> = {},
): LifecycleReport {
  return {
    results,
    counts: countOutcomes(results),
    held: [],
    bytes: 0,
    figures: null,
    ttlMs: null,
    durable: false,
    ...more,
  };
}

/** Tiers from which this host removes blocks. Engines manage GPU memory themselves. */
export const OUR_TIERS = Tier.ram | Tier.ssd;

/** The blocks of one command. Each node is listed once, even if several names resolve to it. */
export class NamedBlocks {
  readonly nodes: NodeId[] = [];
  readonly #context: LifecycleContext;
  readonly #generations: number[] = [];
  readonly #count: number;
  /**
   * Name `i` resolves to the nodes `nodes[#of[k]]` for k from `#from[i]` up to, not including,
   * `#from[i + 1]`.
   */
  readonly #from: Uint32Array;
  readonly #of: Int32Array;

  /**
   * Selects the blocks that are on any tier of the bit mask `tiers`; 0 selects all known blocks.
   * `comes`: also select blocks that an engine is writing.
   */
  constructor(
    context: LifecycleContext,
    names: readonly BlockName[],
    tiers: number = OUR_TIERS,
    comes = false,
  ) {
    const { table } = context.store;
    const found = context.names.resolve(names);
    const total = found.from[found.count];
    const places = new Map<number, number>();
    this.#context = context;
    this.#count = found.count;
    this.#from = found.from.slice(0, found.count + 1);
    this.#of = new Int32Array(total).fill(-1);
    for (let k = 0; k < total; k++) {
      const node = found.nodes[k] as NodeId;
      const isThere = tiers === 0 || (table.residencyOf(node) & tiers) !== 0;
      if (!isThere && !(comes && table.isWriting(node))) continue;
      let place = places.get(node);
      if (place === undefined) {
        place = this.nodes.length;
        places.set(node, place);
        this.nodes.push(node);
        this.#generations.push(table.generationOf(node));
      }
      this.#of[k] = place;
    }
  }

  /** Returns whether the node at this index of `nodes` still belongs to the named block. */
  isLive(place: number): boolean {
    return this.#context.store.table.isLive(this.nodes[place], this.#generations[place]);
  }

  /** Returns whether the node at this index still belongs to the named block and is on the tier. */
  isOn(place: number, tier: Tier): boolean {
    return this.isLive(place) && this.#context.store.table.isResident(this.nodes[place], tier);
  }

  /**
   * Returns one result per name: the worst one of its nodes, or `missing` for a name without nodes.
   */
  resultsOf(byNode: readonly BlockResult[]): BlockResult[] {
    const results: BlockResult[] = [];
    for (let i = 0; i < this.#count; i++) {
      let worst: BlockResult | null = null;
      for (let k = this.#from[i]; k < this.#from[i + 1]; k++) {
        const place = this.#of[k];
        if (place < 0) continue;
        worst = worst === null ? byNode[place] : worseOf(worst, byNode[place]);
      }
      results.push(worst ?? MISSING);
    }
    return results;
  }
}

export const BY_DESCENDANTS: readonly HeldBy[] = Object.freeze([{ kind: "descendants" }]);
export const BY_GPU: readonly HeldBy[] = Object.freeze([{ kind: "gpu" }]);
export const BY_ENGINE: readonly HeldBy[] = Object.freeze([{ kind: "engine" }]);

/**
 * Returns who protects the block from removal; `descendants` if only its descendants are protected.
 */
export function holdersOf(context: LifecycleContext, node: NodeId): readonly HeldBy[] {
  const { store, holds, sessions } = context;
  const { table, ssd } = store;
  const pinned = table.pinsOf(node) > 0 ? holds.holdersOf(node) : [];
  const locks = table.locksOf(node);
  if (locks === 0) return pinned.length > 0 ? pinned : BY_DESCENDANTS;
  const inSessions = sessions.holdersOf(node);
  const isWritten = ssd?.writer.isQueued(node) === true;
  const by = [...pinned, ...inSessions];
  if (isWritten) by.push({ kind: "write" });
  if (locks > inSessions.length + (isWritten ? 1 : 0)) by.push({ kind: "engine" });
  return by;
}

/**
 * Returns whether only the block's own queued write to SSD protects it. Such a write can be
 * cancelled.
 */
export function isHeldByWriteAlone(context: LifecycleContext, node: NodeId): boolean {
  const { table, ssd } = context.store;
  return table.locksOf(node) === 1 && !table.isKept(node) && ssd?.writer.isQueued(node) === true;
}

/** Returns whether the block or a descendant is protected on this host. */
export function isHeld({ store }: LifecycleContext, node: NodeId): boolean {
  return store.table.isProtected(node, Tier.ssd);
}

/** Returns the report entry for a block that a command could not remove. */
export function heldBlock(
  context: LifecycleContext,
  node: NodeId,
  by: readonly HeldBy[],
): HeldBlock {
  const { table } = context.store;
  const digest = table.isGhost(node) ? null : table.digestOf(node).toHex();
  return { outcome: "held", by, digest, layer: table.layerOf(node) };
}
