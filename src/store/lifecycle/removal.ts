import {
  type BlockName,
  type BlockResult,
  type CommandOrigin,
  type HeldBy,
  NO_NODE,
  type NodeId,
  type OutcomeCounts,
} from "../../core/index.ts";
import { crashPoint } from "../../native/index.ts";
import { createAddressBatch } from "../batches.ts";
import { type LeafWalk, type RecencyTier, Tier } from "../blocks/index.ts";
import type { Cause } from "../departures.ts";
import { hexOfHash, hexOfKey } from "../exchange/incoming-blocks.ts";
import type { LifecycleContext } from "./context.ts";
import { Slices } from "./context.ts";
import type { HeldBlock, LifecycleReport, OnProgress } from "./lifecycle.ts";
import {
  ALREADY,
  BY_ENGINE,
  BY_GPU,
  causeOf,
  DONE,
  deferred,
  heldBlock,
  holdersOf,
  isHeld,
  isHeldByWriteAlone,
  MISSING,
  NOT_DURABLE,
  OUR_TIERS,
  rejected,
  reportOf,
  STUCK_ON_SSD,
} from "./outcomes.ts";

/** Maximum number of file removals under way for one command before it waits. */
const FILES_MAX = 2_048;

/** Removes blocks from all tiers of this host for one command. */
export class Removal {
  blocks = 0;
  bytes = 0;
  /** Removed blocks that had a file. */
  files = 0;
  /** Files that could not be removed. Their removal is retried. */
  stuck = 0;
  /** The disk hangs: issue no more operations. */
  hung = false;
  /** Blocks of which an engine has a copy in GPU memory. */
  onGpu = 0;
  readonly #context: LifecycleContext;
  readonly #cause: Cause;
  #leaving: Promise<boolean>[] = [];

  constructor(context: LifecycleContext, cause: Cause) {
    this.#context = context;
    this.#cause = cause;
  }

  /**
   * Removes an unprotected block from RAM and SSD. Null if it had no file; otherwise resolves with
   * true when the file is removed, or false if that failed. May remove the node.
   */
  drop(node: NodeId): Promise<boolean> | null {
    const { table, ram, incoming } = this.#context.store;
    incoming.removedNode(table, node);
    const inRam = table.isResident(node, Tier.ram);
    if (table.isResident(node, Tier.gpu)) this.onGpu++;
    this.blocks++;
    this.bytes += table.bytesOf(node);
    // From SSD first: the node is removed with its last copy.
    const gone = table.isResident(node, Tier.ssd) ? this.dropFile(node) : null;
    if (inRam) ram.drop(node, this.#cause);
    return gone;
  }

  /** Removes a block from SSD only. */
  dropFile(node: NodeId): Promise<boolean> {
    const { ssd } = this.#context.store;
    this.files++;
    const gone = ssd!.room.drop(node, this.#cause).then((isGone) => {
      if (!isGone) this.stuck++;
      return isGone;
    });
    this.#leaving.push(gone);
    return gone;
  }

  /** Whether too many file removals are under way and the caller should wait. */
  get isFull(): boolean {
    return this.#leaving.length >= FILES_MAX;
  }

