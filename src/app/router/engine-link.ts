import type { EngineReport } from "../../api/index.ts";
import type { Clock, Random, WorkerId } from "../../core/index.ts";
import {
  EngineIngest,
  type NamedPrompt,
  PromptNames,
  type SavedIngest,
} from "../../events/index.ts";
import type { Native } from "../../native/index.ts";
import type { Logger } from "../../observability/index.ts";
import type { EngineTarget } from "../../router/index.ts";

export interface EngineLinkOptions {
  readonly native: Native;
  readonly clock: Clock;
  readonly random: Random;
  readonly logger: Logger;
  readonly worker: WorkerId;
  readonly rank: number;
  readonly model: string;
  readonly endpoint: string;
  readonly replayEndpoint: string | null;
  /** Tokens per block from the configuration. Null: use the engine's value. */
  readonly blockTokens: number | null;
  /** Capacity of the engine's own KV cache, in blocks. Null: unknown. */
  readonly totalBlocks: number | null;
  /** PYTHONHASHSEED of the engine process. Null: unknown. */
  readonly hashSeed: string | null;
  readonly saved: SavedIngest | null;
  /** Ingest target that receives this rank's events. The caller disposes it. */
  readonly target: EngineTarget;
  /** Called when the engine disconnects, reconnects or restarts: its settings may have changed. */
  readonly onChanged: () => void;
}

/** Maximum prompts whose blocks wait to be hashed. Further prompts are skipped. */
const PROMPTS_MAX = 16;

/**
 * Receives the KV events of one engine rank, applies them to its ingest target, and logs connection
 * changes.
 */
export class EngineLink implements AsyncDisposable {
  readonly #options: EngineLinkOptions;
  readonly #feed: EngineIngest;
  readonly #names: PromptNames;
  readonly #stopping = new AbortController();
  readonly #prompts: Pick<NamedPrompt, "tokens" | "cacheSalt">[] = [];
  #naming: Promise<void> | null = null;
  #isReached = false;
  #wasReached = false;
  #toldMismatch = false;

  constructor(options: EngineLinkOptions) {
    const { native, target, hashSeed } = options;
    this.#options = options;
    this.#names = new PromptNames(native, hashSeed);
    target.setHeard(false);
    this.#feed = new EngineIngest(
      { ...options, topic: "" },
      {
        changes: (changes) => {
          target.apply(changes.map(({ change }) => change));
          this.#compareSizes();
        },
        known: (isKnown) => target.setKnown(isKnown),
        heard: (isHeard) => this.#heard(isHeard),
        blockTokens: (size) => target.setBlockTokens(size),
        restarted: () => this.#restarted(),
        restored: (isConfirmed) => this.#restored(isConfirmed),
      },
    );
  }

  get model(): string {
    return this.#options.model;
  }

  get report(): EngineReport {
    const { worker, rank, endpoint, replayEndpoint, blockTokens } = this.#options;
    const feed = this.#feed;
    return {
      ...{ worker, rank, endpoint, isReached: this.#isReached, wasReached: this.#wasReached },
      ...{ isCurrent: feed.isCurrent, hasReplay: replayEndpoint !== null },
      configuredBlockTokens: blockTokens,
      blockTokens: feed.engineBlockTokens,
      orphanBlocks: feed.orphanBlocks,
      counts: feed.counts,
    };
  }

  /**
   * Offers a prompt's tokens. Their hashes may identify blocks that the engine cached before this
   * router received its events.
   */
  learn(prompt: Pick<NamedPrompt, "tokens" | "cacheSalt">): void {
    if (this.#feed.orphanBlocks === 0 || this.#prompts.length >= PROMPTS_MAX) return;
    this.#prompts.push({ ...prompt, tokens: prompt.tokens.slice() });
    this.#naming ??= this.#name().finally(() => {
      this.#naming = null;
    });
  }

  /**
   * Serializes the state of this rank's ingest. Null if the state would be unreliable after a
   * restart.
   */
  save(): Promise<Uint8Array[] | null> {
    return this.#feed.save();
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#stopping.abort();
    await this.#feed[Symbol.asyncDispose]();
    await this.#naming;
  }

  async #name(): Promise<void> {
    const { signal } = this.#stopping;
    const isWanted = (name: Parameters<EngineIngest["isWaitedFor"]>[0]) =>
      this.#feed.isWaitedFor(name);
    for (let prompt = this.#prompts.shift(); prompt; prompt = this.#prompts.shift()) {
      const blockTokens = this.#feed.engineBlockTokens;
      if (blockTokens === null || this.#feed.orphanBlocks === 0) continue;
      const names = await this.#names.find({ ...prompt, blockTokens }, isWanted, signal);
      if (names.length > 0 && !signal.aborted) this.#feed.learn(names, prompt);
    }
  }

  #heard(isReached: boolean): void {
    const { logger, worker, rank, endpoint, target, onChanged } = this.#options;
    const wasReached = this.#wasReached;
    this.#isReached = isReached;
    this.#wasReached ||= isReached;
    target.setHeard(isReached);
    const fields = { worker, rank, endpoint };
    if (isReached) logger.info("engine events connected", fields);
    else logger.warn("engine events lost, the worker counts as stale", fields);
    if (wasReached) onChanged();
  }

  #restarted(): void {
    const { logger, worker, rank, target, onChanged } = this.#options;
    logger.warn("engine restarted, dropping its blocks", { worker, rank });
    target.restart();
    onChanged();
  }

  #restored(isConfirmed: boolean): void {
    const { logger, worker, rank } = this.#options;
    const message = isConfirmed
      ? "restored blocks of engine"
      : "discarded saved blocks of engine: its replay does not reach back to them";
    logger.info(message, { worker, rank });
  }

  #compareSizes(): void {
    const { logger, worker, rank, blockTokens: configured } = this.#options;
    const engine = this.#feed.engineBlockTokens;
    if (this.#toldMismatch || configured === null || engine === null) return;
    if (engine === configured) return;
    this.#toldMismatch = true;
    const fields = { worker, rank, configured, engine };
    logger.error("block_tokens differs from the engine's block size, using the engine's", fields);
  }
}
