import {
  assert,
  type Clock,
  loopTurns,
  type NamespaceIndex,
  NO_NODE,
  type NodeId,
  type Random,
  type TurnBudget,
} from "../core/index.ts";
import type { BlockDisk, Native, Queue, Region } from "../native/index.ts";
import type { ArenaPart } from "./arena.ts";
import type { AddressBatch } from "./batches.ts";
import type { ArenaAccess, BlockStore, Holder, HolderOptions } from "./block-store.ts";
import {
  ANY_ZONE,
  type BlockTable,
  createBlockTable,
  createSlotAllocator,
  type SizeClass,
  SLOT_ALIGN,
  type SlotAllocator,
  Tier,
} from "./blocks/index.ts";
import { Departures } from "./departures.ts";
import { StoreHolder } from "./engine-session.ts";
import { Engines } from "./engines/announcements.ts";
import type { ClaimLimits } from "./engines/claims.ts";
import { Landings } from "./exchange/landing.ts";
import type { PeerTier } from "./exchange/peer-blocks.ts";
import { SeenBlocks, StorePeerBlocks } from "./exchange/store-peer-blocks.ts";
import { GpuMirror } from "./gpu-mirror.ts";
import type { BlockIndex } from "./index/index.ts";
import { NamespaceMacs, Namespaces } from "./namespaces.ts";
import { type ReliefLevel, Sessions } from "./pins/index.ts";
import type { VictimOrder } from "./policy/victim-order.ts";
import { createOrder, type PolicyName } from "./policy/victim-order.ts";
import { RamCheck, type RamCheckStats } from "./ram-check.ts";
import { Evictor, emptyStats, RamTier, type StoreStats, type WaterMarks } from "./ram-tier.ts";
import { StoreResidency } from "./residency.ts";
import { BlockFiles } from "./ssd/block-files.ts";
import { DiskSchedule } from "./ssd/io-slots.ts";
import { Recovery, type RecoveryReport } from "./ssd/recovery.ts";
import {
  emptySsdStats,
  type HealthSink,
  type SsdParts,
  type SsdSnapshot,
  type SsdStats,
} from "./ssd/ssd-parts.ts";
import { type SsdSettings, SsdTier } from "./ssd/ssd-tier.ts";

export interface TieredStoreOptions {
  readonly native: Native;
  readonly region: Region;
  readonly queue: Queue;
  readonly clock: Clock;
  readonly random: Random;
  /** Blocks the table can know, all tiers together. */
  readonly blocksMax: number;
  /** Blocks of engines' GPUs that are mirrored, all engines together. */
  readonly gpuWindowBlocks: number;
  readonly marks: WaterMarks;
  /** What of the arena lies near which NUMA node. Default: nothing is known of it. */
  readonly parts?: readonly ArenaPart[];
  /** What leaves RAM first. */
  readonly policy: PolicyName;
  /** What engines may have reserved of RAM. Default: `claimLimits` of the whole arena. */
  readonly claims?: ClaimLimits;
  /** Of the event loop, for lookups. */
  readonly turns?: TurnBudget;
  /** Those of the process; without them no block can come from another host. */
  readonly namespaces?: Namespaces;
  /** MAC keys of namespaces by identifier, 16 bytes each. Default: none. */
  readonly macKeys?: ReadonlyMap<string, Uint8Array>;
}

/** What the SSD tier is made of, beside the store it belongs to. */
export interface SsdOptions extends SsdSettings {
  readonly disk: BlockDisk;
  readonly index: BlockIndex;
  readonly namespaces: Namespaces;
  readonly capacityBytes: number;
  readonly writeQueueBytes: number;
  /** The longest a reader waits for SSD, whatever it asks for. */
  readonly readDeadlineMs: number;
  readonly incarnation: bigint;
  readonly health: HealthSink;
  readonly log: SsdParts["log"];
  /**
   * Called when its blocks are back and none of them may leave yet: what is held is held by then.
   */
  readonly beforeStart?: () => Promise<void>;
}

export type Relieve = (tier: "ram" | "ssd", why: string, level: ReliefLevel) => boolean;

export type TellLost = (node: NodeId, why: string) => void;

/** What status and metrics show of the store. */
export interface StoreSnapshot {
  readonly stats: Readonly<StoreStats>;
  readonly checks: Readonly<RamCheckStats>;
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
  /** Null without an SSD tier. */
  readonly ssd: (SsdSnapshot & { readonly stats: Readonly<SsdStats> }) | null;
}

