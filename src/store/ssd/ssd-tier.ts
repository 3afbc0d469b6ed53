import { NO_NODE, type NodeId } from "../../core/index.ts";
import { crashPoint, type Native, Region } from "../../native/index.ts";
import { NodeFlag, type SlotAllocator, Tier } from "../blocks/index.ts";
import type { RamTier } from "../ram-tier.ts";
import {
  PROBE_BYTES,
  PROBE_FILE_BYTES,
  type ProbeResult,
  probeDisk,
  unusable,
} from "./block-files.ts";
import { BlockReader, type LoadOptions, type ReadOutcome, SsdScrub } from "./block-reader.ts";
import { BlockWriter, putAliases } from "./block-writer.ts";
import { Copies, type PersistReport } from "./copies.ts";
import { CircuitBreaker, HangDetector, ReadCircuitBreaker, SsdHealth } from "./ssd-health.ts";
import type { SsdParts } from "./ssd-parts.ts";
import { SsdRoom } from "./ssd-room.ts";

const WRITE_POLICIES = ["write_through", "write_through_selective", "write_back"] as const;
type WritePolicy = (typeof WRITE_POLICIES)[number];

/** Settings of the SSD tier that can change at run time. */
export interface SsdSettings {
  /**
   * Milliseconds without use after which a block is dropped. Null: blocks stay until their space is
   * needed.
   */
  readonly ttlMs: number | null;
  readonly writePolicy: WritePolicy;
  /** Average rate of the scrub in bytes per second; 0 disables it. */
  readonly scrubBytesPerS: number;
}

interface SsdTierOptions extends SsdSettings {
  readonly native: Native;
  readonly slots: SlotAllocator;
  readonly ram: RamTier;
  readonly capacityBytes: number;
  readonly writeQueueBytes: number;
}

/** Milliseconds between runs of the tier's maintenance. */
const TICK_MS = 250;
/** Resolution, in seconds, with which the index records the last use of a block. */
const SEEN_S = 300;
/** Maximum number of blocks examined to find one that is only on SSD. */
const ENTRIES_LOOKED_AT = 64;
const STOP_MS = 5_000;
/** Maximum milliseconds that a shutdown waits for the removal of spare files. */
const SPARES_MS = 2_000;

/**
 * The SSD tier: blocks in files. The block table records which blocks are on SSD; this class
 * decides which blocks are written, read, dropped and retried. No operation blocks the event loop.
 * Disk faults are not thrown: a read becomes a miss, and a write is skipped.
 */
export class SsdTier implements AsyncDisposable {
  readonly room: SsdRoom;
  readonly writer: BlockWriter;
  readonly reader: BlockReader;
  readonly #parts: SsdParts;
  readonly #copies: Copies;
  readonly #scrub: SsdScrub;
  readonly #scratch: Region;
  readonly #writes: CircuitBreaker;
  readonly #breaker: ReadCircuitBreaker;
  readonly #health: SsdHealth;
  readonly #ram: RamTier;
  readonly #hang: HangDetector;
  #settings: SsdSettings;
  #timer: Disposable | null = null;
  #probing: Promise<void> | null = null;

