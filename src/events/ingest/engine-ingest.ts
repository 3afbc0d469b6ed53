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
import type { IngestChange } from "./changes.ts";
import { type IngestCounts, noCounts } from "./changes.ts";
import type { BlockName, NamedPrompt } from "./known-blocks.ts";
import { encodeSavedIngest, type SavedIngest } from "./saved-state.ts";
import { Translator } from "./translator.ts";

export interface EngineIngestOptions {
  readonly native: Native;
  readonly clock: Clock;
  readonly random: Random;
  /**
   * Endpoint on which the engine of this rank publishes its events. The replay endpoint, if there
   * is one, returns missed batches.
   */
  readonly endpoint: string;
  readonly replayEndpoint: string | null;
  /** Prefix of the topics to subscribe to; empty: all topics. */
  readonly topic: string;
  readonly rank: number;
  /** Expected block size in tokens. Null: use the size in the engine's events. */
  readonly blockTokens: number | null;
  /** Maximum remembered blocks of the engine. Default: 2^20. */
  readonly knownBlocksMax?: number;
  /** Number of blocks in the engine's GPU cache, as reported by the engine. Null if unknown. */
  readonly totalBlocks?: number | null;
  /**
   * State saved by an earlier ingest. It counts as valid once the engine's replay buffer shows the
   * same last batch.
   */
  readonly saved?: SavedIngest | null;
  readonly answerMs?: number;
}

/** Receives the results of an ingest, in order. Its methods must not throw. */
export interface EngineIngestListener extends AppliedChanges {
  /**
   * Called when the set of known blocks becomes complete (true), or may have become incomplete
   * (false).
   */
  known(isKnown: boolean): void;
  /** Called when the engine has restarted. The ingest removes the blocks of the previous run. */
  restarted?(): void;
  /**
   * Called once the engine's replay has shown whether the saved state is still valid. If it is not,
   * the ingest discards it.
   */
  restored?(isConfirmed: boolean): void;
  /** Called when the connection to the engine's events is established (true) or lost (false). */
  heard(isHeard: boolean): void;
}

const KNOWN_BLOCKS_MAX = 2 ** 20;
const ANSWER_MS = 2_000;
/** Maximum attempts of one replay. The waits between them grow. */
const ATTEMPTS = 5;
const RETRY_MS = 200;

/**
 * Follows the KV events of one rank of an engine: applies batches in the order of their numbers,
 * each once, fetches missed batches from the engine's replay buffer, and detects restarts of the
 * engine. If missed batches are gone, discards the state and rebuilds it from the batches that the
 * engine still buffers, or without a replay endpoint from its next events.
 */
export class EngineIngest implements AsyncDisposable {
  readonly counts: IngestCounts = noCounts();
  readonly #options: EngineIngestOptions;
  readonly #listener: EngineIngestListener;
  readonly #translator: Translator;
  readonly #sink: BatchApplier;
  readonly #subscriber: ZmtpSubscriber;
  readonly #replay: Replay | null;
  readonly #waiting = new WaitingBatches();
  readonly #stopping = new AbortController();
  /** Number of the next batch to apply. Null before the first batch. */
  #next: number | null = null;
  /**
   * Number of the latest batch that arrived live on this connection, applied or not. Null if none.
   */
  #heard: number | null = null;
  /**
   * Hash of the last applied batch. Another run of the engine may reuse its number, but not its
   * content.
   */
  #lastPayload = 0n;
  #isNewConnection = false;
  /** True until a replay confirms the saved state. */
  #isUnconfirmed = false;
  /** True if every batch published so far was applied. */
  #isCurrent = false;
  /** Incremented whenever a batch is missing. A check that started earlier is then invalid. */
  #losses = 0;
  #replaying: Promise<void> | null = null;
  #isKnown = false;

