import type { Clock } from "../../core/index.ts";
import type { HealthSink } from "./ssd-parts.ts";

/** A damaged block is worth knowing of for an hour. */
const CORRUPT_MS = 3_600_000;
const SLOW_MS = 60_000;
const DESCRIPTORS_MS = 30_000;
/** Reasons with a condition of their own: the drive has no part in them, or is named by it. */
const NAMED: ReadonlySet<string> = new Set("no_space read_only no_descriptors replaced".split(" "));

/** Turns what the tier sees into conditions, and clears them when they are over. */
export class SsdHealth {
  readonly #sink: HealthSink;
  readonly #clock: Clock;
  #corruptMs = Number.NEGATIVE_INFINITY;
  #lateMs = Number.NEGATIVE_INFINITY;
  #corruptBlocks = 0;

  constructor(sink: HealthSink, clock: Clock) {
    this.#sink = sink;
    this.#clock = clock;
  }

  corrupt(path: string, why: string): void {
    this.#corruptMs = this.#clock.monotonicMs();
    this.#corruptBlocks++;
    const detail = `${this.#corruptBlocks} damaged since the start, last ${path}: ${why}`;
    this.#sink.raise("KV_SSD_CSUM", detail);
  }

  late(): void {
    this.#lateMs = this.#clock.monotonicMs();
    this.#sink.raise("KV_SSD_SLOW", "blocks were not read within their deadline");
  }

  update(now: {
    readonly hung: boolean;
    readonly writesStopped: string | null;
    readonly readsStopped: string | null;
    /** Why the folder is not the one at its path; null where it is. */
    readonly replaced: string | null;
  }): void {
    const nowMs = this.#clock.monotonicMs();
    if (nowMs - this.#corruptMs > CORRUPT_MS) this.#sink.clear("KV_SSD_CSUM");
    if (nowMs - this.#lateMs > SLOW_MS) this.#sink.clear("KV_SSD_SLOW");
    const { hung, writesStopped, readsStopped, replaced } = now;
    this.#set("KV_SSD_REPLACED", replaced !== null, replaced ?? "");
    if (writesStopped === "no_descriptors" || readsStopped === "no_descriptors") {
      const detail = "files on the SSD cannot be opened; tried again now and then";
      this.#sink.raise("FD_LIMIT", detail, { forMs: DESCRIPTORS_MS });
    }
    this.#set("KV_SSD_HUNG", hung, "operations on the SSD do not come back; RAM goes on alone");
    this.#set("KV_SSD_FULL", writesStopped === "no_space", "the file system is full");
    this.#set("KV_SSD_READ_ONLY", writesStopped === "read_only", "the file system is read-only");
    const isOwn = (why: string | null) => why !== null && !NAMED.has(why);
    const error = [readsStopped, writesStopped].find(isOwn) ?? null;
    const what = isOwn(readsStopped) ? "reads" : "writes";
    this.#set("KV_SSD_ERRORS", error !== null, `${what} fail (${error}); tried again now and then`);
  }

  #set(condition: Parameters<HealthSink["raise"]>[0], on: boolean, detail: string): void {
    if (on) this.#sink.raise(condition, detail);
    else this.#sink.clear(condition);
  }
}
