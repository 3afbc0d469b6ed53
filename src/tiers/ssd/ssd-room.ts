import { Tier } from "../../blocks/index.ts";
import { NO_NODE, type NodeId } from "../../core/index.ts";
import { fileBytesOf, quarantinePath } from "../../kvb/index.ts";
import { crashPoint } from "../../native/index.ts";
import { SpareFiles } from "./spare-files.ts";
import type { SsdParts } from "./ssd-parts.ts";

/** Removals that failed are tried again, so many at once, after a wait that doubles. */
const RETRIES_A_SLICE = 64;
const RETRY_FIRST_MS = 250;
const RETRY_LAST_MS = 30_000;
/** Blocks dropped before other work gets its turn. */
const DROPS_A_SLICE = 256;
/** Damaged files kept for people to look at; beyond it they are removed. */
const QUARANTINED_MAX = 64;
/** Files waiting to be removed, beyond which nothing new is dropped for room. */
const REMOVALS_MAX = 65_536;

/**
 * `ok`: room is set aside; `spare` is a file of the right length that the block is to overwrite.
 * `later`: removals or writes under way will give room. `never`: the cap is too low, all that is
 * there is protected, or nothing can be removed.
 */
export type Reservation =
  | { readonly kind: "ok"; readonly spare: string | null }
  | { readonly kind: "later" | "never" };

/**
 * Bytes on disk, as the file system counts them, under a hard cap: files that are there, files
 * being written, spare files and files not yet removed count together. The oldest blocks leave when
 * room is needed, and those that nobody used for so long.
 */
export class SsdRoom {
  readonly #parts: SsdParts;
  #capacityBytes: number;
  #unitBytes = 4096;
  #residentBytes = 0;
  #writingBytes = 0;
  #removingBytes = 0;
  #quarantinedBytes = 0;
  #quarantinedFiles = 0;
  /** Files on their way out, by path: a new file of that name waits. */
  readonly #removing = new Map<string, Promise<boolean>>();
  #watched: NodeId = NO_NODE;
  readonly #spares = new SpareFiles();
  /** Files that could not be removed. */
  readonly #failed: { readonly path: string; readonly bytes: number }[] = [];
  #failedBytes = 0;
  /** Files that are gone, and how many of them surely stay so when the power goes. */
  #removals = 0;
  #durableRemovals = -1;
  #retryMs = RETRY_FIRST_MS;
  #retryAtMs = 0;
  /** Called whenever a removal gave room back. */
  onRoom: () => void = () => undefined;

  constructor(parts: SsdParts, capacityBytes: number) {
    this.#parts = parts;
    this.#capacityBytes = capacityBytes;
  }

  get capacityBytes(): number {
    return this.#capacityBytes;
  }

  /** Everything that counts against the cap. */
  get usedBytes(): number {
    const files = this.#residentBytes + this.#writingBytes + this.#spares.bytes;
    return files + this.#removingBytes + this.#failedBytes + this.#quarantinedBytes;
  }