/** The node's store: one table, one arena in RAM, and an SSD tier below it where there is one. */
export class TieredStore implements BlockStore, AsyncDisposable {
  readonly table: BlockTable;
  readonly slots: SlotAllocator;
  readonly region: Region;
  readonly queue: Queue;
  readonly ram: RamTier;
  readonly sessions: Sessions;
  /** Finds blocks that were damaged in RAM. */
  readonly checks: RamCheck = new RamCheck(this);
  readonly mirror: GpuMirror;
  readonly evictor: Evictor;
  readonly departures = new Departures(() => this.nowSeconds());
  /** What came to a tier and left it, for whoever tells others. */
  readonly residency: StoreResidency;
  readonly stats: StoreStats = emptyStats();
  readonly ssdStats: SsdStats = emptySsdStats();
  readonly namespaces: Namespaces;
  readonly macs: NamespaceMacs;
  readonly landings: Landings;
  readonly seen = new SeenBlocks();
  /** What is kept in RAM for engines that looked it up, and what they announced. */
  readonly engines: Engines;
  /** What pulling from other hosts and serving them need. */
  readonly peerBlocks: StorePeerBlocks;
  /** The longest a reader waits for SSD. */
  readDeadlineMs = 0;
  readonly arena: ArenaAccess;
  readonly blockBytesMax: number;
  /** Nodes of the batch at hand; holders fill and read it before they return. */
  readonly found = new Int32Array(BATCH_MAX);
  readonly #native: Native;
  readonly clock: Clock;
  readonly #startSeconds: number;
  readonly #startMs: number;
  readonly #parts: readonly ArenaPart[];
  #ssd: SsdTier | null = null;
  #peers: PeerTier | null = null;
  #relieve: Relieve = () => false;
  #lost: TellLost = () => undefined;

  constructor(options: TieredStoreOptions) {
    const { region, blocksMax, random, clock } = options;
    this.clock = clock;
    this.landings = new Landings(clock);
    this.namespaces = options.namespaces ?? new Namespaces();
    const { native, queue, macKeys = new Map() } = options;
    this.macs = new NamespaceMacs(native, queue, this.namespaces, macKeys);
    this.#startMs = clock.monotonicMs();
    this.#startSeconds = clock.wallMs() / 1_000;
    this.region = region;
    this.queue = options.queue;
    this.#native = options.native;
    this.blockBytesMax = blockBytesMax(region.bytes);
    let order: VictimOrder | null = null;
    this.table = createBlockTable({
      nodesMax: blocksMax,
      random,
      onProtection: (node, on) => (on ? order?.protect(node) : order?.unprotect(node)),
      onInRamAlone: (node) => this.#ssd?.owe(node),
      onResidency: (node, tier, on) => {
        this.residency.noted(node, tier, on);
        if (on) this.engines.came(node, tier);
      },
    });
    this.residency = new StoreResidency(this.table);
    order = createOrder(options.policy, this.table);
    const slotBytesMax = this.blockBytesMax;
    this.#parts = options.parts ?? [];
    const zoneEnds = this.#parts.map(({ offset, bytes }) => offset + bytes);
    this.slots = createSlotAllocator({
      arenaBytes: region.bytes,
      slotBytesMax,
      ...(zoneEnds.length > 1 ? { zoneEnds } : {}),
    });
    const { table, slots, stats, departures } = this;
    this.sessions = new Sessions(table, clock);
    this.ram = new RamTier({
      table,
      slots,
      stats,
      order,
      departures,
      nowSeconds: () => this.nowSeconds(),
      relieve: (why) => this.#relieveRam(why),
    });
    this.mirror = new GpuMirror(table, options.gpuWindowBlocks);
    this.evictor = new Evictor(
      { ram: this.ram, slots, stats, clock, sessions: this.sessions },
      options.marks,
    );
    this.peerBlocks = new StorePeerBlocks(this);
    this.engines = new Engines(
      this,
      options.claims ?? claimLimits(region.bytes),
      options.turns ?? loopTurns,
    );
    this.arena = { fd: region.fd, bytes: region.bytes, readyBytes: () => slots.readyBytes };
  }