  constructor(parts: SsdParts, options: SsdTierOptions) {
    const { clock } = parts;
    const { slots, ram, native } = options;
    this.#parts = parts;
    this.#settings = options;
    this.#ram = ram;
    this.#writes = new CircuitBreaker(clock);
    this.#breaker = new ReadCircuitBreaker(clock);
    this.#hang = new HangDetector(parts, () => this.#onHang());
    this.#health = new SsdHealth(parts.health, clock);
    this.room = new SsdRoom(parts, options.capacityBytes);
    this.writer = new BlockWriter(parts, this.room, this.#writes, options.writeQueueBytes, {
      slots,
      leaveRam: (node) => this.#leaveRam(node),
    });
    const corrupt = (path: string, why: string) => {
      this.#health.corrupt(path, why);
      parts.log("error", "damaged block on SSD", { path, why });
    };
    this.reader = new BlockReader(native, parts, this.room, this.#breaker, slots, ram, corrupt);
    this.#copies = new Copies(parts, {
      writer: this.writer,
      hang: this.#hang,
      takesBlocks: () => this.takesBlocks,
      write: (node) => this.#write(node, false),
    });
    this.#scrub = new SsdScrub(parts, this.reader, native);
    const scratch = { bytes: PROBE_BYTES, hugePages: "off", lockMemory: "off" } as const;
    this.#scratch = Region.create(native, scratch);
  }

  /** Writes, reads and verifies a small probe block, to find out whether the folder can be used. */
  async selfTest(): Promise<ProbeResult> {
    const { disk, incarnation } = this.#parts;
    const result = await probeDisk(disk, this.#scratch, incarnation);
    // If a file of three pages occupies more than that, the difference is the allocation unit or
    // twice it.
    if (result.ok && result.allocatedBytes > PROBE_FILE_BYTES) {
      this.room.setAllocationUnit(result.allocatedBytes);
    }
    return result;
  }

  /** Runs the self-test. Throws SSD_UNAVAILABLE if it fails; otherwise logs the results. */
  async mustWork(): Promise<void> {
    const { disk, clock, log } = this.#parts;
    const startMs = clock.monotonicMs();
    const result = await this.selfTest();
    if (!result.ok) throw unusable(result);
    const ms = Number((clock.monotonicMs() - startMs).toFixed(1));
    const { method, methodReason, direct, registered } = disk;
    log("info", "SSD self-test passed", { method, direct, registered, ms, why: methodReason });
  }

  start(): void {
    this.#timer = this.#parts.clock.every(TICK_MS, () => this.#tick());
    this.#scrub.setRate(this.#settings.scrubBytesPerS);
  }

  configure(settings: SsdSettings): void {
    this.#settings = settings;
    this.#scrub.setRate(settings.scrubBytesPerS);
  }

  /**
   * Reports that a block was just committed to RAM. Writes it to SSD if the write policy or a pin
   * demands it.
   */
  committed(node: NodeId): void {
    const isWanted = this.#settings.writePolicy === "write_through";
    if (isWanted || this.#parts.table.isKept(node)) this.#write(node, false);
  }

  /** Reports a use of the block at `now`; its previous use was at `before`. Both in seconds. */
  used(node: NodeId, before: number, now: number): void {
    const { table, index } = this.#parts;
    this.writer.keepInRam(node);
    if (table.isResident(node, Tier.ssd)) {
      // Update the index row at most once per SEEN_S seconds.
      if (Math.floor(now / SEEN_S) === Math.floor(before / SEEN_S)) return;
      index.touch(table.digestOf(node), table.layerOf(node), now, table.usesOf(node));
    } else if (this.#settings.writePolicy !== "write_back" && this.#wantsCopy(node)) {
      // The block is in RAM already: do not drop blocks from SSD on every hit to make room for its
      // copy.
      const { usedBytes, capacityBytes } = this.room;
      const bytes = this.room.allocatedOf(table.bytesOf(node));
      const isFirstCopy = this.#settings.writePolicy === "write_through_selective";
      if (isFirstCopy || usedBytes + bytes <= capacityBytes) this.#write(node, false);
    }
  }

  /**
   * Reports that the block got another alias. Writes the alias to the index if the block is on SSD.
   */
  aliased(node: NodeId): void {
    if (this.#parts.table.isResident(node, Tier.ssd)) putAliases(this.#parts, node);
  }

  /**
   * Decides whether RAM may drop a block. `go`: yes; SSD has the block or does not want it. `sent`:
   * not yet; the block is being copied to SSD and is locked until the copy ends. `busy`: not now;
   * SSD wants the block but cannot take it yet.
   */
  leaving(node: NodeId): "go" | "sent" | "busy" {
    const { table } = this.#parts;
    if (table.isResident(node, Tier.ssd) || !this.#wantsCopy(node)) return "go";
    if (this.#write(node, true)) return "sent";
    return this.takesBlocks && this.writer.queuedBlocks > 0 ? "busy" : "go";
  }

  /** Bytes of blocks that are dropped from RAM as soon as their copy to SSD is complete. */
  get leavingBytes(): number {
    return this.writer.leavingBytes;
  }

  /**
   * Starts to copy blocks that may not leave RAM before SSD has them. Called when RAM has no room
   * and nothing to evict. Returns whether copies are in progress, so that RAM will have room.
   */
  catchUp(): boolean {
    this.#copies.queueSomePending();
    return !this.#hang.hung && this.writer.queuedBlocks > 0;
  }

  /** True if blocks are written to SSD at present. */
  get takesBlocks(): boolean {
    return !this.#hang.hung && this.#writes.why === null;
  }

  /**
   * Returns whether a block that leaves RAM should be on SSD, because of the write policy or a pin
   * or lease.
   */
  #wantsCopy(node: NodeId): boolean {
    const { table } = this.#parts;
    if (table.hasFlag(node, NodeFlag.transient)) return false;
    const isSelective = this.#settings.writePolicy === "write_through_selective";
    return !isSelective || table.isKept(node) || table.usesOf(node) >= 2;
  }

  #write(node: NodeId, leaves: boolean): boolean {
    const { table } = this.#parts;
    if (this.#hang.hung || table.hasFlag(node, NodeFlag.transient)) return false;
    if (table.isResident(node, Tier.ssd)) return false;
    return this.writer.take(node, leaves);
  }

  #leaveRam(node: NodeId): void {
    const { table } = this.#parts;
    const canGo = table.isResident(node, Tier.ram) && !table.isProtected(node, Tier.ram);
    if (canGo && table.isLeafOn(node, Tier.ram)) this.#ram.drop(node);
  }

  /** True if blocks on SSD can be read at present. */
  get readable(): boolean {
    return !this.#hang.hung && this.#breaker.gate.mayTry;
  }

  /** Reads a block into RAM; see `BlockReader.load`. Resolves to `miss` if the disk hangs. */
  load(node: NodeId, options?: LoadOptions): Promise<ReadOutcome> {
    return this.#hang.hung ? Promise.resolve("miss") : this.reader.load(node, options);
  }

  /** Reports that a reader's deadline passed before its block was read. */
  wasLate(): void {
    this.#parts.stats.lateBlocks++;
    this.#health.late();
  }

  /**
   * Drops the oldest block that is only on SSD, to free its table entry. Returns false if none of
   * the oldest blocks is only on SSD.
   */
  dropOldest(): boolean {
    const { table, stats } = this.#parts;
    let node = table.oldest(Tier.ssd);
    for (let looks = 0; node !== NO_NODE && looks < ENTRIES_LOOKED_AT; looks++) {
      if (table.residencyOf(node) === Tier.ssd && table.firstChildOf(node) === NO_NODE) {
        stats.evictedBlocks++;
        stats.evictedBytes += table.bytesOf(node);
        void this.room.drop(node);
        return true;
      }
      node = table.newerThan(node, Tier.ssd);
    }
    return false;
  }

  /** Drops the block from SSD because its bytes in RAM differ from those on SSD. */
  replaced(node: NodeId): void {
    if (!this.#parts.table.isResident(node, Tier.ssd)) return;
    void this.room.drop(node, { reason: "replaced", by: null });
  }

  #tick(): void {
    const { ttlMs } = this.#settings;
    this.#hang.look();
    if (!this.#hang.hung) {
      if (ttlMs !== null) this.room.expire(ttlMs / 1_000);
      this.room.trim();
      // Without writes, spare files are useless: free their space.
      if (this.writer.queuedBlocks === 0) this.room.discardSpares();
      this.#copies.queuePending();
      // Start no other trial while one is running, even if a write succeeds and fails meanwhile.
      if (this.#probing === null && this.#writes.takeTrial()) {
        this.#probing = this.#probe().finally(() => {
          this.#probing = null;
        });
      }
      if (this.#writes.why === null) this.room.removals.retry();
    }
    const { why: writesStopped, disabledBy: replaced } = this.#writes;
    const readsStopped = this.#breaker.gate.why;
    this.#health.update({ hung: this.#hang.hung, writesStopped, readsStopped, replaced });
  }

  /**
   * Suspends all disk operations while the path leads to another folder. `why`: the reason; null
   * resumes.
   */
  setReplaced(why: string | null): void {
    this.#writes.disable(why);
  }

  #onHang(): void {
    // Cancel the waiting operations, so that readers get a miss and slots in RAM are released.
    const { ioSlots } = this.#parts;
    for (const work of ["read", "write", "sync", "warm", "scrub"] as const) ioSlots.giveUp(work);
    this.writer.giveUpWaiting();
  }

  /**
   * Returns the result of `work`, or null if the disk hangs before `work` ends. `work` continues.
   */
  orHung<T>(work: Promise<T>): Promise<T | null> {
    return this.#hang.orHung(work);
  }

  async #probe(): Promise<void> {
    const { disk, incarnation, ioSlots, log } = this.#parts;
    const result = await ioSlots.run("write", () => probeDisk(disk, this.#scratch, incarnation));
    if (result?.ok) {
      this.#writes.reset();
      log("info", "writes to SSD resumed", {});
      return;
    }
    const status = result?.status ?? "try_again";
    this.#writes.trip(status === "damaged" ? "io_error" : status);
  }

  /**
   * Writes all blocks in RAM to SSD, except transient ones, and makes them durable. Waits for
   * blocks queued before the call, but not for later ones or for a hung disk.
   */
  async persist(): Promise<PersistReport> {
    const { stats } = this.#parts;
    const before = stats.writtenBlocks;
    const skipped = await this.#copies.persist();
    await this.orHung(this.room.removalsOver());
    crashPoint("persist.written");
    const durable = await this.makeDurable();
    crashPoint("persist.before-answer");
    return { written: stats.writtenBlocks - before, skipped, durable };
  }

  /**
   * Writes these blocks and their pinned ancestors to SSD; see `Copies.secure`. Call `makeDurable`
   * afterwards so that they survive a power loss.
   */
  secure(nodes: readonly NodeId[], signal?: AbortSignal): Promise<boolean[]> {
    return this.#copies.secure(nodes, signal);
  }

  /**
   * Reports that a pinned or leased block is in RAM only. It is copied to SSD as soon as possible.
   */
  addPending(node: NodeId): void {
    this.#copies.addPending(node);
  }

  /**
   * Waits until all writes and removals so far survive a power loss. Returns false if that is not
   * certain or the disk hangs.
   */
  async makeDurable(): Promise<boolean> {
    const { disk, index, ioSlots } = this.#parts;
    const { removals } = this.room;
    const { fresh } = this.writer;
    const { done } = removals;
    const { came } = fresh;
    const synced = await this.orHung(ioSlots.run("sync", () => disk.sync()));
    crashPoint("durable.synced");
    const isFlushed = (await this.orHung(index.flush({ durable: true }))) === true;
    const isDurable = isFlushed && synced?.ok === true && this.#writes.disabledBy === null;
    if (isDurable) removals.noteDurable(done);
    if (isDurable) fresh.noteSafe(came);
    return isDurable;
  }

  /** Returns the state of the tier for status and metrics, except its counters. */
  snapshot() {
    const { table, disk } = this.#parts;
    const { method, direct, registered } = disk;
    return {
      blocks: table.residentBlocks(Tier.ssd),
      bytes: table.residentBytes(Tier.ssd),
      usedBytes: this.room.usedBytes,
      capacityBytes: this.room.capacityBytes,
      queuedBlocks: this.writer.queuedBlocks,
      queuedBytes: this.writer.queuedBytes,
      reading: this.reader.reading,
      quarantinedFiles: this.room.quarantinedFiles,
      method,
      direct,
      registered,
      /** Reasons why writes, and reads, are suspended; null if they are not. */
      writesStopped: this.#hang.hung ? "hung" : this.#writes.why,
      readsStopped: this.#hang.hung ? "hung" : this.#breaker.gate.why,
    };
  }

  /**
   * Ends all operations, as far as the disk allows. Returns false if the kernel may still access
   * memory of the agent.
   */
  async close(): Promise<boolean> {
    this.#timer?.[Symbol.dispose]();
    const { ioSlots, disk } = this.#parts;
    for (const work of ["read", "sync", "warm", "scrub"] as const) ioSlots.giveUp(work);
    await this.#scrub.stop(STOP_MS);
    this.writer.giveUpWaiting();
    if (this.room.hasSpares && !this.#hang.hung) await this.#discardSpares();
    const closed = await disk.close(STOP_MS);
    this.#hang.giveUpWaits();
    if (closed) {
      await this.#probing;
      this.#scratch[Symbol.dispose]();
    }
    return closed;
  }

  /** Removes the spare files, so that a clean shutdown leaves none. Waits at most SPARES_MS. */
  async #discardSpares(): Promise<void> {
    const late = Promise.withResolvers<void>();
    using _timer = this.#parts.clock.after(SPARES_MS, () => late.resolve());
    const gone = this.writer
      .settled()
      .then(() => this.room.discardSpares())
      .then(() => this.room.removals.settled());
    await Promise.race([gone, late.promise]);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.close();
  }
}

export type SsdSnapshot = ReturnType<SsdTier["snapshot"]>;
