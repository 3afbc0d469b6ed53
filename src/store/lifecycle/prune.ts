import { type BlockName, type BlockResult, NO_NODE, type NodeId } from "../../core/index.ts";
import { createAddressBatch } from "../batches.ts";
import { type LeafWalk, Tier } from "../blocks/index.ts";
import { hexOfHash, hexOfKey } from "../exchange/landings.ts";
import type { LifecycleContext } from "./context.ts";
import { BY_ENGINE, BY_GPU, isHeld } from "./held.ts";
import { KeptBlocks } from "./kept-blocks.ts";
import type { Lifecycle, LifecycleReport } from "./lifecycle.ts";
import { OUR_TIERS } from "./named-blocks.ts";
import {
  ALREADY,
  causeOf,
  DONE,
  MISSING,
  NOT_DURABLE,
  reportOf,
  STUCK_ON_SSD,
} from "./outcomes.ts";
import { Removal } from "./removal.ts";
import { Slices } from "./slices.ts";

/** Walks over the subtree: a second one for those whose writes were called off in the first. */
const PASSES = 3;
/** Children looked at for one that came during the prune. */
const CHILDREN_LOOKED_AT = 64;

type PruneOptions = Parameters<Lifecycle["prune"]>[2];

/** Removes all that follows the block, from the leaves upwards, a slice at a time. */
export async function prune(
  context: LifecycleContext,
  after: BlockName,
  origin: Parameters<Lifecycle["prune"]>[1],
  options: PruneOptions = {},
): Promise<LifecycleReport> {
  const { table } = context.store;
  // A block that only its children know of, too: they are what this is about.
  const anchors = context.names.resolveOne(after, true);
  const names = namesOf(context, after, anchors);
  const tell = () => {
    for (const name of names) context.store.landings.prunedBelow(name);
  };
  tell();
  if (anchors.length === 0) return reportOf([MISSING]);
  const born = anchors.map((node) => table.generationOf(node));
  const pruning = new Pruning(context, new Removal(context, causeOf("pruned", origin)), options);
  let stop: BlockResult | null = null;
  for (let pass = 1; stop === null && pass <= PASSES; pass++) {
    pruning.kept.begin(pass < PASSES);
    for (const [i, anchor] of anchors.entries()) {
      if (!table.isLive(anchor, born[i]!)) continue;
      stop ??= await pruning.walk(anchor);
    }
    if (!(await pruning.kept.cancelledAreOver())) break;
  }
  const report = await pruning.report(stop);
  // For other hosts, which may take longer, the time counts from the end.
  tell();
  return report;
}

/** In hex, the keys and names of what is pruned below, be it here or not. */
function namesOf({ store }: LifecycleContext, after: BlockName, anchors: readonly NodeId[]) {
  if (!store.landings.minds) return [];
  const batch = createAddressBatch(1);
  const names = anchors.map((node) => {
    store.table.readKey(node, batch.keys, 0);
    return hexOfKey(batch.keys, 0);
  });
  if (after.kind === "hash") return [...names, hexOfHash(after.lo, after.hi)];
  batch.count = 1;
  batch.layer = after.layer >>> 0;
  batch.digests.set(after.bytes);
  store.deriveKeys(batch, false);
  return [...names, hexOfKey(batch.keys, 0), after.bytes.toHex()];
}

class Pruning {
  readonly kept: KeptBlocks;
  readonly #context: LifecycleContext;
  readonly #removal: Removal;
  readonly #options: NonNullable<PruneOptions>;
  readonly #slices: Slices;

  constructor(context: LifecycleContext, removal: Removal, options: NonNullable<PruneOptions>) {
    this.kept = new KeptBlocks(context);
    this.#context = context;
    this.#removal = removal;
    this.#options = options;
    this.#slices = new Slices(context.clock);
  }

  /** Null when it came to its end; else why it did not. */
  async walk(anchor: NodeId): Promise<BlockResult | null> {
    using walk = this.#context.store.table.openLeafWalk(anchor);
    if (walk === null) return { outcome: "rejected", reason: "busy: too many walks at once" };
    while (!walk.over) {
      this.#slice(walk);
      await this.#slices.turn();
      if (this.#removal.isFull) await this.#removal.room();
      if (this.#removal.hung) {
        return { outcome: "deferred", reason: "ssd: it hangs; what is left was not looked at" };
      }
      if (this.#context.signal.aborted || this.#options.signal?.aborted) {
        return { outcome: "deferred", reason: "aborted: what is left was not looked at" };
      }
      if (this.#slices.mayTell()) this.#tell();
    }
    return null;
  }

  #slice(walk: LeafWalk): void {
    while (!walk.over && !this.#slices.isOver() && !this.#removal.isFull) {
      const node = walk.next();
      if (node !== NO_NODE) this.#visit(node);
      // A thousand links on the way down were followed.
      else if (this.#slices.isLate()) return;
    }
  }

  #visit(node: NodeId): void {
    const context = this.#context;
    const { table } = context.store;
    const there = table.residencyOf(node);
    if ((there & OUR_TIERS) === 0) {
      if ((there & Tier.gpu) !== 0) this.kept.add(node, BY_GPU);
      else if (table.isWriting(node)) this.kept.add(node, BY_ENGINE);
    } else if (!isHeld(context, node)) {
      // What came below it meanwhile could not be found without it.
      if (this.#hasNewChild(node)) this.kept.add(node, null);
      else void this.#removal.drop(node);
    } else this.kept.meet(node);
  }

  /** Every child was visited before: one that may go and has not gone came since. */
  #hasNewChild(node: NodeId): boolean {
    const { table } = this.#context.store;
    let child = table.firstChildOf(node);
    for (let looks = 0; child !== NO_NODE && looks < CHILDREN_LOOKED_AT; looks++) {
      if ((table.residencyOf(child) & OUR_TIERS) !== 0) return true;
      child = table.nextSiblingOf(child);
    }
    return false;
  }

  #tell(): void {
    const { blocks, bytes } = this.#removal;
    this.#options.onProgress?.({ doneBlocks: blocks, doneBytes: bytes, totalBlocks: null });
  }

  async report(stop: BlockResult | null): Promise<LifecycleReport> {
    const removal = this.#removal;
    const isDurable = await removal.end();
    const counts = removal.counts(isDurable, this.kept.count);
    const { bytes, stuck } = removal;
    const isGone = isDurable && stuck === 0;
    const durable = isGone && this.#context.store.ssd !== null;
    const result = stop ?? (isGone ? this.#outcome() : stuck > 0 ? STUCK_ON_SSD : NOT_DURABLE);
    return reportOf([result], { counts, held: this.kept.listed, bytes, durable });
  }

  #outcome(): BlockResult {
    if (this.kept.count > 0) return { outcome: "held", by: this.kept.firstHolders };
    if (this.#removal.onGpu > 0) return doneExceptOnGpu(this.#removal.onGpu);
    return this.#removal.blocks > 0 ? DONE : ALREADY;
  }
}

function doneExceptOnGpu(blocks: number): BlockResult {
  const what = `an engine keeps ${blocks} of the removed blocks on its GPU until it evicts them`;
  return { outcome: "done", reason: `gpu: ${what}` };
}
