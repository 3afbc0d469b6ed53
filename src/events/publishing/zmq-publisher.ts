import { type Clock, type Random, sleep } from "../../core/index.ts";
import { type EngineEvent, encodeEngineBatch } from "../index.ts";
import {
  bindPublisher,
  bindRouter,
  type ZmtpMessage,
  type ZmtpPublisher,
  type ZmtpReply,
  type ZmtpRouter,
} from "../zmtp/index.ts";

export interface ZmqPublisherOptions {
  /**
   * Endpoint to bind for publishing. The replay endpoint is null if no messages are kept for
   * replay.
   */
  readonly endpoint: string;
  readonly replay: string | null;
  readonly topic: string;
  readonly rank: number;
  readonly clock: Clock;
  readonly random: Random;
}

export type ZmqPublisherState = ZmqPublisher["state"];

/** Limits of the replay buffer: number of batches (`buffer_steps` in vLLM), and bytes. */
const KEPT_BATCHES = 10_000;
const KEPT_BYTES = 64 * 2 ** 20;
const SLACK = 1.1;
/** Maximum events in one message. */
const EVENTS_MAX = 512;
/** Maximum concurrent replays. Further requests get no reply; clients repeat them. */
const REPLAYS_MAX = 8;
/**
 * A replay is aborted if its client has read nothing for this many ms. The client must repeat its
 * request.
 */
const STALL_MS = 5_000;
const PAUSE_MS = 10;

const EMPTY = new Uint8Array(0);
const END = new Uint8Array(8).fill(0xff);

/**
 * Publishes engine events in vLLM's ZMQ format (events as maps). A message consists of topic,
 * sequence number from 0 (eight bytes, big-endian) and batch. The first message is a clear, for
 * subscribers that received an earlier run. Replays are sent as in vLLM since 0.26: topic, number
 * and batch of each kept message, then the end marker.
 */
export class ZmqPublisher implements AsyncDisposable {
  readonly #options: ZmqPublisherOptions;
  readonly #publisher: ZmtpPublisher;
  readonly #topic: Uint8Array;
  #router: ZmtpRouter | null = null;
  #kept: Uint8Array[] = [];
  /** Sequence number of the oldest message kept for replay. */
  #first = 0;
  #bytes = 0;
  #replaying = 0;
  #replays = 0;
  #isOver = false;

  private constructor(options: ZmqPublisherOptions, publisher: ZmtpPublisher) {
    this.#options = options;
    this.#publisher = publisher;
    this.#topic = new TextEncoder().encode(options.topic);
  }

  /** Binds the endpoints. Throws ZMTP_UNAVAILABLE if that fails. */
  static async open(options: ZmqPublisherOptions): Promise<ZmqPublisher> {
    const { endpoint, replay, clock, random } = options;
    const common = { clock, random };
    const publisher = new ZmqPublisher(options, await bindPublisher({ endpoint, ...common }));
    try {
      if (replay !== null) {
        const onMessage = (message: ZmtpMessage, reply: ZmtpReply) =>
          void publisher.#replay(message, reply);
        publisher.#router = await bindRouter({ endpoint: replay, ...common, onMessage });
      }
    } catch (thrown) {
      await publisher[Symbol.asyncDispose]();
      throw thrown;
    }
    publisher.publish([{ kind: "cleared", ownership: null }]);
    return publisher;
  }

  /** State of the publisher. `sent`: messages so far. */
  get state() {
    const { endpoint, subscribers, dropped } = this.#publisher;
    const sent = this.#first + this.#kept.length;
    const replay = this.#router?.endpoint ?? null;
    return { endpoint, replay, subscribers, dropped, sent, replays: this.#replays };
  }

  publish(events: readonly EngineEvent[]): void {
    const { rank, clock } = this.#options;
    for (let at = 0; at < events.length && !this.#isOver; at += EVENTS_MAX) {
      const part = events.slice(at, at + EVENTS_MAX);
      const batch = encodeEngineBatch({ seconds: clock.wallMs() / 1_000, rank, events: part });
      const number = this.#first + this.#kept.length;
      this.#keep(batch);
      this.#publisher.publish([this.#topic, numberOf(number), batch]);
    }
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#isOver = true;
    await this.#router?.[Symbol.asyncDispose]();
    await this.#publisher[Symbol.asyncDispose]();
  }

  #keep(batch: Uint8Array): void {
    if (this.#options.replay === null) {
      this.#first++;
      return;
    }
    this.#kept.push(batch);
    this.#bytes += batch.length;
    // Trims only when a limit is exceeded by a margin, so that one copy of the array serves many
    // messages.
    const isMuch = this.#kept.length > KEPT_BATCHES * SLACK || this.#bytes > KEPT_BYTES * SLACK;
    if (!isMuch) return;
    let gone = 0;
    while (this.#kept.length - gone > KEPT_BATCHES || this.#bytes > KEPT_BYTES) {
      this.#bytes -= this.#kept[gone++].length;
    }
    this.#kept = this.#kept.slice(gone);
    this.#first += gone;
  }

  /** Handles a replay request. An invalid one gets no reply, as in vLLM. */
  async #replay(message: ZmtpMessage, reply: ZmtpReply): Promise<void> {
    const [delimiter, from] = message;
    if (message.length !== 2 || delimiter?.length !== 0 || from?.length !== 8) return;
    if (this.#replaying >= REPLAYS_MAX) return;
    this.#replaying++;
    this.#replays++;
    const asked = new DataView(from.buffer, from.byteOffset, 8).getBigUint64(0);
    const start = asked > BigInt(Number.MAX_SAFE_INTEGER) ? Number.MAX_SAFE_INTEGER : Number(asked);
    await this.#sendFrom(start, reply);
    this.#replaying--;
  }

  async #sendFrom(start: number, reply: ZmtpReply): Promise<void> {
    let next = start;
    while (!this.#isOver) {
      next = Math.max(next, this.#first);
      const batch = this.#kept[next - this.#first];
      const frames =
        batch === undefined
          ? [EMPTY, EMPTY, END, EMPTY]
          : [EMPTY, this.#topic, numberOf(next), batch];
      if (!(await this.#send(frames, reply)) || batch === undefined) return;
      next++;
    }
  }

  /** Sends one replayed message. Returns false if the client is disconnected or does not read. */
  async #send(frames: ZmtpMessage, reply: ZmtpReply): Promise<boolean> {
    const { clock } = this.#options;
    for (let waitedMs = 0; waitedMs < STALL_MS && !this.#isOver; waitedMs += PAUSE_MS) {
      if (reply(frames)) return true;
      await sleep(clock, PAUSE_MS);
    }
    return false;
  }
}

function numberOf(number: number): Uint8Array {
  const bytes = new Uint8Array(8);
  new DataView(bytes.buffer).setBigUint64(0, BigInt(number));
  return bytes;
}
