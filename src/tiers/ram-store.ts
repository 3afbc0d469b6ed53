import {
  type BlockTable,
  createBlockTable,
  createSlotAllocator,
  type SizeClass,
  SLOT_ALIGN,
  type SlotAllocator,
  Tier,
} from "../blocks/index.ts";
import { assert, type Clock, type Random } from "../core/index.ts";
import { Sessions } from "../leases/index.ts";
import type { Native, Queue, Region } from "../native/index.ts";
import type { AddressBatch } from "./batches.ts";
import type { ArenaAccess, BlockStore, Holder, HolderOptions } from "./block-store.ts";
import { Evictor, type WaterMarks } from "./evictor.ts";
import { GpuMirror } from "./gpu-mirror.ts";
import { lru } from "./policy/index.ts";
import { RamHolder } from "./ram-holder.ts";
import { RamTier } from "./ram-tier.ts";
import { emptyStats, type StoreStats } from "./stats.ts";

export interface RamStoreOptions {
  readonly native: Pick<Native, "blockKeys">;
  readonly region: Region;
  readonly queue: Queue;
  readonly clock: Clock;
  readonly random: Random;
  /** Blocks the table can know, all tiers together. */
  readonly blocksMax: number;
  /** Blocks of engines' GPUs that are mirrored, all engines together. */
  readonly gpuWindowBlocks: number;
  readonly marks: WaterMarks;
}

/** What status and metrics show of the store. */
export interface StoreSnapshot {
  readonly stats: Readonly<StoreStats>;
  readonly ramBlocks: number;
  readonly ramBytes: number;
  readonly gpuBlocks: number;
  readonly gpuBytes: number;
  readonly tableNodes: number;
  readonly tableNodesMax: number;
  readonly aliases: number;
  readonly sessions: number;
  readonly arenaBytes: number;
  readonly readyBytes: number;
  readonly slotsUsed: number;
  readonly slotsQuarantined: number;
  readonly classes: SizeClass[];
}

/** The store of this release: one table, one arena in RAM. */
export class RamStore implements BlockStore, AsyncDisposable {
  readonly table: BlockTable;
  readonly slots: SlotAllocator;
  readonly region: Region;
  readonly queue: Queue;
  readonly ram: RamTier;
  readonly sessions: Sessions;
  readonly mirror: GpuMirror;
  readonly evictor: Evictor;
  readonly stats: StoreStats = emptyStats();
  readonly arena: ArenaAccess;
  readonly blockBytesMax: number;
  /** Nodes of the batch at hand; holders fill and read it before they return. */
  readonly found = new Int32Array(BATCH_MAX);
  readonly #native: Pick<Native, "blockKeys">;

  constructor(options: RamStoreOptions) {
    const { region, blocksMax, random, clock } = options;
    this.region = region;
    this.queue = options.queue;
    this.#native = options.native;
    this.blockBytesMax = blockBytesMax(region.bytes);
    this.table = createBlockTable({ nodesMax: blocksMax, random });
    const slotBytesMax = this.blockBytesMax;
    this.slots = createSlotAllocator({ arenaBytes: region.bytes, slotBytesMax });
    const { table, slots, stats } = this;
    this.sessions = new Sessions(table, clock);
    this.ram = new RamTier({
      table,
      slots,
      stats,
      policy: lru,
      relieve: () => this.sessions.endOldest(),
    });
    this.mirror = new GpuMirror(table, options.gpuWindowBlocks);
    this.evictor = new Evictor(
      { ram: this.ram, slots, stats, clock, sessions: this.sessions },
      options.marks,
    );
    this.arena = { fd: region.fd, bytes: region.bytes, readyBytes: () => slots.readyBytes };
  }

  deriveKeys(batch: AddressBatch, withParents: boolean): void {
    const bytes = batch.count * 32;
    const { digests, parents, keyBytes, parentKeyBytes, layer } = batch;
    this.#native.blockKeys(digests.subarray(0, bytes), layer, keyBytes);
    if (withParents) this.#native.blockKeys(parents.subarray(0, bytes), layer, parentKeyBytes);
  }

  openHolder(options: HolderOptions): Holder {
    return new RamHolder(this, options);
  }

  snapshot(): StoreSnapshot {
    const { table, slots } = this;
    return {
      stats: { ...this.stats },
      ramBlocks: table.residentBlocks(Tier.ram),
      ramBytes: table.residentBytes(Tier.ram),
      gpuBlocks: table.residentBlocks(Tier.gpu),
      gpuBytes: table.residentBytes(Tier.gpu),
      tableNodes: table.nodeCount,
      tableNodesMax: table.nodesMax,
      aliases: table.aliasCount,
      sessions: this.sessions.size,
      arenaBytes: slots.arenaBytes,
      readyBytes: slots.readyBytes,
      slotsUsed: slots.usedSlots,
      slotsQuarantined: slots.quarantinedSlots,
      classes: slots.classes(),
    };
  }

  /** Table, slots, and that each says of the other what is true. For tests and the doctor. */
  verifyIntegrity(): void {
    const { table, slots } = this;
    table.verifyIntegrity();
    slots.verifyIntegrity();
    const blocks = table.residentBlocks(Tier.ram);
    assert(blocks <= slots.usedSlots, "each resident block has a slot");
    for (let node = table.oldest(Tier.ram); node !== 0; node = table.newerThan(node, Tier.ram)) {
      const slot = table.slotOf(node);
      assert(slots.nodeOf(slot) === node, "a block's slot names the block");
      assert(slots.isCurrent(slot, table.slotGenerationOf(node)), "a block's slot is its own");
    }
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.evictor[Symbol.asyncDispose]();
  }
}

/** Blocks in one batch at most: what the configuration allows as `engine.items_max`. */
const BATCH_MAX = 65_536;
/** A block's length is a u32 on the wire and in the table. */
const U32_BLOCK_BYTES = 0xffff_f000;
/** What any arena takes that has room for it: 512 tokens of an 8B model. */
const USUAL_BLOCK_BYTES = 64 * 2 ** 20;
const SHARE_OF_ARENA = 1 / 64;

/**
 * The longest block decides how long the arena's extents are, and an extent is what passes from one
 * block size to another as a whole: so there are 64 of them, or fewer of 64 MiB.
 */
function blockBytesMax(arenaBytes: number): number {
  const share = Math.floor((arenaBytes * SHARE_OF_ARENA) / SLOT_ALIGN) * SLOT_ALIGN;
  return Math.min(arenaBytes, U32_BLOCK_BYTES, Math.max(USUAL_BLOCK_BYTES, share));
}
