import { type Clock, loopTurns, type Random, sleep, TurnQueue } from "../../core/index.ts";
import type { Native } from "../../native/index.ts";
import { engineBatchSteps } from "../engine-events.ts";
import {
  connectDealer,
  connectSubscriber,
  type ZmtpDealer,
  type ZmtpMessage,
  type ZmtpSubscriber,
} from "../zmtp/index.ts";
import type { FeedChange } from "./changes.ts";
import { type FeedCounts, noCounts } from "./changes.ts";
import type { BlockName, NamedPrompt } from "./known-blocks.ts";
import { encodeFeed, type SavedFeed } from "./saved-state.ts";
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
  /** The size that the engine's blocks should have; null: the size that its events say. */
  readonly blockTokens: number | null;
  /** Blocks whose names are remembered; 2^20 where left out. */
  readonly knownBlocksMax?: number;
  /** Blocks of the engine's own cache, as the engine says; null: not known. */
  readonly totalBlocks?: number | null;
  /** What a feed before this one knew. Believed once a replay shows its last batch again. */
  readonly saved?: SavedFeed | null;
  readonly answerMs?: number;
}

/** Called in order; must not throw. */
export interface EngineFeedListener extends AppliedChanges {
  /** Whether all that the engine holds is known. */
  known(isKnown: boolean): void;
  /** Another run of the engine; what the run before held is cleared. */
  restarted?(): void;
  /** Whether the engine still is as `saved` has it; where not, what was saved is discarded. */
  restored?(isConfirmed: boolean): void;
  /** Whether the engine can be heard. */
  heard(isHeard: boolean): void;
}

