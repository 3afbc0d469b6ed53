import type { Bus } from "../../bus/index.ts";
import { type Clock, loopTurns, TokenBuckets, TurnQueue } from "../../core/index.ts";
import type { ResidencyBatch } from "../../observability/activity/index.ts";
import {
  decodeQuery,
  encodeAnswer,
  encodeBatch,
  encodeHeartbeat,
  eventsSubject,
  fitRange,
  queriesSubject,
  RESIDENCY_LIMITS,
  type ResidencyAnswer,
  type ResidencyQuery,
  splitBatch,
} from "../index.ts";
import type { ResidencyLog } from "./residency-log.ts";
import { partOf, Snapshots } from "./snapshots.ts";

export interface BusPublisherOptions {
  readonly residency: ResidencyLog;
  /** The bus to publish on. The caller owns it; the publisher does not close it. */
  readonly bus: Bus;
  readonly cluster: string;
  readonly clock: Clock;
  /**
   * False if batches are published elsewhere. This publisher then sends only heartbeats and
   * replies.
   */
  readonly sendsBatches: boolean;
}

export type BusPublisherState = BusPublisher["state"];

const KIB = 1_024;
/** Maximum bytes of a reply, even if the broker accepts more. */
const ANSWER_BYTES_MAX = 1_024 * KIB;
/**
 * Bytes of the broker's message limit that stay unused, for headers and the broker's accounting.
 */
const SPARE_BYTES = 4 * KIB;
/**
 * Header that keeps a reply out of streams: JetStream does not store a message that expects a
 * stream of another name.
 */
const NOT_KEPT = { "Nats-Expected-Stream": "none" };
/**
 * Smallest message limit that is respected. If the broker's limit is smaller, this value is used
 * instead.
 */
const MESSAGE_BYTES_MIN = 128 * KIB;
/** Maximum queries per second, and in one burst. A router sends some hundred after a gap. */
const QUESTIONS_PER_SECOND = 1_000;
const QUESTIONS_AT_ONCE = 2_000;
const QUESTIONS_BYTES_MAX = 1_024 * KIB;

interface Question {
  readonly reply: string;
  readonly data: Uint8Array;
}

/**
 * Publishes the residency changes of one rank on NATS core: changes as they happen, a heartbeat at
 * intervals and after each reconnection, and replies to queries for missed changes. Queues nothing
 * while the broker is disconnected, because consumers detect gaps by change number and query for
 * the missing changes.
 */
