import { NO_NODE, type NodeId } from "../../core/index.ts";
import { crashPoint } from "../../native/index.ts";
import { Tier } from "../blocks/index.ts";
import { type Cause, type DepartureReason, EVICTED } from "../departures.ts";
import { fileBytesOf, quarantinePath } from "../kvb/index.ts";
import type { SsdParts } from "./ssd-parts.ts";

/** Blocks dropped before other work gets its turn. */
const DROPS_A_SLICE = 256;
/** Damaged files kept for people to look at; beyond it they are removed. */
const QUARANTINED_MAX = 64;
/** Files waiting to be removed, beyond which nothing new is dropped for room. */
const REMOVALS_MAX = 65_536;
/** Soft pins ended for one block: each may have been one of several on the same blocks. */
const RELIEFS = 16;

/** Departures that nobody asked for and no shortage of room explains, in words. */
const LOSSES: Partial<Record<DepartureReason, string>> = {
  quarantined: "its file on SSD was damaged",
  lost: "its file on SSD is gone or cannot be read",
};

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
  #quarantinedBytes = 0;
  #quarantinedFiles = 0;
  #watched: NodeId = NO_NODE;
  readonly #spares = new SpareFiles();
  readonly removals: Removals;
  /** It was said that nothing may go. */
  #isStuck = false;

  constructor(parts: SsdParts, capacityBytes: number) {
    this.#parts = parts;
    this.removals = new Removals(parts);
    this.#capacityBytes = capacityBytes;
  }

  get capacityBytes(): number {
    return this.#capacityBytes;
  }

  /** Everything that counts against the cap. */
  get usedBytes(): number {
    const files = this.#residentBytes + this.#writingBytes + this.#spares.bytes;
    const { bytes, failedBytes } = this.removals;
    return files + bytes + failedBytes + this.#quarantinedBytes;
  }

  /** What will be in use when the removals under way are over: spare files, too. */
  get #usedSoonBytes(): number {
    return this.usedBytes - this.removals.bytes;
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
    const { removals } = this;
    const soon = () => {
      const spareBytes = this.#spares.countOf(fileBytes) * bytes;
      return this.#capacityBytes - this.#usedSoonBytes + spareBytes;
    };
    for (let drops = 0; soon() < bytes * ahead; drops++) {
      if (drops === DROPS_A_SLICE) return "later";
      // While files cannot be removed, dropping more blocks would give no room.
      if (removals.haveFailed || removals.underWay >= REMOVALS_MAX) break;
      if (this.#discardOther(fileBytes) || this.dropOldest(fileBytes)) continue;
      // Room for one is all that is worth ending somebody's wish.
      if (this.#isMoving || soon() >= bytes || !this.#relieve(bytes)) break;
    }
    if (soon() >= bytes) return "later";
    if (removals.haveFailed) return removals.underWay > 0 ? "later" : "never";
    return this.#isMoving || removals.underWay >= REMOVALS_MAX ? "later" : "never";
  }

  /** Whether something under way may give room, or come to be what can be dropped. */
  get #isMoving(): boolean {
    return this.#writingBytes > 0 || this.#spares.areComing;
  }

  /**
   * Everything is protected: ends soft pins until something is not; false where that comes to
   * nothing. Pins and leases stay: what they keep elsewhere stays in RAM, and what nobody keeps
   * need not be here.
   */
  #relieve(bytes: number): boolean {
    const { table, relieve, log } = this.#parts;
    const blocks = table.residentBlocks(Tier.ssd);
    const why =
      `all ${blocks} blocks on SSD are held, ${this.usedBytes} of ${this.#capacityBytes} bytes ` +
      `are in use, ${bytes} more are needed`;
    const isKept = () => table.keptBytes > table.keptInRamAloneBytes;
    for (let reliefs = 0; reliefs < RELIEFS && isKept() && relieve(why); reliefs++) {
      if (table.oldest(Tier.ssd) !== NO_NODE) return true;
    }
    if (!this.#isStuck) log("warn", "nothing on SSD may make room for new blocks", { why });
    this.#isStuck = true;
    return false;
  }

  /** False where `reserve` would say `never`. Changes nothing but soft pins, as that would. */
  mayReserve(payloadBytes: number): boolean {
    const { removals } = this;
    const bytes = this.allocatedOf(payloadBytes);
    if (bytes > this.#capacityBytes) return false;
    if (this.#usedSoonBytes - this.#spares.bytes + bytes <= this.#capacityBytes) return true;
    if (removals.underWay > 0) return true;
    if (removals.haveFailed) return false;
    if (this.#writingBytes > 0 || this.#parts.table.oldest(Tier.ssd) !== NO_NODE) return true;
    return this.#relieve(bytes);
  }

  /**
   * Drops the block that was used longest ago; false where all are protected. Its file is kept as a
   * spare one where it has a length of `fileBytes`.
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

  /**
   * Resolves when what is on its way out now is gone, or could not be removed. Spare files are on
   * their way out: their bytes are of blocks that somebody may want to be gone.
   */
  async removalsOver(): Promise<void> {
    await this.removals.over();
    if (this.discardSpares()) await this.removals.over();
  }

  /** From now on `hasLeft` tells whether the block has left SSD since; one block at a time. */
  watch(node: NodeId): void {
    this.#watched = node;
  }

  get hasLeft(): boolean {
    return this.#watched === NO_NODE;
  }

  /**
   * Takes a block off the tier: out of the table at once, its file and its row after that. True
   * when the file is gone; false where it could not be removed, which is tried again later. The
   * node may vanish.
   */
  drop(node: NodeId, cause: Cause = EVICTED): Promise<boolean> {
    const { table, files } = this.#parts;
    const path = files.pathOf(node);
    const digest = files.digestOf(node);
    const layer = table.layerOf(node);
    const bytes = this.#leave(node, cause);
    return this.removals.remove(path, bytes, () => this.#parts.index.remove(digest, layer));
  }

  /** As `drop`, but the file becomes a spare one: its name goes, which is all that a start sees. */
  #recycle(node: NodeId): Promise<boolean> {
    const { table, files, disk, schedule, index } = this.#parts;
    const path = files.pathOf(node);
    const digest = files.digestOf(node);
    const layer = table.layerOf(node);
    const fileBytes = fileBytesOf(table.bytesOf(node));
    const bytes = this.#leave(node, EVICTED);
    const spare = this.#spares.nameFor(path);
    this.#spares.expect(fileBytes, bytes);
    // Its bytes count as a spare file's from now on.
    return this.removals.track(path, 0, async () => {
      const moved = await schedule.run("remove", () => disk.rename(path, spare));
      const isThere = moved?.ok === true;
      this.#spares.came(fileBytes, bytes, isThere ? spare : null);
      if (isThere) {
        this.removals.gone(() => index.remove(digest, layer));
        return true;
      }
      // Where the new name came and the old one stayed, both must go.
      void this.removals.remove(spare, 0, () => undefined);
      return this.removals.remove(path, bytes, () => index.remove(digest, layer));
    });
  }

  /** Removes a spare file that room was set aside with: it was not used, or in vain. */
  async discardSpare(path: string, payloadBytes: number): Promise<void> {
    await this.removals.remove(path, this.allocatedOf(payloadBytes), () => undefined);
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
    void this.removals.remove(spare.path, spare.bytes, () => undefined);
    return true;
  }

  /** Whether files of this run may be spare. */
  get hasSpares(): boolean {
    return this.#spares.areUsed;
  }

  /** The table forgets that the block is on SSD; how many bytes its file has. */
  #leave(node: NodeId, cause: Cause): number {
    const { table, files, departures, lost } = this.#parts;
    const bytes = this.allocatedOf(table.bytesOf(node));
    if (node === this.#watched) this.#watched = NO_NODE;
    files.forget(node);
    const isLast = !table.isResident(node, Tier.ram);
    const loss = isLast && table.isKept(node) ? LOSSES[cause.reason] : undefined;
    if (isLast) departures.note(table, node, "ssd", cause);
    table.removeResidency(node, Tier.ssd);
    this.#residentBytes -= bytes;
    if (loss !== undefined) lost(node, loss);
    return bytes;
  }

  /** Moves the file of a block that is not what it should be out of the way, and forgets it. */
  quarantine(node: NodeId): Promise<boolean> {
    const { table, files, disk, schedule, index, clock } = this.#parts;
    const path = files.pathOf(node);
    const digest = files.digestOf(node);
    const layer = table.layerOf(node);
    const bytes = this.#leave(node, { reason: "quarantined", by: null });
    const to = quarantinePath(path, clock.wallMs());
    if (this.#quarantinedFiles >= QUARANTINED_MAX) {
      return this.removals.remove(path, bytes, () => index.remove(digest, layer));
    }
    this.#quarantinedFiles++;
    return this.removals.track(path, bytes, async () => {
      const moved = await schedule.run("remove", () => disk.rename(path, to));
      crashPoint("room.quarantined");
      if (moved?.ok === true) {
        this.removals.counts();
        this.#quarantinedBytes += bytes;
        index.remove(digest, layer);
        return true;
      }
      this.#quarantinedFiles--;
      return this.removals.unlink(path, bytes, () => index.remove(digest, layer));
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

  /** Resolves when no file is on its way out. */
  settled(): Promise<void> {
    return this.removals.settled();
  }

  /** Drops what is above the cap, which may be lower than at the last start; a slice of it. */
  trim(): void {
    if (this.#usedSoonBytes > this.#capacityBytes) this.discardSpares();
    for (let i = 0; i < DROPS_A_SLICE && this.#usedSoonBytes > this.#capacityBytes; i++) {
      if (this.removals.haveFailed || !this.dropOldest()) return;
    }
  }

  /** Drops what nobody used for `ttlSeconds`, the oldest first; a slice of it. */
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

/** Removals that failed are tried again, so many at once, after a wait that doubles. */
const RETRIES_A_SLICE = 64;
const RETRY_FIRST_MS = 250;
const RETRY_LAST_MS = 30_000;

/**
 * Files on their way out, and those that could not be removed: their bytes count until they are
 * gone, and a new file of the name waits for that.
 */
class Removals {
  readonly #parts: SsdParts;
  readonly #underWay = new Map<string, Promise<boolean>>();
  #bytes = 0;
  readonly #failed: { readonly path: string; readonly bytes: number }[] = [];
  #failedBytes = 0;
  /** Files that are gone, and how many of them surely stay so when the power goes. */
  #done = 0;
  #durable = -1;
  #retryMs = RETRY_FIRST_MS;
  #retryAtMs = 0;
  /** Called whenever a removal gave room back. */
  onRoom: () => void = () => undefined;

  constructor(parts: SsdParts) {
    this.#parts = parts;
  }

  /** Bytes of files on their way out, and of those that could not be removed. */
  get bytes(): number {
    return this.#bytes;
  }
  get failedBytes(): number {
    return this.#failedBytes;
  }

  /** Files on their way out. */
  get underWay(): number {
    return this.#underWay.size;
  }

  get haveFailed(): boolean {
    return this.#failed.length > 0;
  }

  /** Files that are to go and could not be removed so far. */
  stuckPaths(): string[] {
    return this.#failed.map(({ path }) => path);
  }

  /** Whether a file of this name is on its way out. */
  isRemoving(path: string): boolean {
    return this.#underWay.has(path);
  }

  /** Resolves when no removal of this name is under way. */
  async whenRemoved(path: string): Promise<void> {
    while (this.#underWay.has(path)) await this.#underWay.get(path);
  }

  /** Resolves when what is on its way out now is gone, or could not be removed. */
  async over(): Promise<void> {
    await Promise.all(this.#underWay.values());
  }

  /** Resolves when no file is on its way out. */
  async settled(): Promise<void> {
    while (this.#underWay.size > 0) await this.over();
  }

  /** Files removed so far. */
  get done(): number {
    return this.#done;
  }

  /** Of the files removed so far, the first `done` do not come back after a loss of power. */
  noteDurable(done: number): void {
    this.#durable = Math.max(this.#durable, done);
  }

  /** A file that was removed may come back after a loss of power: of an earlier run, too. */
  get areVolatile(): boolean {
    return this.#durable < this.#done;
  }

  /** Removes a file that counts `bytes`. */
  remove(path: string, bytes: number, then: () => void): Promise<boolean> {
    return this.track(path, bytes, () => this.unlink(path, bytes, then));
  }

  /** The file at `path`, of so many bytes, is on its way out as long as `work` takes. */
  track(path: string, bytes: number, work: () => Promise<boolean>): Promise<boolean> {
    this.#bytes += bytes;
    const done = work().finally(() => {
      this.#bytes -= bytes;
      if (this.#underWay.get(path) === done) this.#underWay.delete(path);
      this.onRoom();
    });
    this.#underWay.set(path, done);
    return done;
  }

  /** Part of a tracked removal: takes the file away. */
  async unlink(path: string, bytes: number, then: () => void): Promise<boolean> {
    const { disk, schedule, log } = this.#parts;
    const removed = await schedule.run("remove", () => disk.remove(path));
    if (removed !== null && (removed.ok || removed.status === "missing")) {
      this.gone(then);
      return true;
    }
    const status = removed?.status ?? "given up";
    if (this.#failed.length === 0) log("warn", "a file could not be removed", { path, status });
    // Its bytes still count: the cap holds, whatever the disk does.
    this.#failedBytes += bytes;
    this.#failed.push({ path, bytes });
    return false;
  }

  /** A file is not to be found under its name any more. */
  gone(then: () => void): void {
    this.#retryMs = RETRY_FIRST_MS;
    this.counts();
    crashPoint("room.removed");
    then();
    crashPoint("room.row-removed");
  }

  /** One file more is gone. */
  counts(): void {
    this.#done++;
  }

  /** Tries again some of what could not be removed, where it is time for that. */
  retry(): void {
    const nowMs = this.#parts.clock.monotonicMs();
    if (this.#failed.length === 0 || nowMs < this.#retryAtMs) return;
    this.#retryAtMs = nowMs + this.#retryMs;
    this.#retryMs = Math.min(RETRY_LAST_MS, this.#retryMs * 2);
    for (const { path, bytes } of this.#failed.splice(0, RETRIES_A_SLICE)) {
      this.#failedBytes -= bytes;
      void this.remove(path, bytes, () => undefined);
    }
  }
}

interface Spare {
  readonly path: string;
  /** As the file system counts them. */
  readonly bytes: number;
}

/**
 * Files of evicted blocks that wait to be overwritten by blocks of the same length: a drive takes
 * new bytes in old places several times faster than in new ones. Each has the name of a leftover,
 * so that nobody ever takes it for a block, and what a crash leaves of it is removed at the start.
 */
class SpareFiles {
  /** By the length of the file. */
  readonly #files = new Map<number, Spare[]>();
  readonly #coming = new Map<number, number>();
  #bytes = 0;
  #comingCount = 0;
  #named = 0;

  /** What the spare files take, and those that are being renamed to become spare. */
  get bytes(): number {
    return this.#bytes;
  }

  get areComing(): boolean {
    return this.#comingCount > 0;
  }

  /** Whether there ever was one in this run. */
  get areUsed(): boolean {
    return this.#named > 0;
  }

  /** Of this length, those that are there and those to come. */
  countOf(fileBytes: number): number {
    return (this.#files.get(fileBytes)?.length ?? 0) + (this.#coming.get(fileBytes) ?? 0);
  }

  /** The name under which the file at `path` is to wait: its folder stays the same. */
  nameFor(path: string): string {
    const folder = path.slice(0, path.lastIndexOf("/"));
    return `${folder}/.${(this.#named++).toString(36)}.tmp`;
  }

  expect(fileBytes: number, bytes: number): void {
    this.#coming.set(fileBytes, (this.#coming.get(fileBytes) ?? 0) + 1);
    this.#comingCount++;
    this.#bytes += bytes;
  }

  /** What was expected is there under `path`, or, where that is null, will not come. */
  came(fileBytes: number, bytes: number, path: string | null): void {
    this.#coming.set(fileBytes, this.#coming.get(fileBytes)! - 1);
    this.#comingCount--;
    if (path === null) {
      this.#bytes -= bytes;
      return;
    }
    const files = this.#files.get(fileBytes) ?? [];
    files.push({ path, bytes });
    this.#files.set(fileBytes, files);
  }

  /** One of this length, no longer spare; null where there is none. */
  take(fileBytes: number): Spare | null {
    const files = this.#files.get(fileBytes);
    const spare = files?.pop();
    if (files?.length === 0) this.#files.delete(fileBytes);
    if (spare === undefined) return null;
    this.#bytes -= spare.bytes;
    return spare;
  }

  /** One of any length but this; null where there is none. */
  takeOther(fileBytes: number): Spare | null {
    for (const length of this.#files.keys()) if (length !== fileBytes) return this.take(length);
    return null;
  }
}