const KNOWN_BLOCKS_MAX = 2 ** 20;
const ANSWER_MS = 2_000;
/** A replay that fails is asked for so often, after longer and longer waits. */
const ATTEMPTS = 5;
const RETRY_MS = 200;

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
  readonly #sink: BatchApplier;
  readonly #subscriber: ZmtpSubscriber;
  readonly #replay: Replay | null;
  readonly #waiting = new WaitingBatches();
  readonly #stopping = new AbortController();
  /** The number that comes next; null: nothing was heard so far. */
  #next: number | null = null;
  /** The last that came live over this connection, applied or not; null: none did. */
  #heard: number | null = null;
  /** What the last batch was: another run may use its number again. */
  #lastPayload = 0n;
  #isNewConnection = false;
  /** What was saved is not shown to be true yet. */
  #isUnconfirmed = false;
  /** Nothing of what the engine published is missing. */
  #isCurrent = false;
  /** Goes up when something is missing: what was applied before shows nothing any more. */
  #losses = 0;
  #replaying: Promise<void> | null = null;
  #isKnown = false;

  constructor(options: EngineFeedOptions, listener: EngineFeedListener) {
    const { native, clock, random, endpoint, replayEndpoint, topic, blockTokens } = options;
    this.#options = options;
    this.#listener = listener;
    const { knownBlocksMax = KNOWN_BLOCKS_MAX, totalBlocks = null } = options;
    const translating = { native, blockTokens, knownBlocksMax, totalBlocks };
    this.#translator = new Translator(translating, this.counts);
    this.#sink = new BatchApplier({
      ...{ rank: options.rank, counts: this.counts, translator: this.#translator, listener },
      onRoom: () => {
        this.#subscriber.resume();
        this.#replay?.resume();
      },
    });
    if (options.saved && replayEndpoint !== null) this.#restore(options.saved);
    const answerMs = options.answerMs ?? ANSWER_MS;
    this.#replay =
      replayEndpoint === null
        ? null
        : new Replay({ endpoint: replayEndpoint, clock, random, answerMs });
    this.#subscriber = connectSubscriber({
      ...{ endpoint, clock, random, topics: [topic] },
      onMessage: (message) => this.#take(message),
      onConnected: () => this.#connected(),
      onDisconnected: () => this.#disconnected(),
    });
  }

  get isKnown(): boolean {
    return this.#isKnown;
  }
  get state() {
    return this.#subscriber.state;
  }
  /** What its events say; null: nothing so far. */
  get engineBlockTokens(): number | null {
    return this.#translator.isSizeSure ? this.#translator.blockTokens : null;
  }
  /** Whether nothing of what the engine published is missing; before the feed began may be. */
  get isCurrent(): boolean {
    return this.#isCurrent;
  }
  /** Blocks that wait for their parents. */
  get orphanBlocks(): number {
    return this.#translator.orphanBlocks;
  }

  isWaitedFor(name: BlockName): boolean {
    return this.#translator.isWaitedFor(name);
  }

  /** What the blocks of a prompt are called, for those that wait for their parents. */
  learn(names: readonly BlockName[], prompt: Pick<NamedPrompt, "tokens" | "cacheSalt">): void {
    if (this.#replaying !== null || !this.#sink.isIdle) return;
    this.#sink.tell(this.#translator.learn(names, prompt));
    this.#report();
  }

  /** What it knows, for a file; null: nothing that a later feed could confirm. */
  async save(): Promise<Uint8Array[] | null> {
    while (!this.#sink.isIdle && !this.#stopping.signal.aborted) {
      await new Promise<void>((resolve) => this.#sink.afterwards(resolve));
    }
    const isReady = this.#replay !== null && this.#isCurrent && this.#replaying === null;
    if (!isReady || !this.#sink.isIdle || this.#next === null || this.#next === 0) return null;
    const head = { next: this.#next, lastPayload: this.#lastPayload };
    // Copies are counted, so batches that come meanwhile wait.
    const pages = encodeFeed({ ...head, ...this.#translator.state() }, this.#stopping.signal);
    this.#replaying = pages.then(() => {
      this.#replaying = null;
      if (this.#isNewConnection) this.#recover();
      else this.#drain(this.#isCurrent);
    });
    return pages;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#stopping.abort();
    this.#sink[Symbol.dispose]();
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

  #disconnected(): void {
    this.#lost();
    this.#listener.heard(false);
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
    if (isRestart) this.#waiting.take();
    if (isRestart && !this.#isUnconfirmed) this.#restarted();
    if (this.#replaying !== null) this.#waiting.add({ sequence, payload });
    else this.#live(sequence, payload);
  }

  /** Another run of the engine, with its first batch next. */
  #restarted(): void {
    this.counts.restarts++;
    this.#sink.afterwards(() => this.#listener.restarted?.());
    this.#begin(0);
  }

  #restore(saved: SavedFeed): void {
    this.#translator.restore(saved);
    this.#next = saved.next;
    this.#lastPayload = saved.lastPayload;
    this.#isUnconfirmed = true;
  }

  /** The engine still has the last batch of what was saved: it is the same run. */
  #confirm(): void {
    this.#isUnconfirmed = false;
    this.#sink.afterwards(() => this.#listener.restored?.(true));
    this.#sink.announce();
  }

  #live(sequence: number, payload: Uint8Array): void {
    if (this.#isUnconfirmed) {
      this.#waiting.add({ sequence, payload });
      this.#recover();
      return;
    }
    const next = this.#next ?? 0;
    if (sequence === next) {
      this.#isNewConnection = false;
      this.#apply(sequence, payload);
      this.#applied();
      return;
    }
    if (sequence < next) {
      // A replay brought it already; without one it is another run, over a new connection.
      if (this.#replay !== null && !this.#isNewConnection) return;
      this.#restarted();
      this.#waiting.take();
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
    this.#waiting.add({ sequence, payload });
    this.#recover();
  }

  #apply(sequence: number, payload: Uint8Array): void {
    // The first word ever: whatever the engine published before is not known.
    const isFirst = this.#next === null;
    this.#next = sequence + 1;
    this.#lastPayload = Bun.hash.xxHash3(payload);
    this.#sink.batch(payload, isFirst, sequence === 0);
    if (!this.#sink.isFull) return;
    this.#subscriber.pause();
    this.#replay?.pause();
  }

  /** All that came is taken: once it is applied nothing is missing. */
  #applied(): void {
    const losses = this.#losses;
    this.#sink.afterwards(() => {
      if (this.#losses !== losses) return;
      this.#isCurrent = true;
      if (this.#translator.takeNeedsReplay() && this.#replay !== null) {
        // Blocks of another size were left out: they are asked for again.
        this.#begin(null);
        this.#recover();
      }
      this.#report();
    });
  }

  #lost(): void {
    this.#losses++;
    this.#isCurrent = false;
    this.#report();
  }

  /** Nothing of before is true any more; null: nothing was heard so far. */
  #begin(next: number | null): void {
    this.#next = next;
    this.#lastPayload = 0n;
    if (this.#isUnconfirmed) this.#sink.afterwards(() => this.#listener.restored?.(false));
    this.#isUnconfirmed = false;
    this.#sink.reset(next === 0);
  }

  #recover(): void {
    this.#lost();
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
      const next = this.#next;
      const isOwed = (this.#waiting.first ?? 0) > (next ?? 0);
      const isAnswered = await this.#replayOnce();
      if (isAnswered && !(isOwed && this.#next === next)) return true;
      if (isAnswered) break;
    }
    const { first } = this.#waiting;
    if (first === null || signal.aborted) return false;
    // The engine does not have what is missing, or does not answer: it is lost.
    this.counts.lostBatches += Math.max(0, first - (this.#next ?? 0));
    this.#begin(first);
    return true;
  }

  /** True: the engine gave all it still has of what is missing. */
  async #replayOnce(): Promise<boolean> {
    const before = this.#next ?? 0;
    // The last batch comes once more, to see whether it is the same: numbers alone do not tell.
    const isChecked = before > 0 && (this.#isNewConnection || this.#isUnconfirmed);
    const from = isChecked ? before - 1 : before;
    let first: number | null = null;
    let outcome: "same" | "other" | "hole" = "same";
    this.counts.replays++;
    const isWhole = await this.#replay!.ask(from, (sequence, payload) => {
      first ??= sequence;
      if (outcome !== "same") return;
      if (isChecked && first !== from) outcome = "hole";
      else if (sequence >= before) outcome = this.#replayed(sequence, payload) ? "same" : "hole";
      else if (Bun.hash.xxHash3(payload) !== this.#lastPayload) outcome = "other";
      else if (this.#isUnconfirmed) this.#confirm();
    });
    if (!isWhole) return false;
    this.#isNewConnection = false;
    if (first === null && isChecked) outcome = "other";
    if (outcome === "same") {
      this.#beginIfSilent();
      return true;
    }
    if (outcome === "other") this.#restarted();
    else {
      // Its buffer does not lead back so far, or it is another run that counts further by now.
      this.counts.lostBatches += Math.max(0, first! - before);
      this.#begin(null);
    }
    return this.#replayFromStart();
  }

  async #replayFromStart(): Promise<boolean> {
    this.#begin(null);
    const isWhole = await this.#replay!.ask(0, (sequence, payload) => {
      this.#replayed(sequence, payload);
    });
    if (isWhole) this.#beginIfSilent();
    return isWhole;
  }

  /** An engine that has published nothing holds nothing. */
  #beginIfSilent(): void {
    if (this.#next === null) this.#begin(0);
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
    const waiting = this.#waiting.take();
    if (this.#stopping.signal.aborted) return;
    for (const { sequence, payload } of waiting) {
      if (this.#replaying !== null) this.#waiting.add({ sequence, payload });
      else if (sequence >= (this.#next ?? 0)) this.#live(sequence, payload);
    }
    if (this.#replaying === null && isWhole) this.#applied();
  }

  #report(): void {
    const isKnown = this.#isCurrent && this.#translator.isComplete;
    if (isKnown === this.#isKnown) return;
    this.#isKnown = isKnown;
    this.#listener.known(isKnown);
  }
}

/** Blocks whose changes are told at once. */
const TOLD_BLOCKS = 256;
/** More than this waiting holds the engine back; the queue itself has no bound. */
const FULL_BATCHES = 1_024;
const FULL_BYTES = 16 * 2 ** 20;

/** What becomes of batches; called in order. Must not throw. */
interface AppliedChanges {
  changes(changes: readonly FeedChange[]): void;
  /** The size of the engine's blocks, before the first changes of blocks of that size. */
  blockTokens?(size: number): void;
}

/**
 * Where a feed leaves what it took, in the order of its numbers. The feed decides which batch is
 * next and which are missing; here they are decoded and applied, each whole and in order, however
 * late.
 */
interface BatchSink extends Disposable {
  /** `isFirst`: nothing was heard before it; `isFromStart`: it is the engine's first batch. */
  batch(payload: Uint8Array, isFirst: boolean, isFromStart: boolean): void;
  /** Nothing of before counts. `isComplete`: the engine's events come from the first on. */
  reset(isComplete: boolean): void;
  /** Tells all that is known. */
  announce(): void;
  /** Calls `run` behind all that came before. */
  afterwards(run: () => void): void;
  /** Whether all that came is applied. */
  readonly isIdle: boolean;
  /** Whether the sender should wait until `onRoom`. */
  readonly isFull: boolean;
}

interface BatchApplierOptions {
  readonly rank: number;
  readonly translator: Translator;
  readonly counts: FeedCounts;
  readonly listener: AppliedChanges;
  /** Called when it is full no more. */
  onRoom(): void;
}

type Work = () => Generator<void, void>;

/** Decodes and applies batches on this thread, in slices of one source for each feed. */
class BatchApplier implements BatchSink {
  readonly #options: BatchApplierOptions;
  readonly #queue: TurnQueue<Work>;
  /** The size that the listener was told; null: none. */
  #toldSize: number | null = null;
  #wasFull = false;

  constructor(options: BatchApplierOptions) {
    this.#options = options;
    this.#queue = new TurnQueue({
      source: loopTurns.source(),
      // A batch that was taken is never dropped: the feed holds the engine back instead.
      itemsMax: Number.POSITIVE_INFINITY,
      bytesMax: Number.POSITIVE_INFINITY,
      run: (work) => this.#run(work),
    });
  }

  get isIdle(): boolean {
    return this.#queue.isIdle;
  }

  get isFull(): boolean {
    const isFull = this.#queue.length >= FULL_BATCHES || this.#queue.bytes >= FULL_BYTES;
    if (isFull) this.#wasFull = true;
    return isFull;
  }

  batch(payload: Uint8Array, isFirst: boolean, isFromStart: boolean): void {
    const { translator } = this.#options;
    const work = function* (applier: BatchApplier): Generator<void, void> {
      if (isFirst) translator.begin(isFromStart);
      yield* applier.#batch(payload);
    };
    this.#queue.push(() => work(this), payload.length);
  }

  reset(isComplete: boolean): void {
    this.#queue.push(() => this.#told(this.#options.translator.resetSteps(isComplete)));
  }

  announce(): void {
    this.#queue.push(() => this.#told(this.#options.translator.announceSteps()));
  }

  afterwards(run: () => void): void {
    // biome-ignore lint/correctness/useYield: one step
    this.#queue.push(function* () {
      run();
    });
  }

  /** Tells changes that something else than a batch led to. */
  tell(changes: readonly FeedChange[]): void {
    const { translator, listener } = this.#options;
    const size = translator.blockTokens;
    if (size !== null && size !== this.#toldSize) {
      this.#toldSize = size;
      listener.blockTokens?.(size);
    }
    if (changes.length > 0) listener.changes(changes);
  }

  [Symbol.dispose](): void {
    this.#queue[Symbol.dispose]();
  }

  *#run(work: Work): Generator<void, void> {
    yield* work();
    if (!this.#wasFull || this.isFull) return;
    this.#wasFull = false;
    this.#options.onRoom();
  }

  *#batch(payload: Uint8Array): Generator<void, void> {
    const { counts, rank, translator } = this.#options;
    const batch = yield* engineBatchSteps(payload);
    if (!batch.ok) translator.drop("unreadable");
    else if (batch.value.rank !== rank) counts.dropped.other_rank++;
    else yield* this.#told(translator.applySteps(batch.value.events));
    counts.batches++;
  }

  /** Tells what the steps lead to, some at a time. */
  *#told(steps: Generator<void, void>): Generator<void, void> {
    const { translator } = this.#options;
    for (const _step of steps) {
      if (translator.changedBlocks >= TOLD_BLOCKS) this.tell(translator.take());
      yield;
    }
    this.tell(translator.take());
  }
}

