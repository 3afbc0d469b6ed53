import { assert } from "../../core/index.ts";
import type { Native } from "../../native/index.ts";
import type { ResidencyTier } from "../../observability/activity/index.ts";
import {
  ENGINE_BATCH_LIMITS,
  type EngineEvent,
  type EngineHash,
  type KvGroup,
} from "../engine-events.ts";
import type { IngestChange } from "./changes.ts";
import { type DropReason, type IngestCounts, LOSSES } from "./changes.ts";
import { EngineBlocks, type EngineBlocksState, saltOf, shareOf } from "./engine-blocks.ts";
import type { NamedPrompt } from "./known-blocks.ts";
import { type BlockName, blockNameOf } from "./known-blocks.ts";

type Stored = EngineEvent & { kind: "stored" };
type Removed = EngineEvent & { kind: "removed" };

export interface TranslatorOptions {
  readonly native: Native;
  /** Expected block size in tokens. Null: use the size in the engine's events. */
  readonly blockTokens: number | null;
  readonly knownBlocksMax: number;
  /** Number of blocks in the engine's GPU cache, as reported by the engine. Null if unknown. */
  readonly totalBlocks?: number | null;
}

/** The state of a translator, as saved to a file. */
export interface TranslatorState extends EngineBlocksState {
  readonly blockTokens: number | null;
  readonly isSizeSure: boolean;
  readonly isComplete: boolean;
  readonly groups: Iterable<readonly [number, boolean]>;
}

/**
 * Maximum block size in tokens; larger blocks are dropped. The native library hashes up to 65,536
 * words at once: the tokens of a block, and two words for each of its extra keys.
 */
const BLOCK_TOKENS_MAX = 65_536 - 2 * ENGINE_BATCH_LIMITS.extrasMax;
const GROUPS_MAX = 64;
/** Events applied per step. A step takes well below a millisecond. */
const EVENTS_A_STEP = 16;
const BLOCKS_A_STEP = 256;
const NAMES_A_STEP = 1_024;
/** Number of cache blocks that hold no data: vLLM never assigns its first block to a request. */
const SPARE_BLOCKS = 1;

/**
 * Translates the events of one rank, in order, into changes of the `tokens` key space (blocks named
 * by hashes of their tokens). The engine's own hashes serve only as lookup keys: the sequence hash
 * of a block is computed from its tokens and its parent's sequence hash.
 */
export class Translator {
  readonly #options: TranslatorOptions;
  readonly #counts: IngestCounts;
  readonly blocks: EngineBlocks;
  /**
   * Whether each KV group is a main group, by group index. Learned from `stored` events, because
   * `removed` events do not state the kind of group.
   */
  readonly #mainGroups = new Map<number, boolean>();
  #blockTokens: number | null;
  /**
   * True if the engine has stored a block that is certainly whole, so that its size is the block
   * size.
   */
  #isSizeSure = false;
  #isComplete = false;
  /**
   * True if blocks were skipped as partial last pages while the block size was uncertain; they may
   * have been whole.
   */
  #hasDoubtfulPages = false;
  #needsReplay = false;

  constructor(options: TranslatorOptions, counts: IngestCounts) {
    const { native, blockTokens, knownBlocksMax } = options;
    assert(
      blockTokens === null || (Number.isInteger(blockTokens) && blockTokens > 0),
      "blockTokens must be a positive integer",
    );
    this.#options = options;
    this.#counts = counts;
    this.#blockTokens = blockTokens;
    this.blocks = new EngineBlocks(native, knownBlocksMax);
  }

  /** Block size of the engine in tokens. Null while unknown. */
  get blockTokens(): number | null {
    return this.#blockTokens;
  }
  /** True if the engine's own events confirm `blockTokens`. */
  get isSizeSure(): boolean {
    return this.#isSizeSure;
  }
  /**
   * True if every block of the engine is known. Either the events were followed from the engine's
   * start or from a clear of its cache, or the known blocks fill the whole cache; and no later
   * event left a block in doubt.
   */
  get isComplete(): boolean {
    if (this.blocks.known.doubts > 0) return false;
    return this.#isComplete && (this.#isSizeSure || !this.#hasDoubtfulPages);
  }

