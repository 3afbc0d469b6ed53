import type { Bus } from "../../bus/index.ts";
import { type Clock, loopTurns, TokenBuckets, TurnQueue } from "../../core/index.ts";
import type { ResidencyBatch } from "../../observability/activity/index.ts";
import {
  encodeBatch,
  encodeHeartbeat,
  eventsSubject,
  questionsSubject,
  splitBatch,
} from "../index.ts";
import { type DeskCounts, QuestionDesk } from "./question-desk.ts";
import type { ResidencyFeed } from "./residency-feed.ts";
import { Snapshots } from "./snapshots.ts";

export interface BusPublisherOptions {
  readonly feed: ResidencyFeed;
  /** Not closed here. */
  readonly bus: Bus;
  readonly cluster: string;
  readonly clock: Clock;
  /** Off: batches go another way; heartbeats and answers still go out here. */
  readonly sendsBatches: boolean;
}

export interface BusPublisherState {
  /** Messages with changes that were sent. */
  readonly sent: number;
  /** Those that were not: no connection, or more waits than may. Who misses them asks. */
  readonly unsent: number;
  readonly heartbeats: number;
  readonly questions: Readonly<DeskCounts>;
  readonly snapshots: number;
}

const KIB = 1_024;
/** Answers are no larger than this, whatever the broker takes. */
const ANSWER_BYTES_MAX = 1_024 * KIB;
/** Left free in a message, for its headers and what the broker counts. */
const SPARE_BYTES = 4 * KIB;
/** A stream that keeps the subject does not take it: it has another name. */
const NOT_KEPT = { "Nats-Expected-Stream": "none" };
/** A broker that takes less than this is not spoken to in its own size. */
const MESSAGE_BYTES_MIN = 128 * KIB;
/** Questions that are read, a second and at once: a router asks some hundred after a gap. */
const QUESTIONS_PER_SECOND = 1_000;
const QUESTIONS_AT_ONCE = 2_000;
const QUESTIONS_BYTES_MAX = 1_024 * KIB;

interface Question {
  readonly reply: string;
  readonly data: Uint8Array;
}

/**
 * Speaks for one rank on NATS core: changes as they come, a heartbeat regularly and whenever the
 * connection is made anew, and answers to whoever missed something. Nothing waits for a broker that
 * is not there: numbers tell what was missed.
 */
export class BusPublisher implements AsyncDisposable {
  readonly snapshots: Snapshots;
  readonly #options: BusPublisherOptions;
  readonly #subject: string;
  readonly #desk: QuestionDesk;
  readonly #rate = new TokenBuckets();
  readonly #questions = new TurnQueue<Question>({
    ...{ source: loopTurns.source(), itemsMax: QUESTIONS_AT_ONCE, bytesMax: QUESTIONS_BYTES_MAX },
    settles: true,
    run: (question) => void this.#answer(question),
  });
  readonly #ends: (() => void)[] = [];
  #sent = 0;
  #unsent = 0;
  #heartbeats = 0;
  #isOver = false;

  constructor(options: BusPublisherOptions) {
    const { feed, bus, cluster, clock, sendsBatches } = options;
    this.#options = options;
    this.#subject = eventsSubject(cluster, feed.source);
    const answerBytesMax = () => messageBytesMax(bus, ANSWER_BYTES_MAX);
    this.snapshots = new Snapshots({ feed, clock, partBytesMax: answerBytesMax });
    this.#desk = new QuestionDesk({ feed, snapshots: this.snapshots, clock, answerBytesMax });
    const asked = bus.subscribe(questionsSubject(cluster, feed.source), ({ reply, data }) => {
      if (reply !== null) this.#take({ reply, data });
    });
    const beats = clock.every(feed.everyMs, () => this.beat());
    const connects = bus.onStatus(({ status }) => {
      if (status === "connected") this.beat();
    });
    const knows = feed.onDeviceKnown(() => this.beat());
    const listens = sendsBatches ? feed.listen((batch) => this.#send(batch)) : null;
    this.#ends.push(
      () => asked.unsubscribe(),
      () => beats[Symbol.dispose](),
      () => connects[Symbol.dispose](),
      () => knows[Symbol.dispose](),
      () => listens?.[Symbol.dispose](),
    );
    this.beat();
  }

  get feed(): ResidencyFeed {
    return this.#options.feed;
  }

  get state(): BusPublisherState {
    return {
      ...{ sent: this.#sent, unsent: this.#unsent, heartbeats: this.#heartbeats },
      questions: this.#desk.counts,
      snapshots: this.snapshots.made,
    };
  }

  beat(isClosing = false): void {
    if (this.#isOver || !this.#isConnected) return;
    const { feed, bus, clock } = this.#options;
    const data = encodeHeartbeat(feed.heartbeat(isClosing), clock.wallMs());
    bus.publish(this.#subject, data, { isSpare: true, headers: NOT_KEPT });
    this.#heartbeats++;
  }

  /** The last heartbeat says that it was the last one. */
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
      if (isGone) this.#unsent++;
      else this.#sent++;
    }
  }

  #take(question: Question): void {
    const nowMs = this.#options.clock.monotonicMs();
    const isInRate = this.#rate.take("", nowMs, QUESTIONS_PER_SECOND, QUESTIONS_AT_ONCE);
    if (isInRate && this.#questions.push(question, question.data.length)) return;
    this.#desk.counts.dropped++;
  }

  async #answer({ reply, data }: Question): Promise<void> {
    const answer = await this.#desk.answer(data);
    if (this.#isOver) return;
    // Who gets none asks again; receipts of commands are not sent twice.
    this.#options.bus.publish(reply, answer, { isSpare: true });
  }
}

/** Bytes of a message of ours, at most `most`. */
export function messageBytesMax(bus: Bus, most: number): number {
  return Math.min(most, Math.max(MESSAGE_BYTES_MIN, bus.payloadBytesMax - SPARE_BYTES));
}
