import { NO_NODE, type NodeId } from "../../core/index.ts";
import { crashPoint } from "../../native/index.ts";
import { Tier } from "../blocks/index.ts";
import { type Cause, type DepartureReason, EVICTED } from "../departures.ts";
import { fileBytesOf, quarantinePath } from "../kvb/index.ts";
import type { SsdParts } from "./ssd-parts.ts";

/** Blocks dropped before the loop yields. */
const DROPS_A_SLICE = 256;
/** Damaged files kept for inspection. Further ones are removed. */
const QUARANTINED_MAX = 64;
/** Maximum number of file removals under way before no more blocks are dropped. */
const REMOVALS_MAX = 65_536;
/** Soft pins ended for one block. Several may protect the same blocks. */
const PIN_EVICTIONS_MAX = 16;

/** Reasons of departures that count as a loss of the block. */
const LOSSES: Partial<Record<DepartureReason, string>> = {
  quarantined: "file on SSD damaged",
  lost: "file on SSD missing or unreadable",
};

/**
 * `ok`: room is reserved; `spare` is a file of the right length to overwrite. `later`: removals or
 * writes under way will free room. `never`: the capacity is too small, every block is protected, or
 * files cannot be removed.
 */
export type Reservation =
  | { readonly kind: "ok"; readonly spare: string | null }
  | { readonly kind: "later" | "never" };

/**
 * Disk space of the tier, in bytes allocated by the file system, under a hard limit: block files,
 * files being written, spare files and files not yet removed count together. The oldest blocks are
 * dropped for room, and blocks that were unused for the configured time.
 */
export class SsdRoom {
  readonly #parts: SsdParts;
  #capacityBytes: number;
  #unitBytes = 4096;
  #residentBytes = 0;
  #writingBytes = 0;
  #quarantinedBytes = 0;
  #quarantinedFiles = 0;
  #watched: NodeId = NO_NODE;
  readonly #spares = new SpareFiles();
  readonly removals: Removals;
  /** Whether the warning was logged that nothing can be dropped. */
  #isStuck = false;

  constructor(parts: SsdParts, capacityBytes: number) {
    this.#parts = parts;
    this.removals = new Removals(parts);
    this.#capacityBytes = capacityBytes;
  }

  get capacityBytes(): number {
    return this.#capacityBytes;
  }

  /** Bytes that count against the capacity. */
  get usedBytes(): number {
    const files = this.#residentBytes + this.#writingBytes + this.#spares.bytes;
    const { bytes, failedBytes } = this.removals;
    return files + bytes + failedBytes + this.#quarantinedBytes;
  }

