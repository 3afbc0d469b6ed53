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

/** The copy on SSD is not complete yet. */
export const COPY_OUTSTANDING = deferred(
  "ssd: the block is in RAM only; the copy to SSD is retried",
);
export const NOT_DURABLE = deferred(
  "durable: done, but the disk did not confirm that it survives a power loss",
);
export const STUCK_ON_SSD = deferred(
  "ssd: no longer served, but its file is not removed yet; the removal is retried",
);

/** Rank of each outcome. A name of several blocks reports the highest. */
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

/** The removal cause of a command. */
export function causeOf(reason: DepartureReason, { issuer, command }: CommandOrigin): Cause {
  return { reason, by: command === null ? issuer : `${issuer} ${command}` };
}

/** A report in which all fields that are not given have empty values. */
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

/** Tiers managed by this host. GPU memory is managed by the engine. */
export const OUR_TIERS = Tier.ram | Tier.ssd;

/** The blocks of one command. Each node occurs once, even if several names resolve to it. */
export class NamedBlocks {
  readonly nodes: NodeId[] = [];
  readonly #context: LifecycleContext;
  readonly #generations: number[] = [];
  readonly #count: number;
  /** Name `i` resolves to the nodes `nodes[#of[k]]` for k from `#from[i]` up to `#from[i + 1]`. */
  readonly #from: Uint32Array;
  readonly #of: Int32Array;

  /**
   * Selects the blocks on any tier of `tiers`; 0 selects all known blocks. `comes`: also selects
   * blocks that an engine is writing.
   */
  constructor(
    context: LifecycleContext,
    names: readonly BlockName[],
    tiers: number = OUR_TIERS,
    comes = false,
  ) {
    const { table } = context.store;
    const found = context.names.resolve(names);
    const total = found.from[found.count]!;
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

  /** Whether the node at this index is still the named block. */
  isLive(place: number): boolean {
    return this.#context.store.table.isLive(this.nodes[place]!, this.#generations[place]!);
  }

  /** Whether the node is still the named block and on the tier. */
  isOn(place: number, tier: Tier): boolean {
    return this.isLive(place) && this.#context.store.table.isResident(this.nodes[place]!, tier);
  }

  /** The worst result of each name's nodes; `missing` for a name without nodes. */
  resultsOf(byNode: readonly BlockResult[]): BlockResult[] {
    const results: BlockResult[] = [];
    for (let i = 0; i < this.#count; i++) {
      let worst: BlockResult | null = null;
      for (let k = this.#from[i]!; k < this.#from[i + 1]!; k++) {
        const place = this.#of[k]!;
        if (place < 0) continue;
        worst = worst === null ? byNode[place]! : worseOf(worst, byNode[place]!);
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
 * Owners that protect the block from removal; `descendants` if only its descendants are protected.
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

/** Whether only the block's own write to SSD protects it. The write can be cancelled. */
export function isHeldByWriteAlone(context: LifecycleContext, node: NodeId): boolean {
  const { table, ssd } = context.store;
  return table.locksOf(node) === 1 && !table.isKept(node) && ssd?.writer.isQueued(node) === true;
}

/** Whether the block or a descendant is protected on this host. */
export function isHeld({ store }: LifecycleContext, node: NodeId): boolean {
  return store.table.isProtected(node, Tier.ssd);
}

/** A report entry for a block that a command could not remove. */
export function heldBlock(
  context: LifecycleContext,
  node: NodeId,
  by: readonly HeldBy[],
): HeldBlock {
  const { table } = context.store;
  const digest = table.isGhost(node) ? null : table.digestOf(node).toHex();
  return { outcome: "held", by, digest, layer: table.layerOf(node) };
}