  constructor(options: EngineIngestOptions, listener: EngineIngestListener) {
    const { native, clock, random, endpoint, replayEndpoint, topic, blockTokens } = options;
    this.#options = options;
    this.#listener = listener;
    const { knownBlocksMax = KNOWN_BLOCKS_MAX, totalBlocks = null } = options;
    const translating = { native, blockTokens, knownBlocksMax, totalBlocks };
    this.#translator = new Translator(translating, this.counts);
    this.#sink = new BatchApplier({
      rank: options.rank,
      counts: this.counts,
      translator: this.#translator,
      listener,
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
      endpoint,
      clock,
      random,
      topics: [topic],
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
  /** Block size in the engine's events. Null before the first event. */
  get engineBlockTokens(): number | null {
    return this.#translator.isSizeSure ? this.#translator.blockTokens : null;
  }
  /** True if every batch published since this ingest began was applied. */
  get isCurrent(): boolean {
    return this.#isCurrent;
  }
  /** Number of blocks that wait for their parent blocks. */
  get orphanBlocks(): number {
    return this.#translator.blocks.orphans.size;
  }

  isWaitedFor(name: BlockName): boolean {
    return this.#translator.blocks.orphans.isWaitedFor(name);
  }

  /**
   * Provides the engine's names of a prompt's blocks, which may be the missing parents of waiting
   * blocks.
   */
  learn(names: readonly BlockName[], prompt: Pick<NamedPrompt, "tokens" | "cacheSalt">): void {
    if (this.#replaying !== null || !this.#sink.isIdle) return;
    this.#sink.report(this.#translator.learn(names, prompt));
    this.#report();
  }

  /**
   * Returns the state, encoded for a file. Null if no batch was applied yet, because a later ingest
   * could not verify such a state.
   */
  async save(): Promise<Uint8Array[] | null> {
    while (!this.#sink.isIdle && !this.#stopping.signal.aborted) {
      await new Promise<void>((resolve) => this.#sink.afterwards(resolve));
    }
    const isReady = this.#replay !== null && this.#isCurrent && this.#replaying === null;
    if (!isReady || !this.#sink.isIdle || this.#next === null || this.#next === 0) return null;
    const head = { next: this.#next, lastPayload: this.#lastPayload };
    // The batches that arrive during encoding wait, because the state must not change meanwhile.
    const pages = encodeSavedIngest(
      { ...head, ...this.#translator.state() },
      this.#stopping.signal,
    );
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
    // The engine may publish nothing for a while, so missed batches are requested without waiting
    // for the next one.
    if (this.#replay !== null) this.#recover();
  }

  #disconnected(): void {
    this.#lost();
    this.#listener.heard(false);
  }

  /** Handles a live message: topic, number and payload. */
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

  /**
   * Discards the state because the engine restarted. The next batch is the first of its new run.
   */
  #restarted(): void {
    this.counts.restarts++;
    this.#sink.afterwards(() => this.#listener.restarted?.());
    this.#begin(0);
  }

  #restore(saved: SavedIngest): void {
    this.#translator.restore(saved);
    this.#next = saved.next;
    this.#lastPayload = saved.lastPayload;
    this.#isUnconfirmed = true;
  }

  /**
   * Confirms the saved state: the engine's replay buffer has the same last batch, so the engine did
   * not restart.
   */
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
      // Usually the batch is a duplicate: a replay has already supplied it. Without a replay
      // endpoint, an old number on a new connection means that the engine restarted.
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
    // If this is the first batch that the ingest receives, the batches before it are unknown.
    const isFirst = this.#next === null;
    this.#next = sequence + 1;
    this.#lastPayload = Bun.hash.xxHash3(payload);
    this.#sink.batch(payload, isFirst, sequence === 0);
    if (!this.#sink.isFull) return;
    this.#subscriber.pause();
    this.#replay?.pause();
  }

  /**
   * Marks the ingest as current once the queued batches are applied. Called when all received
   * batches are queued and none is missing.
   */
  #applied(): void {
    const losses = this.#losses;
    this.#sink.afterwards(() => {
      if (this.#losses !== losses) return;
      this.#isCurrent = true;
      if (this.#translator.takeNeedsReplay() && this.#replay !== null) {
        // Earlier blocks were skipped because of the wrong block size; the state restarts so that
        // they are replayed.
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

  /**
   * Discards the state. `next` is the number of the next batch; null if none was received so far.
   */
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

  /**
   * Fetches all missing batches from the replay buffer, with retries. Returns false if it is
   * unknown which batches are missing.
   */
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
    // The engine does not have the missing batches any more, or does not reply: they are lost.
    this.counts.lostBatches += Math.max(0, first - (this.#next ?? 0));
    this.#begin(first);
    return true;
  }

  /**
   * Sends one replay request. Returns true if the engine sent all missing batches that its buffer
   * still has.
   */
  async #replayOnce(): Promise<boolean> {
    const before = this.#next ?? 0;
    // The replay starts one batch early, at the last applied batch, to compare its content: the
    // number alone does not show whether the engine restarted.
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
      // Either the engine's buffer starts after the missing batches, or the engine restarted and
      // its numbers are already higher.
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

  /**
   * Begins with empty, complete state if the replay shows that the engine has published no batch,
   * and so has no blocks.
   */
  #beginIfSilent(): void {
    if (this.#next === null) this.#begin(0);
  }

  /** Handles a replayed batch. Returns false if batches before it are missing. */
  #replayed(sequence: number, payload: Uint8Array): boolean {
    const next = this.#next;
    // At the very first batch, those that the engine no longer buffers were published before this
    // ingest began, and do not count as missing.
    if (next !== null && sequence > next) return false;
    if (next !== null && sequence < next) return true;
    this.counts.replayed++;
    this.#apply(sequence, payload);
    return true;
  }

  /** Applies the live batches that waited for the replay. */
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

/** Maximum blocks passed to the listener per call. */
const REPORTED_BLOCKS = 256;
/**
 * Queue lengths at which the ingest stops reading from the engine. The queue itself is unbounded.
 */
const FULL_BATCHES = 1_024;
const FULL_BYTES = 16 * 2 ** 20;

/** Receives the changes of applied batches, in order. Its methods must not throw. */
interface AppliedChanges {
  changes(changes: readonly IngestChange[]): void;
  /** Called with the engine's block size in tokens, before the first changes with that size. */
  blockTokens?(size: number): void;
}

interface BatchApplierOptions {
  readonly rank: number;
  readonly translator: Translator;
  readonly counts: IngestCounts;
  readonly listener: AppliedChanges;
  /** Called when a full queue has room again. */
  onRoom(): void;
}

type Work = () => Generator<void, void>;

/**
 * Queue of accepted batches in order of their numbers. The ingest decides which batch is next and
 * which are missing; this class decodes and applies each batch completely and in order, in time
 * slices of one source.
 */
class BatchApplier implements Disposable {
  readonly #options: BatchApplierOptions;
  readonly #queue: TurnQueue<Work>;
  /** Block size last reported to the listener. Null before the first report. */
  #reportedSize: number | null = null;
  #wasFull = false;

  constructor(options: BatchApplierOptions) {
    this.#options = options;
    this.#queue = new TurnQueue({
      source: loopTurns.source(),
      // The queue is unbounded, because an accepted batch must not be dropped; the ingest stops
      // reading instead.
      itemsMax: Number.POSITIVE_INFINITY,
      bytesMax: Number.POSITIVE_INFINITY,
      run: (work) => this.#run(work),
    });
  }

  /** True if all queued batches are applied. */
  get isIdle(): boolean {
    return this.#queue.isIdle;
  }

  /** True if the ingest should stop reading until `onRoom`. */
  get isFull(): boolean {
    const isFull = this.#queue.length >= FULL_BATCHES || this.#queue.bytes >= FULL_BYTES;
    if (isFull) this.#wasFull = true;
    return isFull;
  }

  /**
   * Queues a batch. `isFirst`: this ingest received none before. `isFromStart`: it is the first
   * batch of the engine's run.
   */
  batch(payload: Uint8Array, isFirst: boolean, isFromStart: boolean): void {
    const { translator } = this.#options;
    const work = function* (applier: BatchApplier): Generator<void, void> {
      if (isFirst) translator.begin(isFromStart);
      yield* applier.#batch(payload);
    };
    this.#queue.push(() => work(this), payload.length);
  }

  /**
   * Discards the state. `isComplete`: the next batch is the first of the engine's run, so that no
   * blocks are unknown.
   */
  reset(isComplete: boolean): void {
    this.#queue.push(() => this.#reported(this.#options.translator.resetSteps(isComplete)));
  }

  /** Reports all known blocks to the listener as stored. */
  announce(): void {
    this.#queue.push(() => this.#reported(this.#options.translator.blocks.announceSteps()));
  }

  /** Calls `run` once all batches queued so far are applied. */
  afterwards(run: () => void): void {
    // biome-ignore lint/correctness/useYield: one step
    this.#queue.push(function* () {
      run();
    });
  }

  /** Passes changes that do not come from a batch to the listener. */
  report(changes: readonly IngestChange[]): void {
    const { translator, listener } = this.#options;
    const size = translator.blockTokens;
    if (size !== null && size !== this.#reportedSize) {
      this.#reportedSize = size;
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
    else yield* this.#reported(translator.applySteps(batch.value.events));
    counts.batches++;
  }

  /** Runs the steps and passes their changes to the listener, a limited number per call. */
  *#reported(steps: Generator<void, void>): Generator<void, void> {
    const { changes } = this.#options.translator.blocks;
    for (const _step of steps) {
      if (changes.blocks >= REPORTED_BLOCKS) this.report(changes.take());
      yield;
    }
    this.report(changes.take());
  }
}

interface ReplayOptions {
  readonly endpoint: string;
  readonly clock: Clock;
  readonly random: Random;
  /** Maximum ms without a reply from the engine; then the replay fails. */
  readonly answerMs: number;
}

/** Receives one batch from the engine's replay buffer. */
type ReplayedBatch = (sequence: number, payload: Uint8Array) => void;

const END = 0xffff_ffff_ffff_ffffn;

interface Asking {
  readonly take: ReplayedBatch;
  readonly end: (isWhole: boolean) => void;
  timer: Disposable;
}

/** Requests missed batches from an engine's replay endpoint, one request at a time. */
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
      endpoint,
      clock,
      random,
      onMessage: (message) => this.#answer(message),
      onDisconnected: () => this.#end(false),
    });
  }

  /**
   * Requests all batches from number `from` on. Resolves to true if every batch that the engine
   * still has was passed to `take`, and to false if the engine did not reply in time.
   */
  ask(from: number, take: ReplayedBatch): Promise<boolean> {
    this.#end(false);
    const asked = Promise.withResolvers<boolean>();
    const sequence = new Uint8Array(8);
    new DataView(sequence.buffer).setBigUint64(0, BigInt(from));
    if (!this.#dealer.send([new Uint8Array(), sequence])) return Promise.resolve(false);
    this.#asking = { take, end: asked.resolve, timer: this.#late() };
    return asked.promise;
  }

  /**
   * Stops reading replayed batches until `resume`, because they arrive faster than they are
   * applied.
   */
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

  /**
   * Closes the connection after a timeout. On the same connection, late replies would be taken for
   * those of the next request.
   */
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

  /** Handles one replayed message: an empty frame, an optional topic, number and payload. */
  #answer(message: ZmtpMessage): void {
    const asking = this.#asking;
    const [number, payload] = message.slice(-2);
    const isAnswer = message.length >= 3 && message.length <= 4 && message[0].length === 0;
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

/**
 * Maximum live batches, and bytes of them, that wait for a replay. Batches beyond them are dropped
 * and requested by another replay.
 */
const BATCHES_MAX = 4_096;
const BYTES_MAX = 64 * 2 ** 20;

interface WaitingBatch {
  readonly sequence: number;
  readonly payload: Uint8Array;
}

/** Live batches that wait because earlier batches are missing, in order of arrival. */
class WaitingBatches {
  #batches: WaitingBatch[] = [];
  #bytes = 0;

  /** Number of the first waiting batch. Null if none waits. */
  get first(): number | null {
    return this.#batches[0]?.sequence ?? null;
  }

  /** Adds a batch. If the queue is full, drops it; a later replay requests it again. */
  add(batch: WaitingBatch): void {
    if (this.#batches.length >= BATCHES_MAX) return;
    if (this.#bytes + batch.payload.length > BYTES_MAX) return;
    this.#batches.push(batch);
    this.#bytes += batch.payload.length;
  }

  /** Returns all waiting batches and empties the queue. */
  take(): readonly WaitingBatch[] {
    const batches = this.#batches;
    [this.#batches, this.#bytes] = [[], 0];
    return batches;
  }
}
