import { type Clock, messageOf, type NamespaceIndex, type Random } from "../../core/index.ts";
import type { PeerBlocks } from "../../store/index.ts";
import type { TransportLog } from "../transport.ts";
import { type KeyFilter, KeyFilterBuilder } from "../wire/index.ts";
import type { ServeLimits } from "./serve-limits.ts";

/** Filters are kept of so many namespaces, those asked for last. */
const SUMMARIES_MAX = 64;
const BYTES_MAX = 64 * 2 ** 20;
/** Blocks may come while keys are counted; after so many tries it is good enough. */
const TRIES_MAX = 3;

export interface Summary {
  /** Another number than that of any other filter of this host, also after a restart. */
  readonly version: bigint;
  readonly filter: KeyFilter;
  readonly madeMs: number;
  /** `changesOf` before the first key was looked at. */
  readonly changes: number;
}

export interface SummariesParts {
  readonly blocks: PeerBlocks;
  readonly clock: Clock;
  readonly random: Random;
  readonly log: TransportLog;
  readonly onBuilt: () => void;
}

/**
 * Filters of what this host has, by namespace. One is made at a time, at most every few seconds for
 * a namespace, and by one walk over its blocks as a rule.
 */
export class Summaries {
  readonly #parts: SummariesParts;
  readonly #latest = new Map<NamespaceIndex, Summary>();
  readonly #making = new Map<NamespaceIndex, Promise<Summary | null>>();
  readonly #ended = new AbortController();
  /** Of those that were made before this process began, none has these upper 32 bits, probably. */
  readonly #era: bigint;
  #made = 0;
  #queue: Promise<unknown> = Promise.resolve();

  constructor(parts: SummariesParts) {
    this.#parts = parts;
    this.#era = BigInt(parts.random.u32() || 1) << 32n;
  }

  /** The filter to give now; null: it could not be made. */
  async get(namespace: NamespaceIndex, limits: ServeLimits): Promise<Summary | null> {
    const latest = this.#latest.get(namespace);
    if (latest !== undefined && !this.#isDue(namespace, latest, limits)) {
      // Used last: it is the last to go.
      this.#latest.delete(namespace);
      this.#latest.set(namespace, latest);
      return latest;
    }
    const making = this.#making.get(namespace) ?? this.#begin(namespace);
    return (await making) ?? latest ?? null;
  }

  end(): void {
    this.#ended.abort();
  }

  #isDue(namespace: NamespaceIndex, latest: Summary, limits: ServeLimits): boolean {
    const ageMs = this.#parts.clock.monotonicMs() - latest.madeMs;
    if (ageMs < limits.summaryMs) return false;
    const hasNew = this.#parts.blocks.changesOf(namespace) !== latest.changes;
    return hasNew || ageMs >= limits.summaryStaleMs;
  }

  #begin(namespace: NamespaceIndex): Promise<Summary | null> {
    const making = this.#queue.then(() => this.#make(namespace));
    this.#making.set(namespace, making);
    this.#queue = making;
    return making;
  }

  /** Never rejects. */
  async #make(namespace: NamespaceIndex): Promise<Summary | null> {
    const { blocks, log } = this.#parts;
    const before = this.#latest.get(namespace);
    try {
      const changes = blocks.changesOf(namespace);
      const filter = await this.#walk(namespace, before?.filter.keys ?? 0);
      if (this.#ended.signal.aborted) return null;
      const isSame =
        before !== undefined && Buffer.compare(before.filter.bytes, filter.bytes) === 0;
      const version = isSame ? before.version : this.#era + BigInt(++this.#made);
      const madeMs = this.#parts.clock.monotonicMs();
      return this.#keep(namespace, { version, filter, changes, madeMs });
    } catch (thrown) {
      if (this.#ended.signal.aborted) return null;
      log("error", `a summary could not be made: ${messageOf(thrown)}`, {});
      return null;
    } finally {
      this.#making.delete(namespace);
    }
  }

  async #walk(namespace: NamespaceIndex, expected: number): Promise<KeyFilter> {
    const { blocks, onBuilt } = this.#parts;
    for (let tries = 1; ; tries++) {
      const builder = new KeyFilterBuilder(expected);
      await blocks.eachKey(namespace, (key) => builder.add(key), this.#ended.signal);
      if (!builder.overfull || tries === TRIES_MAX) {
        onBuilt();
        return builder.done();
      }
      expected = builder.keys;
    }
  }

  #keep(namespace: NamespaceIndex, summary: Summary): Summary {
    this.#latest.delete(namespace);
    this.#latest.set(namespace, summary);
    let bytes = 0;
    for (const { filter } of this.#latest.values()) bytes += filter.bytes.length;
    for (const [oldest, { filter }] of this.#latest) {
      if (oldest === namespace) break;
      if (this.#latest.size <= SUMMARIES_MAX && bytes <= BYTES_MAX) break;
      this.#latest.delete(oldest);
      bytes -= filter.bytes.length;
    }
    return summary;
  }
}
