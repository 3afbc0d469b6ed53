import { type Clock, type Random, sleep } from "../../core/index.ts";
import type { Native } from "../../native/index.ts";
import { connectSubscriber, type ZmtpMessage, type ZmtpSubscriber } from "../../zmtp/index.ts";
import { decodeEngineBatch } from "../engine/index.ts";
import type { FeedChange } from "./change-list.ts";
import { type FeedCounts, noCounts } from "./counts.ts";
import { Replay, sequenceOf } from "./replay.ts";
import { Translator } from "./translator.ts";

export interface EngineFeedOptions {
  readonly native: Native;
  readonly clock: Clock;
  readonly random: Random;
  /** Of one rank: where its engine publishes, and where it replays what was missed, if it does. */
  readonly endpoint: string;
  readonly replayEndpoint: string | null;
  /** Beginning of the topic; empty: any. */
  readonly topic: string;
  readonly rank: number;
  /** Of the key space; blocks of other sizes are left out. */
  readonly blockTokens: number;
  /** Blocks whose names are remembered; 2^20 where left out. */
  readonly knownBlocksMax?: number;
  /** False where the engine tells blocks again that it uses again (`report_mode` "full"). */
  readonly countsCopies?: boolean;
  readonly answerMs?: number;
}

/** Told in order; must not throw. */
export interface EngineFeedListener {
  changes(changes: readonly FeedChange[]): void;
  /** Whether nothing is missing, as far as the engine can tell. */
  known(isKnown: boolean): void;
  /** Whether the engine can be heard. */
  heard(isHeard: boolean): void;
}

const KNOWN_BLOCKS_MAX = 2 ** 20;
const ANSWER_MS = 2_000;
/** A replay that fails is asked for so often, after longer and longer waits. */
const ATTEMPTS = 5;
const RETRY_MS = 200;
/** Live batches that wait for a replay; those behind them are asked for again. */
const WAITING_MAX = 4_096;
const WAITING_BYTES_MAX = 64 * 2 ** 20;

interface Waiting {
  readonly sequence: number;
  readonly payload: Uint8Array;
}

/**
 * Follows the KV events of one rank of an engine: numbers in order, each once, holes filled from
 * the engine's buffer, restarts seen. What cannot be got any more is lost: the picture then starts
 * anew, from what the engine still has, or without a replay endpoint from what it says next.
 */
export class EngineFeed implements AsyncDisposable {
  readonly counts: FeedCounts = noCounts();
  readonly #options: EngineFeedOptions;
  readonly #listener: EngineFeedListener;
  readonly #translator: Translator;
  readonly #subscriber: ZmtpSubscriber;
  readonly #replay: Replay | null;
  readonly #stopping = new AbortController();
  /** The number that comes next; null: nothing was heard so far. */
  #next: number | null = null;
  /** The last that came live over this connection, applied or not; null: none did. */
  #heard: number | null = null;
  /** What the last batch was: another run may use its number again. */
  #lastPayload = 0n;
  #isNewConnection = false;
  #waiting: Waiting[] = [];
  #waitingBytes = 0;
  #replaying: Promise<void> | null = null;
  #isKnown = false;

