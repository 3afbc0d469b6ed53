import { NO_NODE, type NodeId } from "../../core/index.ts";
import { crashPoint } from "../../native/index.ts";
import { Tier } from "../blocks/index.ts";
import { type Cause, type DepartureReason, EVICTED } from "../departures.ts";
import { fileBytesOf, quarantinePath } from "../kvb/index.ts";
import type { SsdParts } from "./ssd-parts.ts";

/** Blocks dropped before the event loop is yielded to. */
const DROPS_A_SLICE = 256;
/** Maximum number of damaged files kept for inspection. Further damaged files are removed. */
const QUARANTINED_MAX = 64;
/** Number of file removals in progress above which no more blocks are dropped. */
const REMOVALS_MAX = 65_536;
/**
 * Maximum number of soft pins ended to make room for one block. Several may protect the same
 * blocks.
 */
const PIN_EVICTIONS_MAX = 16;

/** Removal reasons that mean the loss of the block, with the text for the report. */
const LOSSES: Partial<Record<DepartureReason, string>> = {
  quarantined: "file on SSD damaged",
  lost: "file on SSD missing or unreadable",
};

/**
 * Result of reserving disk space. `ok`: space is reserved; `spare` is the path of a file of the
 * right length to overwrite, or null. `later`: removals or writes in progress will free space.
 * `never`: the capacity is too small, every block is protected, or files cannot be removed.
 */
export type Reservation =
  | { readonly kind: "ok"; readonly spare: string | null }
  | { readonly kind: "later" | "never" };

