import { type Clock, type Random, sleep } from "../../core/index.ts";
import type { Native } from "../../native/index.ts";
import { connectSubscriber, type ZmtpMessage, type ZmtpSubscriber } from "../zmtp/index.ts";
import { type AppliedChanges, BatchApplier } from "./batch-applier.ts";
import { type FeedCounts, noCounts } from "./counts.ts";
import type { BlockName } from "./known-blocks.ts";
import type { NamedPrompt } from "./prompt-names.ts";
import { Replay, sequenceOf } from "./replay.ts";
import { encodeFeed, type SavedFeed } from "./saved-feed.ts";
import { Translator } from "./translator.ts";
import { WaitingBatches } from "./waiting-batches.ts";

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