  /** What will be in use when the removals under way are over: spare files, too. */
  get #usedSoonBytes(): number {
    return this.usedBytes - this.#removingBytes;
  }

  /** What the file system allocates at least, and in multiples of: found by the self-test. */
  setAllocationUnit(bytes: number): void {
    this.#unitBytes = bytes;
  }

  allocatedOf(payloadBytes: number): number {
    return Math.ceil(fileBytesOf(payloadBytes) / this.#unitBytes) * this.#unitBytes;
  }

  /**
   * Sets room aside for a file. `ahead`: how many files, of its length as far as one can know, are
   * waiting for room with it: what they need is begun, too.
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

  /** Drops a slice of blocks, for room that comes with each file gone; then one asks again. */
  #makeRoom(fileBytes: number, bytes: number, ahead: number): "later" | "never" {
    const soon = () => {
      const spareBytes = this.#spares.countOf(fileBytes) * bytes;
      return this.#capacityBytes - this.#usedSoonBytes + spareBytes;
    };
    for (let drops = 0; soon() < bytes * ahead; drops++) {
      if (drops === DROPS_A_SLICE) return "later";
      // While files cannot be removed, dropping more blocks would give no room.
      if (this.#failed.length > 0 || this.#removing.size >= REMOVALS_MAX) break;
      if (!this.#discardOther(fileBytes) && !this.dropOldest(fileBytes)) break;
    }
    if (soon() >= bytes) return "later";
    if (this.#failed.length > 0) return this.#removing.size > 0 ? "later" : "never";
    const isMoving = this.#writingBytes > 0 || this.#spares.areComing;
    return isMoving || this.#removing.size >= REMOVALS_MAX ? "later" : "never";
  }

  /** False where `reserve` would say `never`. Changes nothing. */
  mayReserve(payloadBytes: number): boolean {
    const bytes = this.allocatedOf(payloadBytes);
    if (bytes > this.#capacityBytes) return false;
    if (this.#usedSoonBytes - this.#spares.bytes + bytes <= this.#capacityBytes) return true;
    if (this.#removing.size > 0) return true;
    if (this.#failed.length > 0) return false;
    return this.#writingBytes > 0 || this.#parts.table.oldest(Tier.ssd) !== NO_NODE;
  }

  /**
   * Drops the block that was used longest ago; false where all are protected. Its file is kept as a
   * spare one where it has a length of `fileBytes`.
   */
  dropOldest(fileBytes = 0): boolean {
    const { table, stats } = this.#parts;
    const victim = table.oldest(Tier.ssd);
    if (victim === NO_NODE) return false;
    stats.evictedBlocks++;
    stats.evictedBytes += table.bytesOf(victim);
    if (fileBytesOf(table.bytesOf(victim)) === fileBytes) void this.#recycle(victim);
    else void this.drop(victim);
    return true;
  }

  /** The file that room was set aside for is there, or came to nothing. */
  written(payloadBytes: number, stored: boolean): void {
    const bytes = this.allocatedOf(payloadBytes);
    this.#writingBytes -= bytes;
    if (stored) this.#residentBytes += bytes;
  }

  /** A file found at the start. */
  found(payloadBytes: number): void {
    this.#residentBytes += this.allocatedOf(payloadBytes);
  }

  /** Whether a file of this name is on its way out. */
  isRemoving(path: string): boolean {
    return this.#removing.has(path);
  }

  /** Files on their way out. */
  get removing(): number {
    return this.#removing.size;
  }

  /** Files removed so far. */
  get removals(): number {
    return this.#removals;
  }

  /** Of the files removed so far, the first `removals` do not come back after a loss of power. */
  noteDurable(removals: number): void {
    this.#durableRemovals = Math.max(this.#durableRemovals, removals);
  }

  /** A file that was removed may come back after a loss of power: of an earlier run, too. */
  get hasVolatileRemovals(): boolean {
    return this.#durableRemovals < this.#removals;
  }

  /**
   * Resolves when what is on its way out now is gone, or could not be removed. Spare files are on
   * their way out: their bytes are of blocks that somebody may want to be gone.
   */
  async removalsOver(): Promise<void> {
    await Promise.all(this.#removing.values());
    if (this.discardSpares()) await Promise.all(this.#removing.values());
  }

  /** Files that are to go and could not be removed so far. */
  stuckPaths(): string[] {
    return this.#failed.map(({ path }) => path);
  }

  /** From now on `hasLeft` tells whether the block has left SSD since; one block at a time. */
  watch(node: NodeId): void {
    this.#watched = node;
  }

  get hasLeft(): boolean {
    return this.#watched === NO_NODE;
  }

  /** Resolves when no removal of this name is under way. */
  async whenRemoved(path: string): Promise<void> {
    while (this.#removing.has(path)) await this.#removing.get(path);
  }

  /**
   * Takes a block off the tier: out of the table at once, its file and its row after that. True
   * when the file is gone; false where it could not be removed, which is tried again later. The
   * node may vanish.
   */
  drop(node: NodeId): Promise<boolean> {
    const { table, files } = this.#parts;
    const path = files.pathOf(node);
    const digest = files.digestOf(node);
    const layer = table.layerOf(node);
    const bytes = this.#leave(node);
    return this.remove(path, bytes, () => this.#parts.index.remove(digest, layer));
  }

  /** As `drop`, but the file becomes a spare one: its name goes, which is all that a start sees. */
  #recycle(node: NodeId): Promise<boolean> {
    const { table, files, disk, schedule, index } = this.#parts;
    const path = files.pathOf(node);
    const digest = files.digestOf(node);
    const layer = table.layerOf(node);
    const fileBytes = fileBytesOf(table.bytesOf(node));
    const bytes = this.#leave(node);
    const spare = this.#spares.nameFor(path);
    this.#spares.expect(fileBytes, bytes);
    // Its bytes count as a spare file's from now on.
    return this.#track(path, 0, async () => {
      const moved = await schedule.run("remove", () => disk.rename(path, spare));
      const isThere = moved?.ok === true;
      this.#spares.came(fileBytes, bytes, isThere ? spare : null);
      if (isThere) {
        this.#gone(() => index.remove(digest, layer));
        return true;
      }
      // Where the new name came and the old one stayed, both must go.
      void this.remove(spare, 0, () => undefined);
      return this.remove(path, bytes, () => index.remove(digest, layer));
    });
  }

  /** Removes a spare file that room was set aside with: it was not used, or in vain. */
  async discardSpare(path: string, payloadBytes: number): Promise<void> {
    await this.remove(path, this.allocatedOf(payloadBytes), () => undefined);
  }

  /** Removes the spare files; false where there are none. */
  discardSpares(): boolean {
    let isAny = false;
    while (this.#discardOther(0)) isAny = true;
    return isAny;
  }

  #discardOther(fileBytes: number): boolean {
    const spare = this.#spares.takeOther(fileBytes);
    if (spare === null) return false;
    void this.remove(spare.path, spare.bytes, () => undefined);
    return true;
  }

  /** Whether files of this run may be spare. */
  get hasSpares(): boolean {
    return this.#spares.areUsed;
  }

  /** The table forgets that the block is on SSD; how many bytes its file has. */
  #leave(node: NodeId): number {
    const { table, files } = this.#parts;
    const bytes = this.allocatedOf(table.bytesOf(node));
    if (node === this.#watched) this.#watched = NO_NODE;
    files.setVariant(node, 0);
    table.removeResidency(node, Tier.ssd);
    this.#residentBytes -= bytes;
    return bytes;
  }

  /** Moves the file of a block that is not what it should be out of the way, and forgets it. */
  quarantine(node: NodeId): Promise<boolean> {
    const { table, files, disk, schedule, index, clock } = this.#parts;
    const path = files.pathOf(node);
    const digest = files.digestOf(node);
    const layer = table.layerOf(node);
    const bytes = this.#leave(node);
    const to = quarantinePath(path, clock.wallMs());
    if (this.#quarantinedFiles >= QUARANTINED_MAX) {
      return this.remove(path, bytes, () => index.remove(digest, layer));
    }
    this.#quarantinedFiles++;
    return this.#track(path, bytes, async () => {
      const moved = await schedule.run("remove", () => disk.rename(path, to));
      crashPoint("room.quarantined");
      if (moved?.ok === true) {
        this.#removals++;
        this.#quarantinedBytes += bytes;
        index.remove(digest, layer);
        return true;
      }
      this.#quarantinedFiles--;
      return this.#unlink(path, bytes, () => index.remove(digest, layer));
    });
  }

  /** A damaged file set aside takes room like any other. */
  foundQuarantined(bytes: number): void {
    this.#quarantinedFiles++;
    this.#quarantinedBytes += bytes;
  }

  get quarantinedFiles(): number {
    return this.#quarantinedFiles;
  }

  /** Removes a file that counts `bytes`. */
  remove(path: string, bytes: number, then: () => void): Promise<boolean> {
    return this.#track(path, bytes, () => this.#unlink(path, bytes, then));
  }

  async #unlink(path: string, bytes: number, then: () => void): Promise<boolean> {
    const { disk, schedule, log } = this.#parts;
    const removed = await schedule.run("remove", () => disk.remove(path));
    if (removed !== null && (removed.ok || removed.status === "missing")) {
      this.#gone(then);
      return true;
    }
    const status = removed?.status ?? "given up";
    if (this.#failed.length === 0) log("warn", "a file could not be removed", { path, status });
    // Its bytes still count: the cap holds, whatever the disk does.
    this.#failedBytes += bytes;
    this.#failed.push({ path, bytes });
    return false;
  }

  #gone(then: () => void): void {
    this.#retryMs = RETRY_FIRST_MS;
    this.#removals++;
    crashPoint("room.removed");
    then();
    crashPoint("room.row-removed");
  }

  #track(path: string, bytes: number, work: () => Promise<boolean>): Promise<boolean> {
    this.#removingBytes += bytes;
    const done = work().finally(() => {
      this.#removingBytes -= bytes;
      if (this.#removing.get(path) === done) this.#removing.delete(path);
      this.onRoom();
    });
    this.#removing.set(path, done);
    return done;
  }

  /** Tries again some of what could not be removed, where it is time for that. */
  retryRemovals(): void {
    const nowMs = this.#parts.clock.monotonicMs();
    if (this.#failed.length === 0 || nowMs < this.#retryAtMs) return;
    this.#retryAtMs = nowMs + this.#retryMs;
    this.#retryMs = Math.min(RETRY_LAST_MS, this.#retryMs * 2);
    for (const { path, bytes } of this.#failed.splice(0, RETRIES_A_SLICE)) {
      this.#failedBytes -= bytes;
      void this.remove(path, bytes, () => undefined);
    }
  }

  /** Resolves when no file is on its way out. */
  async settled(): Promise<void> {
    while (this.#removing.size > 0) await Promise.all(this.#removing.values());
  }

  /** Drops what is above the cap, which may be lower than at the last start; a slice of it. */
  trim(): void {
    if (this.#usedSoonBytes > this.#capacityBytes) this.discardSpares();
    for (let i = 0; i < DROPS_A_SLICE && this.#usedSoonBytes > this.#capacityBytes; i++) {
      if (this.#failed.length > 0 || !this.dropOldest()) return;
    }
  }

  /** Drops what nobody used for `ttlSeconds`, the oldest first; a slice of it. */
  expire(ttlSeconds: number): void {
    const { table, stats, nowSeconds } = this.#parts;
    const before = nowSeconds() - ttlSeconds;
    for (let i = 0; i < DROPS_A_SLICE && this.#removing.size < REMOVALS_MAX; i++) {
      const node = table.oldest(Tier.ssd);
      if (node === NO_NODE || table.lastUsedOf(node) > before) return;
      stats.expiredBlocks++;
      void this.drop(node);
    }
  }

  setCapacity(bytes: number): void {
    this.#capacityBytes = bytes;
  }
}