/**
 * Manages the disk space of the tier, in bytes allocated by the file system, under a hard limit.
 * Block files, files being written, spare files and files not yet removed all count. Drops the
 * least recently used blocks to make room, and blocks that were unused for the configured time.
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
  /** True after the warning that nothing can be dropped was logged. */
  #isStuck = false;

  constructor(parts: SsdParts, capacityBytes: number) {
    this.#parts = parts;
    this.removals = new Removals(parts);
    this.#capacityBytes = capacityBytes;
  }

  get capacityBytes(): number {
    return this.#capacityBytes;
  }

  /** Bytes of disk space that count against the capacity. */
  get usedBytes(): number {
    const files = this.#residentBytes + this.#writingBytes + this.#spares.bytes;
    const { bytes, failedBytes } = this.removals;
    return files + bytes + failedBytes + this.#quarantinedBytes;
  }

  /** Bytes in use when the removals in progress have ended, spare files included. */
  get #usedSoonBytes(): number {
    return this.usedBytes - this.removals.bytes;
  }

  /** Sets the allocation unit of the file system in bytes, which the self-test determines. */
  setAllocationUnit(bytes: number): void {
    this.#unitBytes = bytes;
  }

  allocatedOf(payloadBytes: number): number {
    return Math.ceil(fileBytesOf(payloadBytes) / this.#unitBytes) * this.#unitBytes;
  }

  /**
   * Reserves disk space for a file. `ahead`: number of files, this one included, that wait for
   * space and presumably have the same length. Frees space for them in advance.
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
   * Drops some blocks. Their space becomes free when their files are removed; the caller then tries
   * again.
   */
  #makeRoom(fileBytes: number, bytes: number, ahead: number): "later" | "never" {
    const { removals } = this;
    const soon = () => {
      const spareBytes = this.#spares.countOf(fileBytes) * bytes;
      return this.#capacityBytes - this.#usedSoonBytes + spareBytes;
    };
    for (let drops = 0; soon() < bytes * ahead; drops++) {
      if (drops === DROPS_A_SLICE) return "later";
      // Stop if files cannot be removed: dropping more blocks would free no space.
      if (removals.haveFailed || removals.underWay >= REMOVALS_MAX) break;
      if (this.#discardOther(fileBytes) || this.dropOldest(fileBytes)) continue;
      // End soft pins only if this one block needs the space.
      if (this.#isMoving || soon() >= bytes || !this.#evictPins(bytes)) break;
    }
    if (soon() >= bytes) return "later";
    if (removals.haveFailed) return removals.underWay > 0 ? "later" : "never";
    return this.#isMoving || removals.underWay >= REMOVALS_MAX ? "later" : "never";
  }

  /** True if operations in progress may free space or end the protection of blocks. */
  get #isMoving(): boolean {
    return this.#writingBytes > 0 || this.#spares.areComing;
  }

  /**
   * Ends soft pins until a block can be evicted. Called when every block is protected. Returns
   * false if none becomes evictable. Pins and leases are not ended for this: blocks that they
   * protect elsewhere stay in RAM, and other blocks need not be on SSD.
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
   * Returns false if `reserve` would return `never`. May end soft pins, as `reserve` does, but
   * changes nothing else.
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
   * Drops the least recently used block. Returns false if all are protected. Keeps the file as a
   * spare file if its length is `fileBytes`.
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

  /**
   * Converts the reservation for a write. `stored`: whether the write has succeeded; if not, the
   * space is free again.
   */
  written(payloadBytes: number, stored: boolean): void {
    const bytes = this.allocatedOf(payloadBytes);
    this.#writingBytes -= bytes;
    if (stored) this.#residentBytes += bytes;
  }

  /** Adds the space of a file found at startup. */
  found(payloadBytes: number): void {
    this.#residentBytes += this.allocatedOf(payloadBytes);
  }

  /**
   * Resolves when the removals in progress have ended. Also removes spare files, since they may
   * contain bytes of blocks that a command removed.
   */
  async removalsOver(): Promise<void> {
    await this.removals.over();
    if (this.discardSpares()) await this.removals.over();
  }

  /** Starts to watch one block: from now on `hasLeft` is true if the block has left SSD. */
  watch(node: NodeId): void {
    this.#watched = node;
  }

  get hasLeft(): boolean {
    return this.#watched === NO_NODE;
  }

  /**
   * Removes a block from SSD: from the block table immediately, then its file and its index row.
   * Resolves to true when the file is removed, or to false if that failed; the removal is then
   * retried later. If this was the block's last copy, its node is removed.
   */
  drop(node: NodeId, cause: Cause = EVICTED): Promise<boolean> {
    const { path, bytes, forget } = this.#take(node, cause);
    return this.removals.remove(path, bytes, forget);
  }

  /**
   * Removes a block as `drop` does, but keeps its file as a spare file under another name, so that
   * recovery does not take it for the block.
   */
  #recycle(node: NodeId): Promise<boolean> {
    const { table, disk, ioSlots } = this.#parts;
    const fileBytes = fileBytesOf(table.bytesOf(node));
    const { path, bytes, forget } = this.#take(node, EVICTED);
    const spare = this.#spares.nameFor(path);
    this.#spares.expect(fileBytes, bytes);
    // From here on the file's bytes count as those of a spare file.
    return this.removals.track(path, 0, async () => {
      const moved = await ioSlots.run("remove", () => disk.rename(path, spare));
      const isThere = moved?.ok === true;
      this.#spares.came(fileBytes, bytes, isThere ? spare : null);
      if (isThere) {
        this.removals.gone(forget);
        return true;
      }
      // A failed rename may have created the new name and kept the old one: remove both.
      void this.removals.remove(spare, 0, () => undefined);
      return this.removals.remove(path, bytes, forget);
    });
  }

  /** Removes a spare file that was reserved but not used. */
  async discardSpare(path: string, payloadBytes: number): Promise<void> {
    await this.removals.remove(path, this.allocatedOf(payloadBytes), () => undefined);
  }

  /** Removes all spare files. Returns false if there are none. */
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

  /** True if spare files of this run may exist. */
  get hasSpares(): boolean {
    return this.#spares.areUsed;
  }

  /**
   * Removes the block from SSD in the block table. Returns the path and size of its file, and
   * `forget`, which removes its index row.
   */
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

  /** Moves a damaged file to the quarantine folder and removes the block from SSD. */
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

  /** Counts a quarantined file found at startup. */
  foundQuarantined(bytes: number): void {
    this.#quarantinedFiles++;
    this.#quarantinedBytes += bytes;
  }

  get quarantinedFiles(): number {
    return this.#quarantinedFiles;
  }

  /**
   * Drops some blocks if the tier uses more than its capacity, which may be lower than in the
   * previous run.
   */
  trim(): void {
    if (this.#usedSoonBytes > this.#capacityBytes) this.discardSpares();
    for (let i = 0; i < DROPS_A_SLICE && this.#usedSoonBytes > this.#capacityBytes; i++) {
      if (this.removals.haveFailed || !this.dropOldest()) return;
    }
  }

  /** Drops some of the blocks that were unused for `ttlSeconds`, the oldest first. */
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

/**
 * Number of failed removals retried together. The delay between retries doubles from the first to
 * the last value.
 */
const RETRIES_A_SLICE = 64;
const RETRY_FIRST_MS = 250;
const RETRY_LAST_MS = 30_000;

/**
 * Files being removed, and files whose removal failed. Their bytes count as used until they are
 * removed. A new file of the same name must wait until then.
 */
class Removals {
  readonly #parts: SsdParts;
  readonly #underWay = new Map<string, Promise<boolean>>();
  /** `bytes`: bytes of files being removed. `failedBytes`: bytes of files whose removal failed. */
  bytes = 0;
  failedBytes = 0;
  readonly #failed: { readonly path: string; readonly bytes: number }[] = [];
  /** Number of files removed in this run. */
  done = 0;
  /** Number of these removals, counted from the first, that survive a power loss. */
  #durable = -1;
  #retryMs = RETRY_FIRST_MS;
  #retryAtMs = 0;
  /** Called each time a removal has freed space. */
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

  /** Returns the paths of the files whose removal failed and was not repeated yet. */
  stuckPaths(): string[] {
    return this.#failed.map(({ path }) => path);
  }

  /** Returns whether the file at this path is being removed. */
  isRemoving(path: string): boolean {
    return this.#underWay.has(path);
  }

  /** Resolves when no removal of a file at this path is in progress. */
  async whenRemoved(path: string): Promise<void> {
    while (this.#underWay.has(path)) await this.#underWay.get(path);
  }

  /** Resolves when the removals that are in progress at the call have ended. */
  async over(): Promise<void> {
    await Promise.all(this.#underWay.values());
  }

  /** Resolves when no removal is in progress, including removals that begin meanwhile. */
  async settled(): Promise<void> {
    while (this.#underWay.size > 0) await this.over();
  }

  /** Records that the first `done` removals survive a power loss. */
  noteDurable(done: number): void {
    this.#durable = Math.max(this.#durable, done);
  }

  /** True if a power loss may restore a removed file, which may be one of an earlier run. */
  get areVolatile(): boolean {
    return this.#durable < this.done;
  }

  /**
   * Removes the file at `path`. `bytes`: its disk space. Calls `then` when it is removed. Resolves
   * to false if the removal failed.
   */
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

  /** Unlinks a file. Must run as the `work` of `track`. */
  async unlink(path: string, bytes: number, then: () => void): Promise<boolean> {
    const { disk, ioSlots, log } = this.#parts;
    const removed = await ioSlots.run("remove", () => disk.remove(path));
    if (removed !== null && (removed.ok || removed.status === "missing")) {
      this.gone(then);
      return true;
    }
    const status = removed?.status ?? "cancelled";
    if (this.#failed.length === 0) log("warn", "file removal failed", { path, status });
    // Keep counting its bytes, so that the tier never exceeds its capacity.
    this.failedBytes += bytes;
    this.#failed.push({ path, bytes });
    return false;
  }

  /** Reports that a file no longer exists under its name. */
  gone(then: () => void): void {
    this.#retryMs = RETRY_FIRST_MS;
    this.done++;
    crashPoint("room.removed");
    then();
    crashPoint("room.row-removed");
  }

  /** Retries some of the failed removals if the retry delay has passed. */
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
  /** Bytes of disk space allocated by the file system. */
  readonly bytes: number;
}

/**
 * Files of evicted blocks, kept so that blocks of the same length can overwrite them: a drive
 * writes to allocated space several times faster than to new space. Their names are those of
 * temporary files, so that they are never taken for blocks and are removed at the start after a
 * crash.
 */
class SpareFiles {
  /** Spare files by their length in bytes. */
  readonly #files = new Map<number, Spare[]>();
  readonly #coming = new Map<number, number>();
  /** Bytes of disk space of spare files, and of files being renamed to become spare files. */
  bytes = 0;
  #comingCount = 0;
  #named = 0;

  get areComing(): boolean {
    return this.#comingCount > 0;
  }

  /** True if there has been a spare file in this run. */
  get areUsed(): boolean {
    return this.#named > 0;
  }

  /** Returns the number of spare files of this length, including those being renamed. */
  countOf(fileBytes: number): number {
    return (this.#files.get(fileBytes)?.length ?? 0) + (this.#coming.get(fileBytes) ?? 0);
  }

  /** Returns the path of the spare file that is made of the file at `path`, in the same folder. */
  nameFor(path: string): string {
    const folder = path.slice(0, path.lastIndexOf("/"));
    return `${folder}/.${(this.#named++).toString(36)}.tmp`;
  }

  expect(fileBytes: number, bytes: number): void {
    this.#coming.set(fileBytes, (this.#coming.get(fileBytes) ?? 0) + 1);
    this.#comingCount++;
    this.bytes += bytes;
  }

  /** Ends a rename. `path`: the new spare file, or null if the rename failed. */
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

  /** Takes a spare file of this length, or returns null if there is none. */
  take(fileBytes: number): Spare | null {
    const files = this.#files.get(fileBytes);
    const spare = files?.pop();
    if (files?.length === 0) this.#files.delete(fileBytes);
    if (spare === undefined) return null;
    this.bytes -= spare.bytes;
    return spare;
  }

  /** Takes a spare file of any other length, or returns null if there is none. */
  takeOther(fileBytes: number): Spare | null {
    for (const length of this.#files.keys()) if (length !== fileBytes) return this.take(length);
    return null;
  }
}
