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
   * Endpoints of one rank: where its engine publishes, and where it replays missed batches, if it
   * does.
   */
  readonly endpoint: string;
  readonly replayEndpoint: string | null;
  /** Topic prefix; empty: all topics. */
  readonly topic: string;
  readonly rank: number;
  /** Expected block size in tokens; null: the size in the engine's events. */
  readonly blockTokens: number | null;
  /** Maximum remembered blocks. Default: 2^20. */
  readonly knownBlocksMax?: number;
  /** Number of blocks in the engine's cache, as reported by the engine; null if unknown. */
  readonly totalBlocks?: number | null;
  /** State saved by an earlier ingest. It is trusted once a replay shows its last batch again. */
  readonly saved?: SavedIngest | null;
  readonly answerMs?: number;
}

/** Called in order; must not throw. */
export interface EngineIngestListener extends AppliedChanges {
  /** Whether all blocks of the engine are known. */
  known(isKnown: boolean): void;
  /** The engine restarted; blocks of the previous run are cleared. */
  restarted?(): void;
  /** Whether the engine still matches the saved state; if not, that state is discarded. */
  restored?(isConfirmed: boolean): void;
  /** Whether the engine's events are received. */
  heard(isHeard: boolean): void;
}

const KNOWN_BLOCKS_MAX = 2 ** 20;
const ANSWER_MS = 2_000;
/** Attempts of a failing replay, with growing waits. */
const ATTEMPTS = 5;
const RETRY_MS = 200;