  /** Resolves when the file removals so far have ended, or the disk hangs. */
  async room(): Promise<void> {
    const { ssd } = this.#context.store;
    if (this.#leaving.length === 0 || ssd === null) return;
    const leaving = this.#leaving;
    this.#leaving = [];
    if ((await ssd.orHung(Promise.all(leaving))) === null) this.hung = true;
  }

  /** Waits for all removals; true if they are durable. `stuck` counts files that remain. */
  async end(): Promise<boolean> {
    await this.room();
    crashPoint("removal.over");
    return !this.hung && (await this.#context.durability.removals());
  }
  /** Outcomes of all blocks visited, given the result of `end`. */
  counts(isDurable: boolean, held: number): OutcomeCounts {
    const deferred = isDurable ? this.stuck : this.files;
    const done = this.blocks - deferred;
    return { done, already: 0, missing: 0, held, deferred, rejected: 0 };
  }
}

const HUNG = deferred("ssd: the disk hangs; the remaining blocks were not processed");
const FLUSH_ABORTED = deferred("aborted: the agent is stopping");
const PRUNE_ABORTED = deferred("aborted: the remaining blocks were not processed");
const BUSY = rejected("busy: too many concurrent tree walks");

/** Passes over the blocks: a further one removes blocks whose writes an earlier pass cancelled. */
const PASSES = 3;
/** Ids examined at once for blocks that remain. */
const IDS_AT_ONCE = 65_536;

/** Removes every block that is not protected, in slices, the oldest first. */
export async function flush(
  context: LifecycleContext,
  origin: CommandOrigin,
): Promise<LifecycleReport> {
  const flushing = new Flushing(context, causeOf("flushed", origin));
  for (let pass = 1; pass <= PASSES; pass++) {
    context.store.incoming.allRemoved();
    // A block on both tiers is removed with its file; pinned blocks have their files last.
    await flushing.drain(Tier.ssd);
    await flushing.drain(Tier.ram);
    await flushing.lookAtTheRest(pass < PASSES);
    if (!(await flushing.remaining.cancelledAreOver())) break;
  }
  const report = await flushing.report();
  // Peers may take longer: count their time from the end.
  context.store.incoming.allRemoved();
  return report;
}

/** A command that visits many blocks and removes those that nothing protects. */
class Clearing {
  readonly remaining: RemainingBlocks;
  protected readonly context: LifecycleContext;
  protected readonly removal: Removal;
  protected readonly slices: Slices;

  constructor(context: LifecycleContext, cause: Cause) {
    this.remaining = new RemainingBlocks(context);
    this.context = context;
    this.removal = new Removal(context, cause);
    this.slices = new Slices(context.clock);
  }

  /** `stop`: why the command ended early, or null; called after the last removal. */
  protected async end(stop: () => BlockResult | null, onGpu = 0): Promise<LifecycleReport> {
    const { removal, remaining } = this;
    const isDurable = await removal.end();
    const { bytes, stuck } = removal;
    const counts = removal.counts(isDurable, remaining.count);
    const isGone = isDurable && stuck === 0;
    const notGone = stuck > 0 ? STUCK_ON_SSD : NOT_DURABLE;
    const result = stop() ?? (isGone ? this.#outcome(onGpu) : notGone);
    const durable = isGone && this.context.store.ssd !== null;
    return reportOf([result], { counts, held: remaining.listed, bytes, durable });
  }

  #outcome(onGpu: number): BlockResult {
    if (this.remaining.count > 0) return { outcome: "held", by: this.remaining.firstHolders };
    if (onGpu > 0) return doneExceptOnGpu(onGpu);
    return this.removal.blocks > 0 ? DONE : ALREADY;
  }
}

class Flushing extends Clearing {
  get #mustEnd(): boolean {
    return this.removal.hung || this.context.signal.aborted;
  }

  /** Removes the blocks that are unprotected now. Blocks that engines store meanwhile stay. */
  async drain(tier: RecencyTier): Promise<void> {
    const { table } = this.context.store;
    for (let left = table.evictableBlocks(tier); left > 0 && !this.#mustEnd; left--) {
      const node = table.oldest(tier);
      if (node === NO_NODE) return;
      // The block is protected on SSD only and stays in RAM: move it out of the way.
      if (isHeld(this.context, node)) table.touchPath(node);
      else void this.removal.drop(node);
      if (this.slices.isOver()) await this.slices.turn();
      if (this.removal.isFull) await this.removal.room();
    }
  }

  /** Cancels writes that alone protect blocks, and records the protected blocks. */
  async lookAtTheRest(mayCancel: boolean): Promise<void> {
    const { table } = this.context.store;
    this.remaining.begin(mayCancel);
    for (let from = 0; from <= table.nodesMax && !this.#mustEnd; from += IDS_AT_ONCE) {
      const end = from + IDS_AT_ONCE;
      const next = (node: number) => table.nextOn(node as NodeId, OUR_TIERS, end);
      for (let node = next(Math.max(0, from - 1)); node !== NO_NODE; node = next(node)) {
        if (isHeld(this.context, node)) this.remaining.meet(node);
        if (this.slices.isOver()) await this.slices.turn();
      }
      if (this.slices.isOver()) await this.slices.turn();
    }
  }

  async report(): Promise<LifecycleReport> {
    const { removal, remaining } = this;
    const report = await this.end(() => {
      if (this.context.signal.aborted) return FLUSH_ABORTED;
      return removal.hung ? HUNG : null;
    });
    const { blocks, bytes } = removal;
    this.context.log("info", "flushed blocks", { blocks, bytes, held: remaining.count });
    return report;
  }
}

/** Children examined to find one that was stored during the prune. */
const CHILDREN_LOOKED_AT = 64;

interface PruneOptions {
  readonly onProgress?: OnProgress;
  readonly signal?: AbortSignal;
}

/**
 * Removes all descendants of the block, but not the block itself, in slices, leaves first.
 * `results` has one entry.
 */
export async function prune(
  context: LifecycleContext,
  after: BlockName,
  origin: CommandOrigin,
  options: PruneOptions = {},
): Promise<LifecycleReport> {
  const { table } = context.store;
  // Include a block that is known only as a parent: the command is about its descendants.
  const anchors = context.names.resolveOne(after, true);
  const names = namesOf(context, after, anchors);
  const tell = () => {
    for (const name of names) context.store.incoming.prunedBelow(name);
  };
  tell();
  if (anchors.length === 0) return reportOf([MISSING]);
  const born = anchors.map((node) => table.generationOf(node));
  const pruning = new Pruning(context, causeOf("pruned", origin), options);
  let stop: BlockResult | null = null;
  for (let pass = 1; stop === null && pass <= PASSES; pass++) {
    pruning.remaining.begin(pass < PASSES);
    for (const [i, anchor] of anchors.entries()) {
      if (!table.isLive(anchor, born[i]!)) continue;
      stop ??= await pruning.walk(anchor);
    }
    if (!(await pruning.remaining.cancelledAreOver())) break;
  }
  const report = await pruning.report(stop);
  // Peers may take longer: count their time from the end.
  tell();
  return report;
}

/** Keys and aliases, in hex, of the root blocks, resident or not. */
function namesOf({ store }: LifecycleContext, after: BlockName, anchors: readonly NodeId[]) {
  if (!store.incoming.minds) return [];
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

class Pruning extends Clearing {
  readonly #options: PruneOptions;

  constructor(context: LifecycleContext, cause: Cause, options: PruneOptions) {
    super(context, cause);
    this.#options = options;
  }

  /** Null if the walk completed; otherwise the reason why it did not. */
  async walk(anchor: NodeId): Promise<BlockResult | null> {
    using walk = this.context.store.table.openLeafWalk(anchor);
    if (walk === null) return BUSY;
    while (!walk.over) {
      this.#slice(walk);
      await this.slices.turn();
      if (this.removal.isFull) await this.removal.room();
      if (this.removal.hung) return HUNG;
      if (this.context.signal.aborted || this.#options.signal?.aborted) return PRUNE_ABORTED;
      if (this.slices.isReportDue()) this.#report();
    }
    return null;
  }

  #slice(walk: LeafWalk): void {
    while (!walk.over && !this.slices.isOver() && !this.removal.isFull) {
      const node = walk.next();
      if (node !== NO_NODE) this.#visit(node);
      // The step followed a thousand links on the way down.
      else if (this.slices.isLate()) return;
    }
  }

  #visit(node: NodeId): void {
    const context = this.context;
    const { table } = context.store;
    const there = table.residencyOf(node);
    if ((there & OUR_TIERS) === 0) {
      if ((there & Tier.gpu) !== 0) this.remaining.add(node, BY_GPU);
      else if (table.isWriting(node)) this.remaining.add(node, BY_ENGINE);
    } else if (!isHeld(context, node)) {
      // A block stored below it meanwhile could not be found without it.
      if (this.#hasNewChild(node)) this.remaining.add(node, null);
      else void this.removal.drop(node);
    } else this.remaining.meet(node);
  }

  /** Whether a child was stored since the walk: all earlier children were visited. */
  #hasNewChild(node: NodeId): boolean {
    const { table } = this.context.store;
    let child = table.firstChildOf(node);
    for (let looks = 0; child !== NO_NODE && looks < CHILDREN_LOOKED_AT; looks++) {
      if ((table.residencyOf(child) & OUR_TIERS) !== 0) return true;
      child = table.nextSiblingOf(child);
    }
    return false;
  }

  #report(): void {
    const { blocks, bytes } = this.removal;
    this.#options.onProgress?.({ doneBlocks: blocks, doneBytes: bytes, totalBlocks: null });
  }

