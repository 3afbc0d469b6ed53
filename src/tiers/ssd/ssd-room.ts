import { Tier } from "../../blocks/index.ts";
import { NO_NODE, type NodeId } from "../../core/index.ts";
import { fileBytesOf, quarantinePath } from "../../kvb/index.ts";
import type { SsdParts } from "./ssd-parts.ts";

/** Removals that failed and are tried again; beyond it the files wait for the next start. */
const RETRIES_MAX = 10_000;
/** Expired blocks dropped before other work gets its turn. */
const EXPIRED_A_SLICE = 256;
/** Damaged files kept for people to look at; beyond it they are removed. */
const QUARANTINED_MAX = 64;
/** Files waiting to be removed, beyond which nothing new is dropped for room. */
const REMOVALS_MAX = 65_536;

/**
 * Bytes on disk, as the file system counts them, under a hard cap: files that are there, files
 * being written and files not yet removed count together. The oldest blocks leave when room is
 * needed, and those that nobody used for so long.
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
  readonly #failed: { readonly path: string; readonly bytes: number }[] = [];
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
    return this.#residentBytes + this.#writingBytes + this.#removingBytes + this.#quarantinedBytes;
  }

  /** What the file system allocates at least, and in multiples of: found by the self-test. */
  setAllocationUnit(bytes: number): void {
    this.#unitBytes = bytes;
  }

  allocatedOf(payloadBytes: number): number {
    return Math.ceil(fileBytesOf(payloadBytes) / this.#unitBytes) * this.#unitBytes;
  }

  /**
   * Sets room aside for a file. `later`: removals under way will give it. `never`: the cap is too
   * low, or all that is there is protected.
   */
  reserve(payloadBytes: number): "ok" | "later" | "never" {
    const bytes = this.allocatedOf(payloadBytes);
    if (bytes > this.#capacityBytes) return "never";
    // Removals give their room only when the file is gone: drop until they will be enough.
    while (this.usedBytes - this.#removingBytes + bytes > this.#capacityBytes) {
      if (this.#removing.size >= REMOVALS_MAX) return "later";
      const victim = this.#parts.table.oldest(Tier.ssd);
      if (victim === NO_NODE) return this.#writingBytes > 0 ? "later" : "never";
      this.#parts.stats.evictedBlocks++;
      this.#parts.stats.evictedBytes += this.#parts.table.bytesOf(victim);
      this.drop(victim);
    }
    if (this.usedBytes + bytes > this.#capacityBytes) return "later";
    this.#writingBytes += bytes;
    return "ok";
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

  /** The table forgets that the block is on SSD; how many bytes its file has. */
  #leave(node: NodeId): number {
    const { table, files } = this.#parts;
    const bytes = this.allocatedOf(table.bytesOf(node));
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
    this.foundQuarantined(bytes);
    return this.#track(path, 0, async () => {
      const moved = await schedule.run("remove", () => disk.rename(path, to));
      if (moved?.ok !== true) await schedule.run("remove", () => disk.remove(path));
      index.remove(digest, layer);
      return moved?.ok === true;
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
    const { disk, schedule, log } = this.#parts;
    return this.#track(path, bytes, async () => {
      const removed = await schedule.run("remove", () => disk.remove(path));
      if (removed !== null && (removed.ok || removed.status === "missing")) {
        then();
        return true;
      }
      // Its bytes still count: the cap holds, whatever the disk does.
      if (this.#failed.length < RETRIES_MAX) {
        this.#removingBytes += bytes;
        this.#failed.push({ path, bytes });
      }
      log("warn", "a file could not be removed", { path, status: removed?.status ?? "given up" });
      return false;
    });
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

  /** Tries again what could not be removed. */
  retryRemovals(): void {
    for (const { path, bytes } of this.#failed.splice(0)) {
      this.#removingBytes -= bytes;
      void this.remove(path, bytes, () => undefined);
    }
  }

  /** Resolves when no file is on its way out. */
  async settled(): Promise<void> {
    while (this.#removing.size > 0) await Promise.all(this.#removing.values());
  }

  /** How many files could not be removed. */
  get failedRemovals(): number {
    return this.#failed.length;
  }

  /** Drops what nobody used for `ttlSeconds`, the oldest first; a slice of it. */
  expire(ttlSeconds: number): void {
    const { table, stats, nowSeconds } = this.#parts;
    const before = nowSeconds() - ttlSeconds;
    for (let i = 0; i < EXPIRED_A_SLICE && this.#removing.size < REMOVALS_MAX; i++) {
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