/**
 * Follows the KV events of one rank of an engine: applies numbers in order, each once, fills gaps
 * from the engine's buffer, and detects restarts. If a gap cannot be filled, the state restarts
 * from what the engine still buffers, or without a replay endpoint from its next events.
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
  /** The next expected number; null before the first batch. */
  #next: number | null = null;
  /** The last live number on this connection, applied or not; null if none. */
  #heard: number | null = null;
  /** Hash of the last batch, because another run may reuse its number. */
  #lastPayload = 0n;
  #isNewConnection = false;
  /** The saved state is not confirmed yet. */
  #isUnconfirmed = false;
  /** Every published batch was applied. */
  #isCurrent = false;
  /** Incremented when a batch is missing: proofs from before are void. */
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
  /** Block size in the engine's events; null before the first. */
  get engineBlockTokens(): number | null {
    return this.#translator.isSizeSure ? this.#translator.blockTokens : null;
  }
  /** Whether no batch is missing since this ingest began. */
  get isCurrent(): boolean {
    return this.#isCurrent;
  }
  /** Blocks that wait for their parents. */
  get orphanBlocks(): number {
    return this.#translator.blocks.orphans.size;
  }

  isWaitedFor(name: BlockName): boolean {
    return this.#translator.blocks.orphans.isWaitedFor(name);
  }

  /** Provides the names of a prompt's blocks, for blocks that wait for their parents. */
  learn(names: readonly BlockName[], prompt: Pick<NamedPrompt, "tokens" | "cacheSalt">): void {
    if (this.#replaying !== null || !this.#sink.isIdle) return;
    this.#sink.report(this.#translator.learn(names, prompt));
    this.#report();
  }

  /** Returns the state for a file; null without a batch that a later ingest could confirm. */
  async save(): Promise<Uint8Array[] | null> {
    while (!this.#sink.isIdle && !this.#stopping.signal.aborted) {
      await new Promise<void>((resolve) => this.#sink.afterwards(resolve));
    }
    const isReady = this.#replay !== null && this.#isCurrent && this.#replaying === null;
    if (!isReady || !this.#sink.isIdle || this.#next === null || this.#next === 0) return null;
    const head = { next: this.#next, lastPayload: this.#lastPayload };
    // Copies are counted, so batches that arrive meanwhile wait.
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
    // The engine may stay silent for a while, so its buffer is requested at once.
    if (this.#replay !== null) this.#recover();
  }

  #disconnected(): void {
    this.#lost();
    this.#listener.heard(false);
  }

  /** Handles a message: topic, number and payload. */
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

  /** Starts over after an engine restart; its first batch is next. */
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

  /** The engine still has the last batch of the saved state: it is the same run. */
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
      // A replay brought the batch already. Without replay, over a new connection, it is another
      // run.
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
    // On the first batch ever, earlier batches of the engine are unknown.
    const isFirst = this.#next === null;
    this.#next = sequence + 1;
    this.#lastPayload = Bun.hash.xxHash3(payload);
    this.#sink.batch(payload, isFirst, sequence === 0);
    if (!this.#sink.isFull) return;
    this.#subscriber.pause();
    this.#replay?.pause();
  }

  /** All received batches are queued: once they are applied, none is missing. */
  #applied(): void {
    const losses = this.#losses;
    this.#sink.afterwards(() => {
      if (this.#losses !== losses) return;
      this.#isCurrent = true;
      if (this.#translator.takeNeedsReplay() && this.#replay !== null) {
        // Blocks of another size were skipped and must be requested again.
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

  /** Discards the state. Null: nothing was received so far. */
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

  /** Returns false if the missing range is unknown. */
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
    // The engine does not have the missing batches or does not answer: they are lost.
    this.counts.lostBatches += Math.max(0, first - (this.#next ?? 0));
    this.#begin(first);
    return true;
  }

  /** Returns true if the engine sent everything it still has of the missing batches. */
  async #replayOnce(): Promise<boolean> {
    const before = this.#next ?? 0;
    // The last batch is requested again to compare its content, because numbers alone do not
    // identify a run.
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
      // The buffer starts later, or the engine restarted and has counted further.
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

  /** An engine that has published nothing has no blocks. */
  #beginIfSilent(): void {
    if (this.#next === null) this.#begin(0);
  }

  /** Returns false if there is a gap before the batch. */
  #replayed(sequence: number, payload: Uint8Array): boolean {
    const next = this.#next;
    // On the first batch ever, batches that the engine no longer has predate this ingest.
    if (next !== null && sequence > next) return false;
    if (next !== null && sequence < next) return true;
    this.counts.replayed++;
    this.#apply(sequence, payload);
    return true;
  }

  /** Processes the live batches that waited. */
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

/** Maximum blocks reported per call. */
const REPORTED_BLOCKS = 256;
/** Limits above which the engine is held back; the queue itself is unbounded. */
const FULL_BATCHES = 1_024;
const FULL_BYTES = 16 * 2 ** 20;

/** Receives the results of batches in order. Must not throw. */
interface AppliedChanges {
  changes(changes: readonly IngestChange[]): void;
  /** Block size of the engine, reported before the first changes with that size. */
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
 * Queue of accepted batches, in order of their numbers. The ingest decides which batch is next and
 * which are missing; the applier decodes and applies each batch completely and in order, in slices
 * of one source.
 */
class BatchApplier implements Disposable {
  readonly #options: BatchApplierOptions;
  readonly #queue: TurnQueue<Work>;
  /** The size reported to the listener; null if none. */
  #reportedSize: number | null = null;
  #wasFull = false;

  constructor(options: BatchApplierOptions) {
    this.#options = options;
    this.#queue = new TurnQueue({
      source: loopTurns.source(),
      // An accepted batch is never dropped; the engine is held back instead.
      itemsMax: Number.POSITIVE_INFINITY,
      bytesMax: Number.POSITIVE_INFINITY,
      run: (work) => this.#run(work),
    });
  }

  /** Whether all queued batches are applied. */
  get isIdle(): boolean {
    return this.#queue.isIdle;
  }

  /** Whether the sender should wait for `onRoom`. */
  get isFull(): boolean {
    const isFull = this.#queue.length >= FULL_BATCHES || this.#queue.bytes >= FULL_BYTES;
    if (isFull) this.#wasFull = true;
    return isFull;
  }

  /** `isFirst`: no batch came before. `isFromStart`: the engine's first batch. */
  batch(payload: Uint8Array, isFirst: boolean, isFromStart: boolean): void {
    const { translator } = this.#options;
    const work = function* (applier: BatchApplier): Generator<void, void> {
      if (isFirst) translator.begin(isFromStart);
      yield* applier.#batch(payload);
    };
    this.#queue.push(() => work(this), payload.length);
  }

  /** Discards the state. `isComplete`: the engine's events come from the first on. */
  reset(isComplete: boolean): void {
    this.#queue.push(() => this.#reported(this.#options.translator.resetSteps(isComplete)));
  }

  /** Reports all known blocks. */
  announce(): void {
    this.#queue.push(() => this.#reported(this.#options.translator.blocks.announceSteps()));
  }

  /** Calls `run` after all earlier batches. */
  afterwards(run: () => void): void {
    // biome-ignore lint/correctness/useYield: one step
    this.#queue.push(function* () {
      run();
    });
  }

  /** Reports changes that did not come from a batch. */
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

  /** Reports the changes of the steps, some at a time. */
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
  /** Time without an answer after which the replay fails. */
  readonly answerMs: number;
}

/** Receives one batch of the engine's buffer. */
type ReplayedBatch = (sequence: number, payload: Uint8Array) => void;

const END = 0xffff_ffff_ffff_ffffn;

interface Asking {
  readonly take: ReplayedBatch;
  readonly end: (isWhole: boolean) => void;
  timer: Disposable;
}

/** Requests missed batches from an engine's replay endpoint; one request at a time. */
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
   * Resolves to true if everything the engine still has from `from` on was passed to `take`, and to
   * false if it did not answer.
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

  /** Stops reading answers until `resume`, because the reader of the batches is behind. */
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

  /** Late answers would be taken for those of the next request, so the connection is closed. */
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

  /** Handles an answer: an empty frame, an optional topic, number and payload. */
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

/** Limits on live batches that wait for a replay; batches beyond them are requested again. */
const BATCHES_MAX = 4_096;
const BYTES_MAX = 64 * 2 ** 20;

interface WaitingBatch {
  readonly sequence: number;
  readonly payload: Uint8Array;
}

/** Batches that arrived before their predecessors, in order of arrival. */
class WaitingBatches {
  #batches: WaitingBatch[] = [];
  #bytes = 0;

  /** Number of the first batch; null if none is waiting. */
  get first(): number | null {
    return this.#batches[0]?.sequence ?? null;
  }

  /** Drops the batch if the queue is full; it is requested again. */
  add(batch: WaitingBatch): void {
    if (this.#batches.length >= BATCHES_MAX) return;
    if (this.#bytes + batch.payload.length > BYTES_MAX) return;
    this.#batches.push(batch);
    this.#bytes += batch.payload.length;
  }

  /** Returns all batches and empties the queue. */
  take(): readonly WaitingBatch[] {
    const batches = this.#batches;
    [this.#batches, this.#bytes] = [[], 0];
    return batches;
  }
}