  /** Bytes in use after the removals under way have ended, including spare files. */
  get #usedSoonBytes(): number {
    return this.usedBytes - this.removals.bytes;
  }

  /** Sets the allocation unit of the file system, which the self-test determines. */
  setAllocationUnit(bytes: number): void {
    this.#unitBytes = bytes;
  }

  allocatedOf(payloadBytes: number): number {
    return Math.ceil(fileBytesOf(payloadBytes) / this.#unitBytes) * this.#unitBytes;
  }

  /**
   * Reserves room for a file. `ahead`: number of files, presumably of the same length, that wait
   * for room including this one. Room for them is freed in advance.
   */
  reserve(payloadBytes: number, ahead = 1): Reservation {
    const bytes = this.allocatedOf(payloadBytes);
    if (bytes > this.#capacityBytes) return { kind: "never" };
    if (this.usedBytes > this.#capacityBytes) this.discardSpares();
    const fileBytes = fileBytesOf(payloadBytes);
    const spare = this.#spares.take(fileBytes)?.path ?? null;
    if (spare === null && this.usedBytes + bytes > this.#capacityBytes) {
      return { kind: this.#makeRoom(fileBytes, bytes, ahead) };
    }
    this.#writingBytes += bytes;
    return { kind: "ok", spare };
  }

  /**
   * Drops a slice of blocks. Their room becomes free when their files are removed; the caller then
   * tries again.
   */
  #makeRoom(fileBytes: number, bytes: number, ahead: number): "later" | "never" {
    const { removals } = this;
    const soon = () => {
      const spareBytes = this.#spares.countOf(fileBytes) * bytes;
      return this.#capacityBytes - this.#usedSoonBytes + spareBytes;
    };
    for (let drops = 0; soon() < bytes * ahead; drops++) {
      if (drops === DROPS_A_SLICE) return "later";
      // While files cannot be removed, dropping more blocks frees no room.
      if (removals.haveFailed || removals.underWay >= REMOVALS_MAX) break;
      if (this.#discardOther(fileBytes) || this.dropOldest(fileBytes)) continue;
      // End soft pins only if the room for this one block requires it.
      if (this.#isMoving || soon() >= bytes || !this.#evictPins(bytes)) break;
    }
    if (soon() >= bytes) return "later";
    if (removals.haveFailed) return removals.underWay > 0 ? "later" : "never";
    return this.#isMoving || removals.underWay >= REMOVALS_MAX ? "later" : "never";
  }

  /** Whether operations under way may free room or make blocks evictable. */
  get #isMoving(): boolean {
    return this.#writingBytes > 0 || this.#spares.areComing;
  }

  /**
   * Called when every block is protected. Ends soft pins until a block is evictable; false if none
   * becomes so. Pins and leases are not ended: blocks that they protect elsewhere stay in RAM, and
   * other blocks need not be on SSD.
   */
  #evictPins(bytes: number): boolean {
    const { table, evictPins, log } = this.#parts;
    const blocks = table.residentBlocks(Tier.ssd);
    const why =
      `all ${blocks} blocks on SSD are protected, ` +
      `${this.usedBytes} of ${this.#capacityBytes} bytes ` +
      `are in use, ${bytes} more are needed`;
    const isKept = () => table.keptBytes > table.keptInRamAloneBytes;
    for (
      let pinEvictions = 0;
      pinEvictions < PIN_EVICTIONS_MAX && isKept() && evictPins(why);
      pinEvictions++
    ) {
      if (table.oldest(Tier.ssd) !== NO_NODE) return true;
    }
    if (!this.#isStuck) log("warn", "no block on SSD can be evicted for new blocks", { why });
    this.#isStuck = true;
    return false;
  }

  /**
   * False if `reserve` would answer `never`. Like `reserve`, it may end soft pins but changes
   * nothing else.
   */
  mayReserve(payloadBytes: number): boolean {
    const { removals } = this;
    const bytes = this.allocatedOf(payloadBytes);
    if (bytes > this.#capacityBytes) return false;
    if (this.#usedSoonBytes - this.#spares.bytes + bytes <= this.#capacityBytes) return true;
    if (removals.underWay > 0) return true;
    if (removals.haveFailed) return false;
    if (this.#writingBytes > 0 || this.#parts.table.oldest(Tier.ssd) !== NO_NODE) return true;
    return this.#evictPins(bytes);
  }

  /**
   * Drops the least recently used block; false if all are protected. Its file becomes a spare file
   * if its length is `fileBytes`.
   */
  dropOldest(fileBytes = 0): boolean {
    const { table, stats } = this.#parts;
    const victim = table.oldest(Tier.ssd);
    if (victim === NO_NODE) return false;
    this.#isStuck = false;
    stats.evictedBlocks++;
    stats.evictedBytes += table.bytesOf(victim);
    if (fileBytesOf(table.bytesOf(victim)) === fileBytes) void this.#recycle(victim);
    else void this.drop(victim);
    return true;
  }

  /** Call when the write for which room was reserved has succeeded or failed. */
  written(payloadBytes: number, stored: boolean): void {
    const bytes = this.allocatedOf(payloadBytes);
    this.#writingBytes -= bytes;
    if (stored) this.#residentBytes += bytes;
  }

  /** Adds a file found at startup. */
  found(payloadBytes: number): void {
    this.#residentBytes += this.allocatedOf(payloadBytes);
  }

  /**
   * Resolves when the current removals have ended. Includes spare files, since they may contain
   * bytes of blocks that a command removed.
   */
  async removalsOver(): Promise<void> {
    await this.removals.over();
    if (this.discardSpares()) await this.removals.over();
  }

  /** Starts to watch one block: `hasLeft` then returns whether it has left SSD since. */
  watch(node: NodeId): void {
    this.#watched = node;
  }

  get hasLeft(): boolean {
    return this.#watched === NO_NODE;
  }

  /**
   * Removes a block from the tier: from the table immediately, then its file and row. Resolves with
   * true when the file is removed, or false if that failed; the removal is then retried later. May
   * remove the node.
   */
  drop(node: NodeId, cause: Cause = EVICTED): Promise<boolean> {
    const { path, bytes, forget } = this.#take(node, cause);
    return this.removals.remove(path, bytes, forget);
  }

  /**
   * As `drop`, but keeps the file as a spare. Its name is removed, which is what recovery looks at.
   */
  #recycle(node: NodeId): Promise<boolean> {
    const { table, disk, ioSlots } = this.#parts;
    const fileBytes = fileBytesOf(table.bytesOf(node));
    const { path, bytes, forget } = this.#take(node, EVICTED);
    const spare = this.#spares.nameFor(path);
    this.#spares.expect(fileBytes, bytes);
    // From now on its bytes count as those of a spare file.
    return this.removals.track(path, 0, async () => {
      const moved = await ioSlots.run("remove", () => disk.rename(path, spare));
      const isThere = moved?.ok === true;
      this.#spares.came(fileBytes, bytes, isThere ? spare : null);
      if (isThere) {
        this.removals.gone(forget);
        return true;
      }
      // The rename may have created the new name without removing the old one: remove both.
      void this.removals.remove(spare, 0, () => undefined);
      return this.removals.remove(path, bytes, forget);
    });
  }

  /** Removes a spare file that was reserved but not used. */
  async discardSpare(path: string, payloadBytes: number): Promise<void> {
    await this.removals.remove(path, this.allocatedOf(payloadBytes), () => undefined);
  }

  /** Removes all spare files; false if there are none. */
  discardSpares(): boolean {
    let isAny = false;
    while (this.#discardOther(0)) isAny = true;
    return isAny;
  }

  #discardOther(fileBytes: number): boolean {
    const spare = this.#spares.takeOther(fileBytes);
    if (spare === null) return false;
    void this.removals.remove(spare.path, spare.bytes, () => undefined);
    return true;
  }

  /** Whether spare files of this run may exist. */
  get hasSpares(): boolean {
    return this.#spares.areUsed;
  }

  /** Removes the block from the table's SSD tier. `forget` removes its row. */
  #take(node: NodeId, cause: Cause) {
    const { table, files, index, departures, lost } = this.#parts;
    const path = files.pathOf(node);
    const digest = table.digestOf(node);
    const layer = table.layerOf(node);
    const bytes = this.allocatedOf(table.bytesOf(node));
    if (node === this.#watched) this.#watched = NO_NODE;
    files.forget(node);
    const isLast = !table.isResident(node, Tier.ram);
    const loss = isLast && table.isKept(node) ? LOSSES[cause.reason] : undefined;
    if (isLast) departures.note(table, node, "ssd", cause);
    table.removeResidency(node, Tier.ssd);
    this.#residentBytes -= bytes;
    if (loss !== undefined) lost(node, loss);
    return { path, bytes, forget: () => index.remove(digest, layer) };
  }

  /** Moves a damaged file to the quarantine folder and removes the block. */
  quarantine(node: NodeId): Promise<boolean> {
    const { disk, ioSlots, clock } = this.#parts;
    const { path, bytes, forget } = this.#take(node, { reason: "quarantined", by: null });
    const to = quarantinePath(path, clock.wallMs());
    if (this.#quarantinedFiles >= QUARANTINED_MAX) {
      return this.removals.remove(path, bytes, forget);
    }
    this.#quarantinedFiles++;
    return this.removals.track(path, bytes, async () => {
      const moved = await ioSlots.run("remove", () => disk.rename(path, to));
      crashPoint("room.quarantined");
      if (moved?.ok === true) {
        this.removals.done++;
        this.#quarantinedBytes += bytes;
        forget();
        return true;
      }
      this.#quarantinedFiles--;
      return this.removals.unlink(path, bytes, forget);
    });
  }

  /** Adds a quarantined file found at startup, which counts like any other. */
  foundQuarantined(bytes: number): void {
    this.#quarantinedFiles++;
    this.#quarantinedBytes += bytes;
  }

  get quarantinedFiles(): number {
    return this.#quarantinedFiles;
  }

  /** Drops a slice of blocks above the capacity, which may be lower than in the previous run. */
  trim(): void {
    if (this.#usedSoonBytes > this.#capacityBytes) this.discardSpares();
    for (let i = 0; i < DROPS_A_SLICE && this.#usedSoonBytes > this.#capacityBytes; i++) {
      if (this.removals.haveFailed || !this.dropOldest()) return;
    }
  }

  /** Drops a slice of blocks that were unused for `ttlSeconds`, the oldest first. */
  expire(ttlSeconds: number): void {
    const { table, stats, nowSeconds } = this.#parts;
    const before = nowSeconds() - ttlSeconds;
    for (let i = 0; i < DROPS_A_SLICE && this.removals.underWay < REMOVALS_MAX; i++) {
      const node = table.oldest(Tier.ssd);
      if (node === NO_NODE || table.lastUsedOf(node) > before) return;
      stats.expiredBlocks++;
      void this.drop(node, { reason: "expired", by: null });
    }
  }

  setCapacity(bytes: number): void {
    this.#capacityBytes = bytes;
  }
}

/** Failed removals retried at once, after a delay that doubles. */
const RETRIES_A_SLICE = 64;
const RETRY_FIRST_MS = 250;
const RETRY_LAST_MS = 30_000;

/**
 * Files being removed, and files whose removal failed. Their bytes count until they are removed,
 * and a new file of the same name waits for that.
 */
class Removals {
  readonly #parts: SsdParts;
  readonly #underWay = new Map<string, Promise<boolean>>();
  /** Bytes of files being removed, and of those whose removal failed. */
  bytes = 0;
  failedBytes = 0;
  readonly #failed: { readonly path: string; readonly bytes: number }[] = [];
  /** Number of files removed so far. */
  done = 0;
  /** How many of these removals surely survive a power loss. */
  #durable = -1;
  #retryMs = RETRY_FIRST_MS;
  #retryAtMs = 0;
  /** Called whenever a removal has freed room. */
  onRoom: () => void = () => undefined;

  constructor(parts: SsdParts) {
    this.#parts = parts;
  }

  /** Number of files being removed. */
  get underWay(): number {
    return this.#underWay.size;
  }

  get haveFailed(): boolean {
    return this.#failed.length > 0;
  }

  /** Files whose removal failed so far. */
  stuckPaths(): string[] {
    return this.#failed.map(({ path }) => path);
  }

  /** Whether a file of this name is being removed. */
  isRemoving(path: string): boolean {
    return this.#underWay.has(path);
  }

  /** Resolves when no removal of this name is under way. */
  async whenRemoved(path: string): Promise<void> {
    while (this.#underWay.has(path)) await this.#underWay.get(path);
  }

  /** Resolves when the current removals have ended. */
  async over(): Promise<void> {
    await Promise.all(this.#underWay.values());
  }

  /** Resolves when no removal is under way. */
  async settled(): Promise<void> {
    while (this.#underWay.size > 0) await this.over();
  }

  /** Records that the first `done` removals survive a power loss. */
  noteDurable(done: number): void {
    this.#durable = Math.max(this.#durable, done);
  }

  /** Whether a power loss may restore a removed file, possibly of an earlier run. */
  get areVolatile(): boolean {
    return this.#durable < this.done;
  }

  /** Removes a file of `bytes`. */
  remove(path: string, bytes: number, then: () => void): Promise<boolean> {
    return this.track(path, bytes, () => this.unlink(path, bytes, then));
  }

  /** Counts the file at `path` as being removed until `work` has ended. */
  track(path: string, bytes: number, work: () => Promise<boolean>): Promise<boolean> {
    this.bytes += bytes;
    const done = work().finally(() => {
      this.bytes -= bytes;
      if (this.#underWay.get(path) === done) this.#underWay.delete(path);
      this.onRoom();
    });
    this.#underWay.set(path, done);
    return done;
  }

  /** Part of a tracked removal: unlinks the file. */
  async unlink(path: string, bytes: number, then: () => void): Promise<boolean> {
    const { disk, ioSlots, log } = this.#parts;
    const removed = await ioSlots.run("remove", () => disk.remove(path));
    if (removed !== null && (removed.ok || removed.status === "missing")) {
      this.gone(then);
      return true;
    }
    const status = removed?.status ?? "cancelled";
    if (this.#failed.length === 0) log("warn", "file removal failed", { path, status });
    // Its bytes still count, so that the capacity is never exceeded.
    this.failedBytes += bytes;
    this.#failed.push({ path, bytes });
    return false;
  }

  /** Call when a file no longer exists under its name. */
  gone(then: () => void): void {
    this.#retryMs = RETRY_FIRST_MS;
    this.done++;
    crashPoint("room.removed");
    then();
    crashPoint("room.row-removed");
  }

  /** Retries some of the failed removals if their delay has passed. */
  retry(): void {
    const nowMs = this.#parts.clock.monotonicMs();
    if (this.#failed.length === 0 || nowMs < this.#retryAtMs) return;
    this.#retryAtMs = nowMs + this.#retryMs;
    this.#retryMs = Math.min(RETRY_LAST_MS, this.#retryMs * 2);
    for (const { path, bytes } of this.#failed.splice(0, RETRIES_A_SLICE)) {
      this.failedBytes -= bytes;
      void this.remove(path, bytes, () => undefined);
    }
  }
}

interface Spare {
  readonly path: string;
  /** Bytes allocated by the file system. */
  readonly bytes: number;
}

/**
 * Files of evicted blocks that can be overwritten by blocks of the same length: a drive writes to
 * allocated space several times faster than to new space. They have the names of leftovers, so that
 * they are never taken for blocks and are removed at startup after a crash.
 */
class SpareFiles {
  /** By the length of the file. */
  readonly #files = new Map<number, Spare[]>();
  readonly #coming = new Map<number, number>();
  /** Bytes of spare files, and of files being renamed to become spare. */
  bytes = 0;
  #comingCount = 0;
  #named = 0;

  get areComing(): boolean {
    return this.#comingCount > 0;
  }

  /** Whether there has been a spare file in this run. */
  get areUsed(): boolean {
    return this.#named > 0;
  }

  /** Number of spare files of this length, including those being renamed. */
  countOf(fileBytes: number): number {
    return (this.#files.get(fileBytes)?.length ?? 0) + (this.#coming.get(fileBytes) ?? 0);
  }

  /** Name of the spare file made of the file at `path`, in the same folder. */
  nameFor(path: string): string {
    const folder = path.slice(0, path.lastIndexOf("/"));
    return `${folder}/.${(this.#named++).toString(36)}.tmp`;
  }

  expect(fileBytes: number, bytes: number): void {
    this.#coming.set(fileBytes, (this.#coming.get(fileBytes) ?? 0) + 1);
    this.#comingCount++;
    this.bytes += bytes;
  }

  /** Completes a rename: the spare file is at `path`, or null if the rename failed. */
  came(fileBytes: number, bytes: number, path: string | null): void {
    this.#coming.set(fileBytes, this.#coming.get(fileBytes)! - 1);
    this.#comingCount--;
    if (path === null) {
      this.bytes -= bytes;
      return;
    }
    const files = this.#files.get(fileBytes) ?? [];
    files.push({ path, bytes });
    this.#files.set(fileBytes, files);
  }

  /** Takes a spare file of this length; null if there is none. */
  take(fileBytes: number): Spare | null {
    const files = this.#files.get(fileBytes);
    const spare = files?.pop();
    if (files?.length === 0) this.#files.delete(fileBytes);
    if (spare === undefined) return null;
    this.bytes -= spare.bytes;
    return spare;
  }

  /** Takes a spare file of any other length; null if there is none. */
  takeOther(fileBytes: number): Spare | null {
    for (const length of this.#files.keys()) if (length !== fileBytes) return this.take(length);
    return null;
  }
}