interface ReplayOptions {
  readonly endpoint: string;
  readonly clock: Clock;
  readonly random: Random;
  /** Without an answer for so long it is given up. */
  readonly answerMs: number;
}

/** One batch of the engine's buffer. */
type ReplayedBatch = (sequence: number, payload: Uint8Array) => void;

const END = 0xffff_ffff_ffff_ffffn;

interface Asking {
  readonly take: ReplayedBatch;
  readonly end: (isWhole: boolean) => void;
  timer: Disposable;
}

/** Asks an engine's replay endpoint for batches that were missed; one question at a time. */
class Replay implements AsyncDisposable {
  readonly #options: ReplayOptions;
  #dealer: ZmtpDealer;
  #asking: Asking | null = null;
  #isPaused = false;
  #isClosed = false;

  constructor(options: ReplayOptions) {
    this.#options = options;
    this.#dealer = this.#dial();
  }

  #dial(): ZmtpDealer {
    const { endpoint, clock, random } = this.#options;
    return connectDealer({
      ...{ endpoint, clock, random },
      onMessage: (message) => this.#answer(message),
      onDisconnected: () => this.#end(false),
    });
  }

  /** True: all that it still has from `from` on went to `take`. False: it did not answer. */
  ask(from: number, take: ReplayedBatch): Promise<boolean> {
    this.#end(false);
    const asked = Promise.withResolvers<boolean>();
    const sequence = new Uint8Array(8);
    new DataView(sequence.buffer).setBigUint64(0, BigInt(from));
    if (!this.#dealer.send([new Uint8Array(), sequence])) return Promise.resolve(false);
    this.#asking = { take, end: asked.resolve, timer: this.#late() };
    return asked.promise;
  }

  /** Reads no answers until `resume`: the reader of the batches is behind. */
  pause(): void {
    this.#isPaused = true;
    this.#dealer.pause();
  }

  resume(): void {
    this.#isPaused = false;
    this.#dealer.resume();
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#isClosed = true;
    this.#end(false);
    await this.#dealer[Symbol.asyncDispose]();
  }

  #late(): Disposable {
    return this.#options.clock.after(this.#options.answerMs, () => this.#giveUp());
  }

  /** Late answers would be taken for those of the next question: they end with the connection. */
  #giveUp(): void {
    if (this.#isPaused && this.#asking !== null) {
      this.#asking.timer = this.#late();
      return;
    }
    const late = this.#dealer;
    this.#end(false);
    if (this.#isClosed) return;
    this.#dealer = this.#dial();
    void late[Symbol.asyncDispose]();
  }

  /** An empty frame, then perhaps the topic, then number and payload. */
  #answer(message: ZmtpMessage): void {
    const asking = this.#asking;
    const [number, payload] = message.slice(-2);
    const isAnswer = message.length >= 3 && message.length <= 4 && message[0]!.length === 0;
    if (asking === null || !isAnswer || number?.length !== 8 || payload === undefined) return;
    asking.timer[Symbol.dispose]();
    const sequence = sequenceOf(number);
    if (sequence === END) {
      this.#end(true);
      return;
    }
    asking.timer = this.#late();
    if (sequence <= BigInt(Number.MAX_SAFE_INTEGER)) asking.take(Number(sequence), payload);
  }

  #end(isWhole: boolean): void {
    const asking = this.#asking;
    if (asking === null) return;
    this.#asking = null;
    asking.timer[Symbol.dispose]();
    asking.end(isWhole);
  }
}

function sequenceOf(frame: Uint8Array): bigint {
  return new DataView(frame.buffer, frame.byteOffset, frame.byteLength).getBigUint64(0);
}

/** Live batches that wait for a replay; those behind them are asked for again. */
const BATCHES_MAX = 4_096;
const BYTES_MAX = 64 * 2 ** 20;

interface WaitingBatch {
  readonly sequence: number;
  readonly payload: Uint8Array;
}

/** Batches that came before those that they follow, in the order in which they came. */
class WaitingBatches {
  #batches: WaitingBatch[] = [];
  #bytes = 0;

  /** The number of the first; null: none waits. */
  get first(): number | null {
    return this.#batches[0]?.sequence ?? null;
  }

  /** What finds no room is asked for again. */
  add(batch: WaitingBatch): void {
    if (this.#batches.length >= BATCHES_MAX) return;
    if (this.#bytes + batch.payload.length > BYTES_MAX) return;
    this.#batches.push(batch);
    this.#bytes += batch.payload.length;
  }

  /** All of them; none waits then. */
  take(): readonly WaitingBatch[] {
    const batches = this.#batches;
    [this.#batches, this.#bytes] = [[], 0];
    return batches;
  }
}
