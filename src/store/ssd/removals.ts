import { crashPoint } from "../../native/index.ts";
import type { SsdParts } from "./ssd-parts.ts";

/** Removals that failed are tried again, so many at once, after a wait that doubles. */
const RETRIES_A_SLICE = 64;
const RETRY_FIRST_MS = 250;
const RETRY_LAST_MS = 30_000;

/**
 * Files on their way out, and those that could not be removed: their bytes count until they are
 * gone, and a new file of the name waits for that.
 */
export class Removals {
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