  constructor(options: EngineFeedOptions, listener: EngineFeedListener) {
    const { native, clock, random, endpoint, replayEndpoint, topic, blockTokens } = options;
    this.#options = options;
    this.#listener = listener;
    const { knownBlocksMax = KNOWN_BLOCKS_MAX, countsCopies = true } = options;
    const translating = { native, blockTokens, knownBlocksMax, countsCopies };
    this.#translator = new Translator(translating, this.counts);
    const answerMs = options.answerMs ?? ANSWER_MS;
    this.#replay =
      replayEndpoint === null
        ? null
        : new Replay({ endpoint: replayEndpoint, clock, random, answerMs });
    this.#subscriber = connectSubscriber({
      ...{ endpoint, clock, random, topics: [topic] },
      onMessage: (message) => this.#take(message),
      onConnected: () => this.#connected(),
      onDisconnected: () => listener.heard(false),
    });
  }

  get isKnown(): boolean {
    return this.#isKnown;
  }
  get state() {
    return this.#subscriber.state;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#stopping.abort();
    await this.#subscriber[Symbol.asyncDispose]();
    await this.#replay?.[Symbol.asyncDispose]();
    await this.#replaying;
  }

  #connected(): void {
    this.#listener.heard(true);
    this.#isNewConnection = true;
    this.#heard = null;
    // Nothing may follow for a while: what the engine has is asked for at once.
    if (this.#replay !== null) this.#recover();
  }

  /** Topic, number and payload. */
  #take(message: ZmtpMessage): void {
    const [number, payload] = message.slice(-2);
    if (message.length < 3 || number?.length !== 8 || payload === undefined) {
      this.counts.dropped.unreadable++;
      return;
    }
    const sequence = Number(sequenceOf(number));
    const isRestart = this.#heard !== null && sequence <= this.#heard;
    this.#heard = sequence;
    if (isRestart) this.#restarted();
    if (this.#replaying !== null) this.#wait({ sequence, payload });
    else this.#live(sequence, payload);
  }

  /** Numbers went back on one connection: what waits is of the run before. */
  #restarted(): void {
    this.counts.restarts++;
    this.#begin(0);
    [this.#waiting, this.#waitingBytes] = [[], 0];
  }

  #wait(waiting: Waiting): void {
    const isFull =
      this.#waiting.length >= WAITING_MAX ||
      this.#waitingBytes + waiting.payload.length > WAITING_BYTES_MAX;
    if (isFull) return;
    this.#waiting.push(waiting);
    this.#waitingBytes += waiting.payload.length;
  }

  #live(sequence: number, payload: Uint8Array): void {
    const next = this.#next ?? 0;
    if (sequence === next) {
      this.#isNewConnection = false;
      this.#apply(sequence, payload);
      this.#tell(true);
      return;
    }
    if (sequence < next) {
      // A replay brought it already; without one it is another run, over a new connection.
      if (this.#replay !== null && !this.#isNewConnection) return;
      this.#restarted();
      this.#live(sequence, payload);
      return;
    }
    this.counts.gaps++;
    if (this.#replay === null) {
      this.counts.lostBatches += sequence - (this.#next ?? 0);
      this.#begin(sequence);
      this.#live(sequence, payload);
      return;
    }
    this.#wait({ sequence, payload });
    this.#recover();
  }

  #apply(sequence: number, payload: Uint8Array): void {
    this.#next = sequence + 1;
    this.#lastPayload = Bun.hash.xxHash3(payload);
    this.counts.batches++;
    const batch = decodeEngineBatch(payload);
    if (!batch.ok) {
      this.counts.dropped.unreadable++;
      return;
    }
    if (batch.value.rank !== this.#options.rank) {
      this.counts.dropped.other_rank++;
      return;
    }
    const changes = this.#translator.apply(batch.value.events);
    if (changes.length > 0) this.#listener.changes(changes);
  }

  /** Nothing of before is true any more. */
  #begin(next: number): void {
    this.#next = next;
    this.#lastPayload = 0n;
    this.#listener.changes(this.#translator.reset());
  }

  #recover(): void {
    this.#tell(false);
    this.#replaying ??= this.#recoverAll().then((isWhole) => {
      this.#replaying = null;
      this.#drain(isWhole);
    });
  }

  /** False: nobody knows what is missing. */
  async #recoverAll(): Promise<boolean> {
    const { clock } = this.#options;
    const { signal } = this.#stopping;
    for (let attempt = 0; attempt < ATTEMPTS && !signal.aborted; attempt++) {
      if (attempt > 0) {
        await sleep(clock, RETRY_MS * 2 ** attempt, signal).catch(() => undefined);
      }
      if (await this.#replayOnce()) return true;
    }
    const first = this.#waiting[0]?.sequence;
    if (first === undefined || signal.aborted) return false;
    // The engine does not answer: what is missing is lost, and it goes on from what is live.
    this.counts.lostBatches += Math.max(0, first - (this.#next ?? 0));
    this.#begin(first);
    return true;
  }

  /** True: the engine told all it still has of what is missing. */
  async #replayOnce(): Promise<boolean> {
    const before = this.#next ?? 0;
    // The last batch comes once more, to see whether it is the same: numbers alone do not tell.
    const from = this.#isNewConnection && before > 0 ? before - 1 : before;
    let first: number | null = null;
    let isOther = false;
    this.counts.replays++;
    const isWhole = await this.#replay!.ask(from, (sequence, payload) => {
      first ??= sequence;
      if (isOther) return;
      if (sequence === before - 1) isOther = Bun.hash.xxHash3(payload) !== this.#lastPayload;
      else isOther = !this.#replayed(sequence, payload);
    });
    if (!isWhole) return false;
    this.#isNewConnection = false;
    const isGone = from < before && first === null;
    if (!isOther && !isGone) return true;
    // Another run of the engine, or one whose buffer does not lead back so far.
    this.counts.restarts++;
    this.#begin(0);
    return this.#replayFromStart();
  }

  async #replayFromStart(): Promise<boolean> {
    let isFirst = true;
    return this.#replay!.ask(0, (sequence, payload) => {
      if (isFirst) this.#next = sequence;
      isFirst = false;
      this.#replayed(sequence, payload);
    });
  }

  /** False: there is a hole before it. */
  #replayed(sequence: number, payload: Uint8Array): boolean {
    const next = this.#next;
    // The first word ever: what the engine does not have any more was before our time.
    if (next !== null && sequence > next) return false;
    if (next !== null && sequence < next) return true;
    this.counts.replayed++;
    this.#apply(sequence, payload);
    return true;
  }

  /** What came meanwhile. */
  #drain(isWhole: boolean): void {
    const waiting = this.#waiting;
    [this.#waiting, this.#waitingBytes] = [[], 0];
    if (this.#stopping.signal.aborted) return;
    for (const { sequence, payload } of waiting) {
      if (this.#replaying !== null) this.#wait({ sequence, payload });
      else if (sequence >= (this.#next ?? 0)) this.#live(sequence, payload);
    }
    if (this.#replaying === null && isWhole) this.#tell(true);
  }

  #tell(isKnown: boolean): void {
    if (isKnown === this.#isKnown) return;
    this.#isKnown = isKnown;
    this.#listener.known(isKnown);
  }
}