  /**
   * Returns whether events were skipped because the block size was unknown, and resets that state.
   * If true, the caller must have the events replayed.
   */
  takeNeedsReplay(): boolean {
    const needs = this.#needsReplay;
    this.#needsReplay = false;
    return needs;
  }

  /** Applies all events in one call and returns the changes. */
  apply(events: readonly EngineEvent[]): IngestChange[] {
    for (const _step of this.applySteps(events));
    return this.blocks.changes.take();
  }

  *applySteps(events: readonly EngineEvent[]): Generator<void, void> {
    for (const [i, event] of events.entries()) {
      if (i > 0 && i % EVENTS_A_STEP === 0) yield;
      this.#counts.events++;
      if (event.kind === "stored") yield* this.#stored(event);
      else if (event.kind === "removed") yield* this.#removed(event);
      else if (event.kind === "cleared") yield* this.#cleared(event.ownership);
      else this.drop("unreadable");
    }
    this.#checkFull();
  }

  /**
   * Discards the state in steps. `isComplete`: the next event is the engine's first, so that no
   * blocks are unknown.
   */
  *resetSteps(isComplete: boolean): Generator<void, void> {
    yield* this.blocks.clearSteps();
    this.#mainGroups.clear();
    this.#hasDoubtfulPages = false;
    this.#isComplete = isComplete;
  }

  /**
   * Sets the initial state of an empty translator. `isComplete`: the next event is the engine's
   * first.
   */
  begin(isComplete: boolean): void {
    this.#isComplete = isComplete;
  }

  drop(reason: DropReason, count = 1): void {
    this.#counts.dropped[reason] += count;
    if (LOSSES.has(reason)) this.#isComplete = false;
  }

  /**
   * Provides the engine's names of a prompt's first blocks, which may be the missing parents of
   * waiting blocks.
   */
  learn(
    names: readonly BlockName[],
    { tokens, cacheSalt }: Pick<NamedPrompt, "tokens" | "cacheSalt">,
  ): IngestChange[] {
    const blockTokens = this.#blockTokens;
    const end = names.length * (blockTokens ?? Number.POSITIVE_INFINITY);
    if (blockTokens === null || tokens.length < end) return [];
    const blocks = { tokens: tokens.subarray(0, end), loraName: null, extras: null };
    const start = { parent: null, salt: shareOf(cacheSalt, 0n) };
    this.blocks.learn({ names, blocks, tier: "device", blockTokens }, start);
    this.#checkFull();
    return this.blocks.changes.take();
  }

  state(): TranslatorState {
    return {
      blockTokens: this.#blockTokens,
      isSizeSure: this.#isSizeSure,
      // The saved state has no doubtful blocks of evicted entries, so it must not claim to be
      // complete if there were any.
      isComplete: this.#isComplete && !this.blocks.known.hasForgottenDoubts,
      groups: [...this.#mainGroups],
      ...this.blocks.state(),
    };
  }

  /** Restores a saved state into an empty translator. `announceAll` publishes it to readers. */
  restore(state: TranslatorState): void {
    this.#blockTokens = state.blockTokens;
    this.#isSizeSure = state.isSizeSure;
    this.#isComplete = state.isComplete;
    for (const [index, isMain] of state.groups) this.#mainGroups.set(index, isMain);
    this.blocks.restore(state);
  }

  #checkFull(): void {
    // If the certain copies fill the engine's cache, it cannot contain a block that is not known.
    const { totalBlocks = null } = this.#options;
    const isFull =
      totalBlocks !== null && this.blocks.known.deviceCopies === totalBlocks - SPARE_BLOCKS;
    if (!isFull) return;
    this.#isComplete = true;
    this.blocks.known.settle();
  }