  report(stop: BlockResult | null): Promise<LifecycleReport> {
    return this.end(() => stop, this.removal.onGpu);
  }
}

function doneExceptOnGpu(blocks: number): BlockResult {
  const what = `an engine has ${blocks} of the removed blocks in GPU memory until it evicts them`;
  return { outcome: "done", reason: `gpu: ${what}` };
}

/** Maximum number of remaining blocks that the report lists with their owners. */
const LISTED = 1_000;

/**
 * The blocks that a tree walk or flush could not remove. Writes that alone protect a block are
 * cancelled, and the block is visited again in another pass.
 */
class RemainingBlocks {
  readonly #context: LifecycleContext;
  #listed: HeldBlock[] = [];
  #count = 0;
  #cancelled: Promise<void>[] = [];
  #mayCancel = true;

  constructor(context: LifecycleContext) {
    this.#context = context;
  }

  get count(): number {
    return this.#count;
  }

  get listed(): readonly HeldBlock[] {
    return this.#listed;
  }

  /** Owners of the first block. */
  get firstHolders(): readonly HeldBy[] {
    return this.#listed[0]?.by ?? [];
  }

  /** Starts another pass over all blocks, since protection may have ended. */
  begin(mayCancel: boolean): void {
    this.#listed = [];
    this.#count = 0;
    this.#mayCancel = mayCancel;
  }

  /**
   * Handles a protected block: cancels its write if nothing else protects it, otherwise counts the
   * block.
   */
  meet(node: NodeId): void {
    if (this.#mayCancel && isHeldByWriteAlone(this.#context, node)) {
      this.#cancelled.push(this.#context.store.ssd!.writer.cancel(node));
    } else this.add(node, null);
  }

  /** Counts a block that stays. `by`: its owners; null to look them up. */
  add(node: NodeId, by: readonly HeldBy[] | null): void {
    this.#count++;
    if (this.#listed.length >= LISTED) return;
    this.#listed.push(heldBlock(this.#context, node, by ?? holdersOf(this.#context, node)));
  }

  /** Waits for cancelled writes; false if there are none or the disk hangs. */
  async cancelledAreOver(): Promise<boolean> {
    const { ssd } = this.#context.store;
    const cancelled = this.#cancelled;
    this.#cancelled = [];
    if (cancelled.length === 0 || ssd === null) return false;
    return (await ssd.orHung(Promise.all(cancelled))) !== null;
  }
}