  /**
   * Seconds since 1970 as the wall clock had it at the start, advancing with the monotonic clock:
   * a jump ages nothing.
   */
  nowSeconds(): number {
    const elapsed = (this.clock.monotonicMs() - this.#startMs) / 1_000;
    return Math.max(0, Math.floor(this.#startSeconds + elapsed));
  }

  /**
   * Called when nothing on a tier may go and room is needed there: ends a hold that keeps blocks on
   * it, soft pins or the others as `level` says; false where there is none.
   */
  setRelief(relieve: Relieve): void {
    this.#relieve = relieve;
  }

  /**
   * Called when the last copy of a block that is kept is gone and nobody asked for that: its file
   * was damaged, removed or unreadable.
   */
  setLost(lost: TellLost): void {
    this.#lost = lost;
  }

  tellLost(node: NodeId, why: string): void {
    this.#lost(node, why);
  }

  /** Other hosts, as a tier below SSD; null: none are asked. */
  get peers(): PeerTier | null {
    return this.#peers;
  }

  /** From now on requests that allow it ask there for what is not here. */
  setPeers(peers: PeerTier | null): void {
    this.#peers = peers;
    this.landings.remembers = peers !== null;
  }

  /** Soft pins first, then sessions, then what somebody was promised. */
  #relieveRam(why: string): boolean {
    // Holds on what SSD has, too, keep nothing in RAM.
    const mayHelp = () => this.table.keptInRamAloneBytes > 0;
    if (mayHelp() && this.#relieve("ram", why, "soft")) return true;
    return this.sessions.endOldest() || (mayHelp() && this.#relieve("ram", why, "hard"));
  }

  /** The tier below RAM; null without one. */
  get ssd(): SsdTier | null {
    return this.#ssd;
  }

  /**
   * Puts an SSD tier below RAM and brings back what it holds; before the first engine is served.
   * Throws SSD_UNAVAILABLE where its self-test fails.
   */
  async openSsd(options: SsdOptions): Promise<RecoveryReport> {
    const { table, ram, slots, region, departures } = this;
    const native = this.#native;
    const { clock } = this;
    const { disk, index, namespaces, incarnation, health, log } = options;
    const parts: SsdParts = {
      ...{ disk, index, native, table, region, namespaces, clock, incarnation, health, log },
      departures,
      macs: this.macs,
      schedule: new DiskSchedule(disk.depth, clock),
      files: new BlockFiles(table, namespaces),
      stats: this.ssdStats,
      nowSeconds: () => this.nowSeconds(),
      relieve: (why) => this.#relieve("ssd", why, "soft"),
      lost: (node, why) => this.tellLost(node, why),
      checks: this.checks,
    };
    const ssd = new SsdTier(parts, { ...options, native, slots, ram });
    this.readDeadlineMs = options.readDeadlineMs;
    this.#ssd = ssd;
    await ssd.mustWork();
    const report = await new Recovery(parts, ssd.room).run();
    this.#learnLengths();
    await options.beforeStart?.();
    ram.setBelow(ssd);
    ssd.start();
    return report;
  }

  /** Some of what an earlier run left says how long blocks are. */
  #learnLengths(): void {
    const { table, seen } = this;
    let node = table.nextOn(NO_NODE, Tier.ssd);
    for (let looked = 0; node !== NO_NODE && looked < LOOKED_AT_MAX; looked++) {
      seen.learn(table.namespaceOf(node), table.layerOf(node), table.bytesOf(node));
      node = table.nextOn(node, Tier.ssd);
    }
  }

  deriveKeys(batch: AddressBatch, withParents: boolean): void {
    const bytes = batch.count * 32;
    const { digests, parents, keyBytes, parentKeyBytes, layer } = batch;
    this.#native.blockKeys(digests.subarray(0, bytes), layer, keyBytes);
    if (withParents) this.#native.blockKeys(parents.subarray(0, bytes), layer, parentKeyBytes);
  }

  /** Where slots near this NUMA node lie: a zone of the allocator's. */
  zoneNear(node: number | null): number {
    return this.#parts.length > 1 ? this.#parts.findIndex((part) => part.node === node) : ANY_ZONE;
  }

  isStored(namespace: NamespaceIndex, keys: Uint32Array, i: number): boolean {
    const { table, ssd } = this;
    const node = table.find(keys, 8 * i);
    if (node === NO_NODE || table.namespaceOf(node) !== namespace) return false;
    if (table.isResident(node, Tier.ram)) return true;
    return ssd?.readable === true && table.isResident(node, Tier.ssd);
  }

  openHolder(options: HolderOptions): Holder {
    return new StoreHolder(this, options);
  }

  snapshot(): StoreSnapshot {
    const { table, slots } = this;
    return {
      stats: { ...this.stats },
      checks: structuredClone(this.checks.stats),
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
      ssd: this.#ssd === null ? null : { ...this.#ssd.snapshot(), stats: { ...this.ssdStats } },
    };
  }

  /** Table, slots, and that each says of the other what is true. For tests and the doctor. */
  verifyIntegrity(): void {
    const { table, slots } = this;
    table.verifyIntegrity();
    slots.verifyIntegrity();
    const blocks = table.residentBlocks(Tier.ram);
    assert(blocks <= slots.usedSlots, "each resident block has a slot");
    for (let node = table.nextOn(NO_NODE, Tier.ram); node !== NO_NODE; ) {
      const slot = table.slotOf(node);
      assert(slots.nodeOf(slot) === node, "a block's slot names the block");
      assert(slots.isCurrent(slot, table.slotGenerationOf(node)), "a block's slot is its own");
      node = table.nextOn(node, Tier.ram);
    }
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.evictor[Symbol.asyncDispose]();
    await this.#ssd?.close();
  }
}

/** What engines may have reserved of an arena: these shares of it, one engine and all of them. */
export function claimLimits(arenaBytes: number, share = 0.4, shareAll = 0.6): ClaimLimits {
  return {
    bytesMax: Math.floor(arenaBytes * share),
    bytesMaxAll: Math.floor(arenaBytes * shareAll),
  };
}

/** Blocks in one batch at most: what the configuration allows as `engine.items_max`. */
const BATCH_MAX = 65_536;
/** Blocks of an earlier run that are asked how long blocks are: a millisecond's worth. */
const LOOKED_AT_MAX = 4_096;

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