  *#cleared(ownership: string | null): Generator<void, void> {
    if (ownership !== null) {
      this.drop("external");
      return;
    }
    yield* this.blocks.clearSteps();
    this.#isComplete = true;
  }

  /**
   * Returns the tier of an event's blocks. Null if the event must be skipped; the reason is
   * counted.
   */
  #tierOf(event: Stored | Removed, count: number): ResidencyTier | null {
    const tier = tierOf(event.medium);
    const isElsewhere = event.locality !== null && event.locality !== "LOCAL";
    const reason =
      tier === "unknown"
        ? "unknown_medium"
        : tier === "external" || isElsewhere || event.ownership !== null
          ? "external"
          : null;
    if (reason === null) return tier as ResidencyTier;
    this.drop(reason, count);
    return null;
  }

  *#removed(event: Removed): Generator<void, void> {
    const tier = this.#tierOf(event, event.hashes.length);
    if (tier === null) return;
    if (!this.#isMain(event.group)) {
      this.drop("other_group", event.hashes.length);
      return;
    }
    for (const [i, hash] of event.hashes.entries()) {
      if (i > 0 && i % BLOCKS_A_STEP === 0) yield;
      const name = blockNameOf(hash);
      if (this.blocks.remove(name, tier)) {
        this.#counts.removed++;
        continue;
      }
      this.drop("not_held");
      if (tier === "device" && !this.#isComplete) this.blocks.removeUnknown(name);
    }
  }

  /**
   * Returns whether a removed block's KV group is a main group, as declared by `stored` events with
   * the same group index.
   */
  #isMain(group: KvGroup | null): boolean {
    if (group === null || group.index === null) return isMainGroup(group);
    // The group is still unknown if removals arrive before the first `stored` event, because the
    // ingest started late. They count as the main group's while no group is known.
    return this.#mainGroups.get(group.index) ?? this.#mainGroups.size === 0;
  }

  *#stored(event: Stored): Generator<void, void> {
    const tier = this.#tierOf(event, 1);
    if (tier === null) return;
    const isMain = isMainGroup(event.group);
    const index = event.group?.index ?? null;
    if (index !== null && (this.#mainGroups.has(index) || this.#mainGroups.size < GROUPS_MAX)) {
      this.#mainGroups.set(index, isMain);
    }
    if (!isMain) {
      this.drop("other_group");
      return;
    }
    if (event.loraId !== null && event.loraName === null) {
      this.drop("unnamed_lora");
      return;
    }
    if (event.tokens.length === 0) {
      yield* this.#placeholders(event.hashes, tier);
      return;
    }
    if (event.blockTokens > BLOCK_TOKENS_MAX) {
      this.drop("block_size");
      return;
    }
    yield* this.#learnSize(event);
    yield* this.#storedBlocks(event, tier);
  }

  *#storedBlocks(event: Stored, tier: ResidencyTier): Generator<void, void> {
    const count = this.#wholeBlocks(event);
    if (count === 0) return;
    const { parent, loraName, extras } = event;
    const names: BlockName[] = [];
    while (names.length < count) {
      if (names.length > 0 && names.length % NAMES_A_STEP === 0) yield;
      names.push(blockNameOf(event.hashes[names.length]));
    }
    const before = parent === null ? null : blockNameOf(parent);
    if (before !== null && names.includes(before)) {
      this.drop("own_parent");
      return;
    }
    const blockTokens = this.#blockTokens!;
    const tokens = event.tokens.subarray(0, count * blockTokens);
    const run = { names, tier, blockTokens, blocks: { tokens, loraName, extras } };
    const salt = saltOf(event);
    const known = before === null ? null : this.blocks.known.get(before);
    if (before !== null && known === null) {
      // The parent is unknown, so the engine stored it before the ingest began.
      this.#isComplete = false;
      if (yield* this.blocks.keepSteps(run, before, salt)) this.#counts.stored += count;
      else this.drop("unknown_parent");
      return;
    }
    const start = { parent: known?.sequence ?? null, salt: shareOf(salt, known?.salt ?? 0n) };
    const place = { start, before, isComplete: this.#isComplete };
    yield* this.blocks.addSteps(run, place, (outcome) => {
      if (outcome === "full") this.drop("too_many");
      else this.#counts[outcome]++;
    });
  }

  /** Returns the number of whole blocks in the event; 0 if the event was skipped. */
  #wholeBlocks(event: Stored): number {
    const blockTokens = this.#blockTokens ?? event.blockTokens;
    const { hashes, tokens } = event;
    const isLastPage = hashes.length === 1 && tokens.length < blockTokens;
    if ((event.blockTokens !== blockTokens && !isLastPage) || blockTokens === 0) {
      this.drop("block_size");
      return 0;
    }
    if (tokens.length > hashes.length * blockTokens) {
      this.drop("skipped_blocks");
      return 0;
    }
    const whole = Math.floor(tokens.length / blockTokens);
    if (whole === hashes.length) this.#isSizeSure = true;
    else {
      this.drop("partial_block");
      this.#hasDoubtfulPages ||= !this.#isSizeSure;
    }
    return whole;
  }

  /**
   * Derives the engine's block size from a `stored` event. A single block smaller than expected may
   * be the partial last page of a prompt and proves nothing. A larger block, or several of the same
   * size, must be whole.
   */
  *#learnSize({ hashes, tokens, blockTokens: size }: Stored): Generator<void, void> {
    const before = this.#blockTokens;
    if (size === before || size === 0 || tokens.length !== hashes.length * size) return;
    const isLarger = before === null || size > before;
    if (!isLarger && (this.#isSizeSure || hashes.length === 1)) return;
    this.#blockTokens = size;
    if (before === null) return;
    yield* this.blocks.clearSteps();
    this.#isComplete = false;
    this.#needsReplay = true;
  }

  /** Handles an event that names blocks without their tokens. Such blocks must be known already. */
  *#placeholders(hashes: readonly EngineHash[], tier: ResidencyTier): Generator<void, void> {
    for (const [i, hash] of hashes.entries()) {
      if (i > 0 && i % BLOCKS_A_STEP === 0) yield;
      const name = blockNameOf(hash);
      if (this.blocks.addKnown(name, tier)) this.#counts.stored++;
      else this.drop("placeholder");
    }
  }
}