export class BusPublisher implements AsyncDisposable {
  readonly snapshots: Snapshots;
  readonly #options: BusPublisherOptions;
  readonly #subject: string;
  readonly #queryHandler: QueryHandler;
  readonly #rate = new TokenBuckets();
  readonly #questions = new TurnQueue<Question>({
    source: loopTurns.source(),
    itemsMax: QUESTIONS_AT_ONCE,
    bytesMax: QUESTIONS_BYTES_MAX,
    settles: true,
    run: (question) => void this.#answer(question),
  });
  readonly #ends: (() => void)[] = [];
  readonly #counts = {
    /** Sent messages that contain changes. */
    sent: 0,
    /**
     * Messages with changes that were not sent, because there was no connection or the queue was
     * full. Consumers query for those changes later.
     */
    unsent: 0,
    heartbeats: 0,
  };
  #isOver = false;

  constructor(options: BusPublisherOptions) {
    const { residency, bus, cluster, clock, sendsBatches } = options;
    this.#options = options;
    this.#subject = eventsSubject(cluster, residency.source);
    const answerBytesMax = () => messageBytesMax(bus, ANSWER_BYTES_MAX);
    this.snapshots = new Snapshots({ residency, clock, partBytesMax: answerBytesMax });
    this.#queryHandler = new QueryHandler({
      residency,
      snapshots: this.snapshots,
      clock,
      answerBytesMax,
    });
    const asked = bus.subscribe(queriesSubject(cluster, residency.source), ({ reply, data }) => {
      if (reply !== null) this.#take({ reply, data });
    });
    const beats = clock.every(residency.everyMs, () => this.beat());
    const connects = bus.onStatus(({ status }) => {
      if (status === "connected") this.beat();
    });
    const knows = residency.onDeviceKnown(() => this.beat());
    const listens = sendsBatches ? residency.listen((batch) => this.#send(batch)) : null;
    this.#ends.push(
      () => asked.unsubscribe(),
      () => beats[Symbol.dispose](),
      () => connects[Symbol.dispose](),
      () => knows[Symbol.dispose](),
      () => listens?.[Symbol.dispose](),
    );
    this.beat();
  }

  get residency(): ResidencyLog {
    return this.#options.residency;
  }

  get state() {
    const questions = this.#queryHandler.counts;
    return { ...this.#counts, questions, snapshots: this.snapshots.made };
  }

  beat(isClosing = false): void {
    if (this.#isOver || !this.#isConnected) return;
    const { residency, bus, clock } = this.#options;
    const data = encodeHeartbeat(residency.heartbeat(isClosing), clock.wallMs());
    bus.publish(this.#subject, data, { isSpare: true, headers: NOT_KEPT });
    this.#counts.heartbeats++;
  }

  /** Publishes a last heartbeat with `isClosing`, then stops. */
  async [Symbol.asyncDispose](): Promise<void> {
    if (this.#isOver) return;
    this.beat(true);
    this.#isOver = true;
    for (const end of this.#ends) end();
    this.#questions[Symbol.dispose]();
    this.snapshots.end();
  }

  get #isConnected(): boolean {
    return this.#options.bus.state.status === "connected";
  }

  #send(batch: ResidencyBatch): void {
    const { bus, clock } = this.#options;
    const bytesMax = messageBytesMax(bus, Number.POSITIVE_INFINITY);
    for (const part of splitBatch(batch, bytesMax)) {
      const isGone = this.#isConnected
        ? bus.publish(this.#subject, encodeBatch(part, clock.wallMs()), { isSpare: true }) ===
          "dropped"
        : true;
      if (isGone) this.#counts.unsent++;
      else this.#counts.sent++;
    }
  }

  #take(question: Question): void {
    const nowMs = this.#options.clock.monotonicMs();
    const isInRate = this.#rate.take("", nowMs, QUESTIONS_PER_SECOND, QUESTIONS_AT_ONCE);
    if (isInRate && this.#questions.push(question, question.data.length)) return;
    this.#queryHandler.counts.dropped++;
  }

  async #answer({ reply, data }: Question): Promise<void> {
    const answer = await this.#queryHandler.answer(data);
    if (this.#isOver) return;
    // `isSpare` lets the bus drop this reply first if its queue is full: the consumer repeats its
    // query, but receipts of commands are not sent twice.
    this.#options.bus.publish(reply, answer, { isSpare: true });
  }
}

/** Returns the maximum bytes of a message that the broker accepts, at most `most`. */
export function messageBytesMax(bus: Bus, most: number): number {
  return Math.min(most, Math.max(MESSAGE_BYTES_MIN, bus.payloadBytesMax - SPARE_BYTES));
}

interface QueryHandlerOptions {
  readonly residency: ResidencyLog;
  readonly snapshots: Snapshots;
  readonly clock: Clock;
  /** Returns the maximum bytes of one reply. */
  readonly answerBytesMax: () => number;
}

/** Maximum bytes of replies per second, and in one burst. Further queries wait. */
const BYTES_PER_SECOND = 64 * 2 ** 20;
const BYTES_AT_ONCE = 128 * 2 ** 20;
/** Maximum queries that wait for a snapshot at the same time. */
const WAITING_MAX = 64;
const RETRY_MS = 500;

/** Handles queries of consumers for changes and snapshots of one rank. */
export class QueryHandler {
  readonly counts = {
    ranges: 0,
    snapshotParts: 0,
    /** Queries for changes that the ring has evicted. */
    evicted: 0,
    busy: 0,
    refused: 0,
    /** Queries above the rate limit. They get no reply, so that the consumer repeats them. */
    dropped: 0,
  };
  readonly #options: QueryHandlerOptions;
  #room = BYTES_AT_ONCE;
  #roomMs: number;
  #waiting = 0;

  constructor(options: QueryHandlerOptions) {
    this.#options = options;
    this.#roomMs = options.clock.monotonicMs();
  }

  /** Decodes a query and returns the encoded reply. Never rejects. */
  async answer(bytes: Uint8Array): Promise<Uint8Array> {
    const encoded = encodeAnswer(await this.#answerTo(bytes));
    this.#room -= encoded.length;
    return encoded;
  }

  async #answerTo(bytes: Uint8Array): Promise<ResidencyAnswer> {
    const { residency } = this.#options;
    const { source } = residency;
    const read = decodeQuery(bytes);
    if (!read.ok) return this.#refuse(read.why);
    if (!this.#hasRoom()) return this.#busy();
    const question = read.value;
    const { incarnation } = question;
    if (incarnation !== null && incarnation !== source.incarnation) {
      return { kind: "other_incarnation", source };
    }
    return question.kind === "range" ? this.#range(question) : this.#snapshot(question);
  }

  #range({ from, to }: ResidencyQuery & { kind: "range" }): ResidencyAnswer {
    const { residency, answerBytesMax } = this.#options;
    const { source, ring } = residency;
    if (from < 1 || (to !== null && to < from))
      return this.#refuse("from and to are not a valid range");
    residency.flush();
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
  }: ResidencyQuery & { kind: "snapshot" }): Promise<ResidencyAnswer> {
    const { source } = this.#options.residency;
    const { snapshots } = this.#options;
    if (id === null && part !== 0) return this.#refuse("a new snapshot must begin with part 0");
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
    return { kind: "busy", source: this.#options.residency.source, retryMs: RETRY_MS };
  }

  #hasRoom(): boolean {
    const nowMs = this.#options.clock.monotonicMs();
    const more = ((nowMs - this.#roomMs) / 1_000) * BYTES_PER_SECOND;
    this.#room = Math.min(BYTES_AT_ONCE, this.#room + more);
    this.#roomMs = nowMs;
    return this.#room > 0;
  }
}
