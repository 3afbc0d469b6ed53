import type { Clock } from "../../core/index.ts";
import {
  decodeQuestion,
  encodeAnswer,
  fitRange,
  RESIDENCY_LIMITS,
  type ResidencyAnswer,
  type ResidencyQuestion,
} from "../index.ts";
import type { ResidencyFeed } from "./residency-feed.ts";
import { partOf, type Snapshots } from "./snapshots.ts";

export interface DeskOptions {
  readonly feed: ResidencyFeed;
  readonly snapshots: Snapshots;
  readonly clock: Clock;
  /** Bytes of an answer. */
  readonly answerBytesMax: () => number;
}

export interface DeskCounts {
  ranges: number;
  snapshotParts: number;
  /** Ranges that were not kept any more. */
  evicted: number;
  busy: number;
  refused: number;
  /** Beyond the rate at which questions are read: without an answer, so that they come again. */
  dropped: number;
}

/** Bytes of answers a second, and at once: whoever asks for more waits. */
const BYTES_PER_SECOND = 64 * 2 ** 20;
const BYTES_AT_ONCE = 128 * 2 ** 20;
/** Snapshots that may be waited for at the same time. */
const WAITING_MAX = 64;
const RETRY_MS = 500;

/** Answers what anybody may ask of one rank, whatever it is. */
export class QuestionDesk {
  readonly counts: DeskCounts = {
    ...{ ranges: 0, snapshotParts: 0, evicted: 0, busy: 0, refused: 0, dropped: 0 },
  };
  readonly #options: DeskOptions;
  #room = BYTES_AT_ONCE;
  #roomMs: number;
  #waiting = 0;

  constructor(options: DeskOptions) {
    this.#options = options;
    this.#roomMs = options.clock.monotonicMs();
  }

  /** Never rejects. */
  async answer(bytes: Uint8Array): Promise<Uint8Array> {
    const encoded = encodeAnswer(await this.#answerTo(bytes));
    this.#room -= encoded.length;
    return encoded;
  }

  async #answerTo(bytes: Uint8Array): Promise<ResidencyAnswer> {
    const { feed } = this.#options;
    const { source } = feed;
    const read = decodeQuestion(bytes);
    if (!read.ok) return this.#refuse(read.why);
    if (!this.#hasRoom()) return this.#busy();
    const question = read.value;
    const { incarnation } = question;
    if (incarnation !== null && incarnation !== source.incarnation) {
      return { kind: "other_incarnation", source };
    }
    return question.kind === "range" ? this.#range(question) : this.#snapshot(question);
  }

  #range({ from, to }: ResidencyQuestion & { kind: "range" }): ResidencyAnswer {
    const { feed, answerBytesMax } = this.#options;
    const { source, ring } = feed;
    if (from < 1 || (to !== null && to < from)) return this.#refuse("that is no range");
    feed.flush();
    const { first: firstSequence, last: lastSequence } = ring;
    if (from > lastSequence) return { kind: "too_new", source, lastSequence };
    if (from < firstSequence) {
      this.counts.evicted++;
      return { kind: "evicted", source, firstSequence, lastSequence };
    }
    const most = from + RESIDENCY_LIMITS.packedChangesMax - 1;
    const kept = ring.slice(from, Math.min(to ?? lastSequence, lastSequence, most));
    const changes = fitRange(kept, 0, answerBytesMax());
    this.counts.ranges++;
    return { kind: "range", batch: { source, firstSequence: from, changes }, lastSequence };
  }

  async #snapshot({
    snapshot: id,
    part,
  }: ResidencyQuestion & { kind: "snapshot" }): Promise<ResidencyAnswer> {
    const { source } = this.#options.feed;
    const { snapshots } = this.#options;
    if (id === null && part !== 0) return this.#refuse("a snapshot begins with part 0");
    if (id === null && this.#waiting >= WAITING_MAX) return this.#busy();
    this.#waiting++;
    const snapshot = id === null ? await snapshots.take() : snapshots.find(id);
    this.#waiting--;
    if (snapshot === null) return id === null ? this.#busy() : { kind: "no_snapshot", source };
    if (part >= snapshot.parts.length) return { kind: "no_snapshot", source };
    this.counts.snapshotParts++;
    return partOf(snapshot, part);
  }

  #refuse(why: string): ResidencyAnswer {
    this.counts.refused++;
    return { kind: "refused", why };
  }

  #busy(): ResidencyAnswer {
    this.counts.busy++;
    return { kind: "busy", source: this.#options.feed.source, retryMs: RETRY_MS };
  }

  #hasRoom(): boolean {
    const nowMs = this.#options.clock.monotonicMs();
    const more = ((nowMs - this.#roomMs) / 1_000) * BYTES_PER_SECOND;
    this.#room = Math.min(BYTES_AT_ONCE, this.#room + more);
    this.#roomMs = nowMs;
    return this.#room > 0;
  }
}
