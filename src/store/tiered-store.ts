import {
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
import { ANY_ZONE, BlockTable, SLOT_ALIGN, SlotAllocator, Tier } from "./blocks/index.ts";
import { Departures } from "./departures.ts";
import {
  type EngineSession,
  type EngineSessionOptions,
  StoreEngineSession,
} from "./engine-session.ts";
import type { ClaimLimits } from "./engines/claims.ts";
import { Engines } from "./engines/engines.ts";
import { IncomingBlocks } from "./exchange/incoming-blocks.ts";
import type { PeerTier } from "./exchange/peer-blocks.ts";
import { ArrivalStats, StorePeerBlocks } from "./exchange/store-peer-blocks.ts";
import { GpuMirror } from "./gpu-mirror.ts";
import type { BlockIndex } from "./index/index.ts";
import { NamespaceMacs, Namespaces } from "./namespaces.ts";
import { type PinEvictionLevel, Sessions } from "./pins/index.ts";
import { createOrder, type PolicyName, type VictimOrder } from "./policy/victim-order.ts";
import { RamCheck } from "./ram-check.ts";
import { Evictor, RamTier, StoreStats, type WaterMarks } from "./ram-tier.ts";
import { StoreResidency } from "./residency.ts";
import { BlockFiles } from "./ssd/block-files.ts";
import { IoSlots } from "./ssd/io-slots.ts";
import { Recovery, type RecoveryReport } from "./ssd/recovery.ts";
import { type HealthSink, type SsdParts, SsdStats } from "./ssd/ssd-parts.ts";
import { type SsdSettings, SsdTier } from "./ssd/ssd-tier.ts";

export interface TieredStoreOptions {
  readonly native: Native;
  readonly region: Region;
  readonly queue: Queue;
  readonly clock: Clock;
  readonly random: Random;
  /** Maximum number of block table entries, for all tiers together. */
  readonly blocksMax: number;
  /** Maximum number of GPU blocks recorded from engine reports, for all engines together. */
  readonly gpuWindowBlocks: number;
  readonly marks: WaterMarks;
  /** Parts of the arena by NUMA node. Default: one part, without a NUMA preference. */
  readonly parts?: readonly ArenaPart[];
  /** Name of the eviction order of the RAM tier. */
  readonly policy: PolicyName;
  /**
   * Limits of RAM reservations by engines. Default: the shares of the arena that `claimLimits`
   * sets.
   */
  readonly claims?: ClaimLimits;
  /** Limits how long lookups occupy the event loop. Default: `loopTurns`. */
  readonly turns?: TurnBudget;
  /** Namespaces known to this process. Required if blocks are fetched from peers. */
  readonly namespaces?: Namespaces;
  /** MAC keys of namespaces by identifier, 16 bytes each. Default: none. */
  readonly macKeys?: ReadonlyMap<string, Uint8Array>;
}

/** Parts and settings of the SSD tier, in addition to `SsdSettings`. */
export interface SsdOptions extends SsdSettings {
  readonly disk: BlockDisk;
  readonly index: BlockIndex;
  readonly namespaces: Namespaces;
  readonly capacityBytes: number;
  readonly writeQueueBytes: number;
  /** Maximum wait for a read from SSD, in milliseconds, even if the reader's deadline is later. */
  readonly readDeadlineMs: number;
  readonly incarnation: bigint;
  readonly health: HealthSink;
  readonly log: SsdParts["log"];
  /**
   * Restores pins and leases. Called after recovery; the SSD tier does not evict before the promise
   * resolves.
   */
  readonly beforeStart?: () => Promise<void>;
}

export type EvictPins = (tier: "ram" | "ssd", why: string, level: PinEvictionLevel) => boolean;

type ReportLost = (node: NodeId, why: string) => void;

/**
 * The agent's block store: one block table, one arena in RAM, and an optional SSD tier below it.
 */
export class TieredStore implements AsyncDisposable {
  readonly table: BlockTable;
  readonly slots: SlotAllocator;
  readonly region: Region;
  readonly queue: Queue;
  readonly ram: RamTier;
  readonly sessions: Sessions;
  /** Checks of blocks in RAM for damage. */
  readonly checks: RamCheck = new RamCheck(this);
  readonly mirror: GpuMirror;
  readonly evictor: Evictor;
  readonly departures = new Departures(() => this.nowSeconds());
  /** Residency changes on all tiers, for publishers. */
  readonly residency: StoreResidency;
  readonly stats = new StoreStats();
  readonly ssdStats = new SsdStats();
  readonly namespaces: Namespaces;
  readonly macs: NamespaceMacs;
  readonly incoming: IncomingBlocks;
  readonly arrivals = new ArrivalStats();
  /** Engines of this host, with their RAM reservations and announcements of blocks. */
  readonly engines: Engines;
  /** Access to blocks for fetching from peers and for sending to them. */
  readonly peerBlocks: StorePeerBlocks;
  /** Maximum wait for a read from SSD, in milliseconds; 0 without an SSD tier. */
  readDeadlineMs = 0;
  readonly arena: ArenaAccess;
  /** Maximum block size in bytes. */
  readonly blockBytesMax: number;
  /**
   * Scratch space: table nodes of the batch being processed. Sessions fill and read it within one
   * synchronous call.
   */
  readonly found = new Int32Array(BATCH_MAX);
  readonly #native: Native;
  readonly clock: Clock;
  readonly #startSeconds: number;
  readonly #startMs: number;
  readonly #parts: readonly ArenaPart[];
  #ssd: SsdTier | null = null;
  #peers: PeerTier | null = null;
  #evictPins: EvictPins = () => false;
  #lost: ReportLost = () => undefined;

  constructor(options: TieredStoreOptions) {
    const { region, blocksMax, random, clock } = options;
    this.clock = clock;
    this.incoming = new IncomingBlocks(clock);
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
    this.table = new BlockTable({
      nodesMax: blocksMax,
      random,
      onProtection: (node, on) => (on ? order?.protect(node) : order?.unprotect(node)),
      onInRamAlone: (node) => this.#ssd?.addPending(node),
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
    this.slots = new SlotAllocator({
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
      evictPins: (why) => this.#evictPinsOfRam(why),
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
   * Unix time in seconds: the wall clock at the start of the process plus the monotonic time since.
   * A jump of the wall clock therefore does not change the age of blocks.
   */
  nowSeconds(): number {
    const elapsed = (this.clock.monotonicMs() - this.#startMs) / 1_000;
    return Math.max(0, Math.floor(this.#startSeconds + elapsed));
  }

  /**
   * Sets the callback that ends one pin or lease. The store calls it if a tier needs room and every
   * block on the tier is protected. `level` selects soft pins (`soft`) or pins and leases (`hard`).
   * The callback returns false if there is none to end.
   */
  setPinEviction(evictPins: EvictPins): void {
    this.#evictPins = evictPins;
  }

  /**
   * Sets the callback that reports the loss of a pinned or leased block: its last copy was damaged,
   * unreadable, or removed without a command.
   */
  setLossReport(lost: ReportLost): void {
    this.#lost = lost;
  }

  reportLost(node: NodeId, why: string): void {
    this.#lost(node, why);
  }

  /** The tier of peers below SSD; null if this agent does not fetch from peers. */
  get peers(): PeerTier | null {
    return this.#peers;
  }

  /** Sets the peer tier. Later requests that allow it fetch absent blocks from peers. */
  setPeers(peers: PeerTier | null): void {
    this.#peers = peers;
    this.incoming.remembers = peers !== null;
  }

  /**
   * Ends one soft pin; if there is none, one session; if there is none, one pin or lease. Returns
   * false if nothing could be ended.
   */
  #evictPinsOfRam(why: string): boolean {
    // Ending a pin frees room only if it protects a block that is in RAM and not on SSD: a pinned
    // block that is also on SSD may leave RAM.
    const mayHelp = () => this.table.keptInRamAloneBytes > 0;
    if (mayHelp() && this.#evictPins("ram", why, "soft")) return true;
    return this.sessions.endOldest() || (mayHelp() && this.#evictPins("ram", why, "hard"));
  }

  /** The SSD tier below RAM; null if SSD is not configured. */
  get ssd(): SsdTier | null {
    return this.#ssd;
  }

  /**
   * Opens the SSD tier and recovers its blocks. Call before the first engine connects. Throws
   * SSD_UNAVAILABLE if the self-test fails.
   */
  async openSsd(options: SsdOptions): Promise<RecoveryReport> {
    const { table, ram, slots, region, departures } = this;
    const native = this.#native;
    const { clock } = this;
    const { disk, index, namespaces, incarnation, health, log } = options;
    const parts: SsdParts = {
      disk,
      index,
      native,
      table,
      region,
      namespaces,
      clock,
      incarnation,
      health,
      log,
      departures,
      macs: this.macs,
      ioSlots: new IoSlots(disk.depth, clock),
      files: new BlockFiles(table, namespaces),
      stats: this.ssdStats,
      nowSeconds: () => this.nowSeconds(),
      evictPins: (why) => this.#evictPins("ssd", why, "soft"),
      lost: (node, why) => this.reportLost(node, why),
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

  /** Adds the sizes of a sample of the recovered blocks to the block size statistics. */
  #learnLengths(): void {
    const { table, arrivals } = this;
    let node = table.nextOn(NO_NODE, Tier.ssd);
    for (let looked = 0; node !== NO_NODE && looked < LOOKED_AT_MAX; looked++) {
      arrivals.learn(table.namespaceOf(node), table.layerOf(node), table.bytesOf(node));
      node = table.nextOn(node, Tier.ssd);
    }
  }

  /** Computes `keys` from `digests` and `layer`. With `withParents`, also computes `parentKeys`. */
  deriveKeys(batch: AddressBatch, withParents: boolean): void {
    const bytes = batch.count * 32;
    const { digests, parents, keyBytes, parentKeyBytes, layer } = batch;
    this.#native.blockKeys(digests.subarray(0, bytes), layer, keyBytes);
    if (withParents) this.#native.blockKeys(parents.subarray(0, bytes), layer, parentKeyBytes);
  }

  /** Returns the allocator zone near this NUMA node; `ANY_ZONE` if the arena has a single part. */
  zoneNear(node: number | null): number {
    return this.#parts.length > 1 ? this.#parts.findIndex((part) => part.node === node) : ANY_ZONE;
  }

  /** Returns whether RAM or SSD has block `i` of `keys` in this namespace. */
  isStored(namespace: NamespaceIndex, keys: Uint32Array, i: number): boolean {
    const { table, ssd } = this;
    const node = table.find(keys, 8 * i);
    if (node === NO_NODE || table.namespaceOf(node) !== namespace) return false;
    if (table.isResident(node, Tier.ram)) return true;
    return ssd?.readable === true && table.isResident(node, Tier.ssd);
  }

  /**
   * Opens a session for one engine connection. Only this session can release the slots that it
   * references.
   */
  openEngineSession(options: EngineSessionOptions): EngineSession {
    return new StoreEngineSession(this, options);
  }

  /** Returns the store's figures for status and metrics. */
  snapshot() {
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
      /** Null if SSD is not configured. */
      ssd: this.#ssd === null ? null : { ...this.#ssd.snapshot(), stats: { ...this.ssdStats } },
    };
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.evictor[Symbol.asyncDispose]();
    await this.#ssd?.close();
  }
}

/** Shared memory that contains the RAM tier. */
export interface ArenaAccess {
  readonly fd: number;
  readonly bytes: number;
  /**
   * Returns the bytes that are backed by memory and usable for blocks. The value grows up to
   * `bytes`.
   */
  readyBytes(): number;
}

/** The part of the store that the engine server uses. */
export type BlockStore = Pick<
  TieredStore,
  "arena" | "blockBytesMax" | "deriveKeys" | "isStored" | "openEngineSession"
>;

export type StoreSnapshot = ReturnType<TieredStore["snapshot"]>;

/**
 * Returns the limits on RAM reservations. `share`: share of the arena for one engine, 0 to 1.
 * `shareAll`: for all engines together.
 */
function claimLimits(arenaBytes: number, share = 0.4, shareAll = 0.6): ClaimLimits {
  return {
    bytesMax: Math.floor(arenaBytes * share),
    bytesMaxAll: Math.floor(arenaBytes * shareAll),
  };
}

/** Maximum number of blocks in a batch: the limit of the engine protocol. */
const BATCH_MAX = 65_536;
/** Number of recovered blocks whose sizes are sampled: about a millisecond of work. */
const LOOKED_AT_MAX = 4_096;

/** Maximum block size in bytes that fits the u32 of the engine protocol and the block table. */
const U32_BLOCK_BYTES = 0xffff_f000;
/** Block size, in bytes, that every arena with enough room accepts: 512 tokens of an 8B model. */
const USUAL_BLOCK_BYTES = 64 * 2 ** 20;
const SHARE_OF_ARENA = 1 / 64;

/**
 * Returns the maximum block size for an arena, in bytes. The result is also the extent size, and an
 * extent changes its slot size as a whole. It is 1/64 of the arena, but at least 64 MiB, so an
 * arena has at most about 64 extents.
 */
function blockBytesMax(arenaBytes: number): number {
  const share = Math.floor((arenaBytes * SHARE_OF_ARENA) / SLOT_ALIGN) * SLOT_ALIGN;
  return Math.min(arenaBytes, U32_BLOCK_BYTES, Math.max(USUAL_BLOCK_BYTES, share));
}
