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

/** Number of file removals in progress at which a command waits before it starts more. */
const FILES_MAX = 2_048;

/** Removes blocks from all tiers of this host for one command, and counts them. */
export class Removal {
  blocks = 0;
  bytes = 0;
  /** Number of removed blocks that had a file on SSD. */
  files = 0;
  /** Number of files that could not be removed. Their removal is retried in the background. */
  stuck = 0;
  /** True if the disk hangs. The command must then start no more disk operations. */
  hung = false;
  /** Number of removed blocks that an engine still has in GPU memory. */
  onGpu = 0;
  readonly #context: LifecycleContext;
  readonly #cause: Cause;
  #leaving: Promise<boolean>[] = [];

  constructor(context: LifecycleContext, cause: Cause) {
    this.#context = context;
    this.#cause = cause;
  }

  /**
   * Removes an unprotected block from RAM and SSD. Returns null if it had no file. Otherwise
   * resolves to true when the file is removed, or to false if that failed. If nothing else keeps
   * the node, it is removed too.
   */
  drop(node: NodeId): Promise<boolean> | null {
    const { table, ram, incoming } = this.#context.store;
    incoming.removedNode(table, node);
    const inRam = table.isResident(node, Tier.ram);
    if (table.isResident(node, Tier.gpu)) this.onGpu++;
    this.blocks++;
    this.bytes += table.bytesOf(node);
    // Remove from SSD first: the node may be removed together with its last copy.
    const gone = table.isResident(node, Tier.ssd) ? this.dropFile(node) : null;
    if (inRam) ram.drop(node, this.#cause);
    return gone;
  }

  /** Removes a block from SSD only. Resolves to false if its file could not be removed. */
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

  /** True if FILES_MAX file removals are in progress: the caller should wait for `room`. */
  get isFull(): boolean {
    return this.#leaving.length >= FILES_MAX;
  }

  /** Resolves when the file removals started so far have ended, or the disk hangs. */
  async room(): Promise<void> {
    const { ssd } = this.#context.store;
    if (this.#leaving.length === 0 || ssd === null) return;
    const leaving = this.#leaving;
    this.#leaving = [];
    if ((await ssd.orHung(Promise.all(leaving))) === null) this.hung = true;
  }

  /**
   * Waits for all file removals. Returns true if they are durable. Sets `stuck` to the number of
   * files that remain.
   */
  async end(): Promise<boolean> {
    await this.room();
    crashPoint("removal.over");
    return !this.hung && (await this.#context.durability.removals());
  }
  /**
   * Returns the number of visited blocks per outcome. `isDurable`: the result of `end`. `held`:
   * number of blocks that were not removed because they are protected.
   */
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

/**
 * Number of passes over the blocks. A later pass removes blocks whose writes to SSD an earlier pass
 * cancelled.
 */
const PASSES = 3;
/** Block table entries examined at once to find blocks that were not removed. */
const IDS_AT_ONCE = 65_536;

/**
 * Removes every block of this host that is not protected, in slices, the least recently used first.
 */
export async function flush(
  context: LifecycleContext,
  origin: CommandOrigin,
): Promise<LifecycleReport> {
  const flushing = new Flushing(context, causeOf("flushed", origin));
  for (let pass = 1; pass <= PASSES; pass++) {
    context.store.incoming.allRemoved();
    // SSD first: a block on both tiers is removed together with its file. Pinned blocks are still
    // protected on SSD then.
    await flushing.drain(Tier.ssd);
    await flushing.drain(Tier.ram);
    await flushing.lookAtTheRest(pass < PASSES);
    if (!(await flushing.remaining.cancelledAreOver())) break;
  }
  const report = await flushing.report();
  // Report the removal again: peers may take longer, so count their time from the end of the
  // command.
  context.store.incoming.allRemoved();
  return report;
}

/** Base class of commands that visit many blocks and remove the unprotected ones. */
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

  /**
   * Waits for the removals and returns the report. `stop`: called after the last removal; returns
   * why the command ended early, or null.
   */
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

  /**
   * Removes the blocks that are unprotected on the tier now. Blocks that engines store meanwhile
   * stay.
   */
  async drain(tier: RecencyTier): Promise<void> {
    const { table } = this.context.store;
    for (let left = table.evictableBlocks(tier); left > 0 && !this.#mustEnd; left--) {
      const node = table.oldest(tier);
      if (node === NO_NODE) return;
      // SSD protects the block, so it stays in RAM: make it the newest, so that the next `oldest`
      // returns another block.
      if (isHeld(this.context, node)) table.touchPath(node);
      else void this.removal.drop(node);
      if (this.slices.isOver()) await this.slices.turn();
      if (this.removal.isFull) await this.removal.room();
    }
  }

  /**
   * Visits the blocks that were not removed. With `mayCancel`, cancels writes to SSD that are a
   * block's only protection. Records the other blocks as held.
   */
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

/** Number of children examined to find one that was stored during the prune. */
const CHILDREN_LOOKED_AT = 64;

interface PruneOptions {
  readonly onProgress?: OnProgress;
  readonly signal?: AbortSignal;
}

/**
 * Removes all descendants of the block `after`, but not the block itself, in slices, children
 * before parents. `results` has one entry.
 */
export async function prune(
  context: LifecycleContext,
  after: BlockName,
  origin: CommandOrigin,
  options: PruneOptions = {},
): Promise<LifecycleReport> {
  const { table } = context.store;
  // Include a block that is known only as a parent: its descendants may be stored.
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
      if (!table.isLive(anchor, born[i])) continue;
      stop ??= await pruning.walk(anchor);
    }
    if (!(await pruning.remaining.cancelledAreOver())) break;
  }
  const report = await pruning.report(stop);
  // Report the removal again: peers may take longer, so count their time from the end of the
  // command.
  tell();
  return report;
}

/**
 * Returns keys and aliases, in hex, of the blocks below which the command prunes, resident or not.
 */
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

  /**
   * Visits the descendants of `anchor` and removes the unprotected ones. Returns null if the walk
   * completed; otherwise the reason why it did not.
   */
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
      // No node to return yet: the walk reached its limit of links on the way down.
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
      // Keep a block with a new child: the child could not be found without it.
      if (this.#hasNewChild(node)) this.remaining.add(node, null);
      else void this.removal.drop(node);
    } else this.remaining.meet(node);
  }

  /** Returns whether a child of the node was stored since the walk visited its children. */
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

/** Maximum number of protected blocks that the report lists with their owners. */
const LISTED = 1_000;

/**
 * The blocks that a prune or flush could not remove because they are protected. If only a block's
 * own write to SSD protects it, the write is cancelled, and another pass visits the block again.
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

  /** Owners that protect the first listed block. */
  get firstHolders(): readonly HeldBy[] {
    return this.#listed[0]?.by ?? [];
  }

  /**
   * Starts another pass over all blocks, since the protection of some may have ended. Forgets the
   * results of the previous pass.
   */
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

  /** Counts a block that stays. `by`: who protects it; null to look that up. */
  add(node: NodeId, by: readonly HeldBy[] | null): void {
    this.#count++;
    if (this.#listed.length >= LISTED) return;
    this.#listed.push(heldBlock(this.#context, node, by ?? holdersOf(this.#context, node)));
  }

  /** Waits for the cancelled writes. Returns false if there are none or the disk hangs. */
  async cancelledAreOver(): Promise<boolean> {
    const { ssd } = this.#context.store;
    const cancelled = this.#cancelled;
    this.#cancelled = [];
    if (cancelled.length === 0 || ssd === null) return false;
    return (await ssd.orHung(Promise.all(cancelled))) !== null;
  }
}