/** Tier of a medium. `external`: storage that belongs to no worker. */
type MediumTier = ResidencyTier | "external" | "unknown";

const TIERS: Readonly<Record<string, MediumTier>> = {
  GPU: "device",
  DEVICE: "device",
  CPU: "host",
  CPU_PINNED: "host",
  CPU_TIER1: "host",
  CPU_TIER2: "disk",
  DISK: "disk",
  NVME: "disk",
  STORAGE: "disk",
  FS: "disk",
  OBJ: "external",
  EXTERNAL: "external",
  NETWORK: "external",
  REMOTE: "external",
  SHARED: "external",
};

/**
 * Maps an engine's medium to a tier like Dynamo does. No medium means the GPU. Some vLLM versions
 * used `FS` and `OBJ`.
 */
function tierOf(medium: string | null): MediumTier {
  if (medium === null) return "device";
  return Object.hasOwn(TIERS, medium) ? TIERS[medium] : "unknown";
}

const MAIN_KINDS = ["full_attention", "mla_attention", "sink_full_attention"];

/**
 * Returns true if the KV group keeps every block of a prefix (a main group). Other groups of a
 * hybrid model keep only some blocks, or states.
 */
function isMainGroup(group: KvGroup | null): boolean {
  const kind = group?.specKind ?? null;
  return kind === null || MAIN_KINDS.includes(kind);
}
