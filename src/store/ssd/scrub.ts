import { type Clock, NO_NODE, type NodeId, sleep } from "../../core/index.ts";
import type { Native, Region } from "../../native/index.ts";
import { Tier } from "../blocks/index.ts";
import { type BlockReader, tryRegion } from "./block-reader.ts";
import type { SsdParts } from "./ssd-parts.ts";

const IDLE_MS = 1_000;

/**
 * Reads everything on SSD over and over, from the device, to find what has rotted before somebody
 * asks for it. One block at a time, behind all other work, at so many bytes a second on average.
 */
export class Scrub {
  readonly #parts: SsdParts;
  readonly #reader: BlockReader;
  readonly #native: Native;
  readonly #clock: Clock;
  readonly #stop = new AbortController();
  #bytesPerS: number;
  #region: Region | null = null;
  #last: NodeId = NO_NODE;
  #running: Promise<void> = Promise.resolve();

  constructor(parts: SsdParts, reader: BlockReader, native: Native, bytesPerS: number) {
    this.#parts = parts;
    this.#reader = reader;
    this.#native = native;
    this.#clock = parts.clock;
    this.#bytesPerS = bytesPerS;
  }

  start(): void {
    this.#running = this.#run();
  }

  /** 0 pauses. */
  setRate(bytesPerS: number): void {
    this.#bytesPerS = bytesPerS;
  }

  async #run(): Promise<void> {
    const { signal } = this.#stop;
    while (!signal.aborted) {
      const bytes = this.#bytesPerS === 0 ? 0 : await this.#next();
      const waitMs = bytes === 0 ? IDLE_MS : (bytes / this.#bytesPerS) * 1_000;
      await sleep(this.#clock, waitMs, signal).catch(() => undefined);
    }
  }

  /** Scrubs the next block; its bytes, 0 where there is nothing to do now. */
  async #next(): Promise<number> {
    const { table, stats, schedule } = this.#parts;
    if (schedule.running > 0 && schedule.waiting("read") > 0) return 0;
    this.#last = table.nextOn(this.#last, Tier.ssd);
    if (this.#last === NO_NODE) return 0;
    const bytes = table.bytesOf(this.#last);
    const region = this.#regionFor(bytes);
    if (region === null) return 0;
    const verdict = await this.#reader.scrub(this.#last, region);
    if (verdict === "unserved") return 0;
    if (verdict === "bad_memory") {
      region[Symbol.dispose]();
      this.#region = null;
    }
    stats.scrubbedBlocks++;
    stats.scrubbedBytes += bytes;
    return bytes;
  }

  /** Null where the host has no memory for it now. */
  #regionFor(bytes: number): Region | null {
    if (this.#region !== null && this.#region.bytes >= bytes) return this.#region;
    this.#region?.[Symbol.dispose]();
    this.#region = null;
    this.#region = tryRegion(this.#native, bytes);
    return this.#region;
  }

  /** Ends it; a read that hangs is not waited for longer than `ms`, and keeps its memory. */
  async stop(ms: number): Promise<void> {
    this.#stop.abort();
    const late = Promise.withResolvers<boolean>();
    using _timer = this.#clock.after(ms, () => late.resolve(false));
    const over = this.#running.then(() => true);
    if (await Promise.race([over, late.promise])) this.#region?.[Symbol.dispose]();
  }
}
