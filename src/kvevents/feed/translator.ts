import { assert } from "../../core/index.ts";
import type { ResidencyTier } from "../../events/index.ts";
import { type Native, sequenceHashes } from "../../native/index.ts";
import { localHash, mediaHash, saltSeed, saltShare, sequenceHash } from "../dynamo/index.ts";
import type { BlockExtras, EngineEvent, EngineHash, KvGroup } from "../engine-event.ts";
import { ChangeList, type FeedChange } from "./change-list.ts";
import type { DropReason, FeedCounts } from "./counts.ts";
import { KnownBlocks } from "./known-blocks.ts";
import { isMainGroup, tierOf } from "./media.ts";

type Stored = EngineEvent & { kind: "stored" };
type Removed = EngineEvent & { kind: "removed" };

export interface TranslatorOptions {
  readonly native: Native;
  /** Of the key space; events of other sizes are left out. */
  readonly blockTokens: number;
  readonly knownBlocksMax: number;
  /**
   * True: the engine tells each copy of a block when it comes and when it goes, as vLLM and SGLang
   * do. False: also when one that is there is used again (`kv_cache_report_mode` "full"): then a
   * block is gone with its first removal.
   */
  readonly countsCopies: boolean;
}

/** Dynamo's router marks salts so when it hands them to vLLM. */
const SALT_PREFIX = "dynamo-cache-salt:";
const GROUPS_MAX = 64;

/**
 * Turns the events of one rank, in order, into changes of the `tokens` key space. Hashes of the
 * engine are opaque names: a block's sequence hash comes from its tokens and its parent's.
 */
export class Translator {
  readonly #options: TranslatorOptions;
  readonly #counts: FeedCounts;
  readonly #known: KnownBlocks;
  readonly #changes = new ChangeList();
  /** By index, of what was stored: removals do not say what kind their group is of. */
  readonly #mainGroups = new Map<number, boolean>();

  constructor(options: TranslatorOptions, counts: FeedCounts) {
    assert(Number.isInteger(options.blockTokens) && options.blockTokens > 0, "blocks of tokens");
    this.#options = options;
    this.#counts = counts;
    this.#known = new KnownBlocks(options.knownBlocksMax);
  }

  get knownBlocks(): number {
    return this.#known.size;
  }

  apply(events: readonly EngineEvent[]): FeedChange[] {
    for (const event of events) {
      this.#counts.events++;
      if (event.kind === "stored") this.#stored(event);
      else if (event.kind === "removed") this.#removed(event);
      else if (event.kind === "cleared") this.#cleared(event.ownership);
      else this.#drop("unreadable");
    }
    return this.#changes.take();
  }

  /** Nothing is left: the engine began anew, or nobody knows what it has. */
  reset(): FeedChange[] {
    this.#known.clear();
    this.#mainGroups.clear();
    this.#changes.cleared();
    return this.#changes.take();
  }

  #cleared(ownership: string | null): void {
    if (ownership !== null) {
      this.#drop("external");
      return;
    }
    this.#known.clear();
    this.#changes.cleared();
  }

  #drop(reason: DropReason, count = 1): void {
    this.#counts.dropped[reason] += count;
  }

  /** The tier of an event that counts; null: it was dropped. */
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
    this.#drop(reason, count);
    return null;
  }

  #removed(event: Removed): void {
    const tier = this.#tierOf(event, event.hashes.length);
    if (tier === null) return;
    if (!this.#isMain(event.group)) {
      this.#drop("other_group", event.hashes.length);
      return;
    }
    for (const hash of event.hashes) {
      const block = this.#known.dropCopy(hash, tier);
      if (block === null) this.#drop("not_held");
      else if (block !== "others") this.#changes.removed(tier, block.sequence);
    }
  }

  /** Of a removal: its group is what was stored under its index. */
  #isMain(group: KvGroup | null): boolean {
    if (group === null || group.index === null) return isMainGroup(group);
    return this.#mainGroups.get(group.index) ?? false;
  }

  #stored(event: Stored): void {
    const tier = this.#tierOf(event, 1);
    if (tier === null) return;
    const isMain = isMainGroup(event.group);
    const index = event.group?.index ?? null;
    if (index !== null && (this.#mainGroups.has(index) || this.#mainGroups.size < GROUPS_MAX)) {
      this.#mainGroups.set(index, isMain);
    }
    if (!isMain) {
      this.#drop("other_group");
      return;
    }
    if (event.loraId !== null && event.loraName === null) {
      this.#drop("unnamed_lora");
      return;
    }
    if (event.tokens.length === 0) {
      this.#placeholders(event.hashes, tier);
      return;
    }
    const blocks = this.#wholeBlocks(event);
    if (blocks === 0) return;
    const { parent } = event;
    if (parent !== null && event.hashes.some((hash) => isSame(hash, parent))) {
      this.#drop("own_parent");
      return;
    }
    const known = parent === null ? null : this.#known.get(parent);
    if (parent !== null && known === null) {
      this.#drop("unknown_parent");
      return;
    }
    const salt = saltOf(event);
    this.#add(event, tier, blocks, {
      parent: known?.sequence ?? null,
      salt: salt === null ? (known?.salt ?? 0n) : saltShare(salt),
    });
  }

  /** How many of its blocks are whole; 0: it was dropped. */
  #wholeBlocks(event: Stored): number {
    const { blockTokens } = this.#options;
    const { hashes, tokens } = event;
    const isLastPage = hashes.length === 1 && tokens.length < blockTokens;
    if (event.blockTokens !== blockTokens && !isLastPage) {
      this.#drop("block_size");
      return 0;
    }
    if (tokens.length > hashes.length * blockTokens) {
      this.#drop("skipped_blocks");
      return 0;
    }
    const whole = Math.floor(tokens.length / blockTokens);
    if (whole < hashes.length) this.#drop("partial_block");
    return whole;
  }

  #add(
    event: Stored,
    tier: ResidencyTier,
    blocks: number,
    start: { readonly parent: bigint | null; readonly salt: bigint },
  ): void {
    const { blockTokens } = this.#options;
    const chain = this.#chain(event, blocks, start);
    const hasExtras = start.salt !== 0n || event.loraName !== null;
    const isPlain = !hasExtras && (event.extras?.every((one) => isEmpty(one)) ?? true);
    let parent = start.parent;
    for (let i = 0; i < blocks; i++) {
      const sequence = chain.sequence[i]!;
      const before = parent;
      const isFirst = this.#addCopy(event.hashes[i]!, tier, () => {
        return { sequence, parent: before, salt: start.salt };
      });
      if (isFirst === null) return;
      if (isFirst) {
        const local = chain.local[i]!;
        const tokens = event.tokens.subarray(i * blockTokens, (i + 1) * blockTokens);
        this.#changes.stored({ tier, parent: before, sequence, local, tokens, isPlain });
      }
      parent = sequence;
    }
  }

  #addCopy(
    hash: EngineHash,
    tier: ResidencyTier,
    block: () => { sequence: bigint; parent: bigint | null; salt: bigint },
  ): boolean | null {
    const isFirst = this.#known.addCopy(hash, tier, block);
    if (isFirst === null) this.#drop("too_many");
    if (isFirst === false && !this.#options.countsCopies) this.#known.dropCopy(hash, tier);
    return isFirst;
  }

  #chain(
    event: Stored,
    blocks: number,
    { parent, salt }: { readonly parent: bigint | null; readonly salt: bigint },
  ): { readonly local: BigUint64Array; readonly sequence: BigUint64Array } {
    const { blockTokens, native } = this.#options;
    const tokens = event.tokens.subarray(0, blocks * blockTokens);
    const seed = BigInt.asUintN(64, saltSeed(event.loraName, null) + salt);
    const into = { local: new BigUint64Array(blocks), sequence: new BigUint64Array(blocks) };
    sequenceHashes(native, tokens, { blockTokens, seed, parent }, into);
    if (event.extras === null) return into;
    let last = parent;
    for (let i = 0; i < blocks; i++) {
      const media = mediaOf(event.extras[i] ?? null);
      if (media.length > 0) {
        const own = tokens.subarray(i * blockTokens, (i + 1) * blockTokens);
        into.local[i] = localHash(own, seed, media);
      }
      last = sequenceHash(last, into.local[i]!);
      into.sequence[i] = last;
    }
    return into;
  }

  /** Blocks without tokens: of those that are known it is known what they are. */
  #placeholders(hashes: readonly EngineHash[], tier: ResidencyTier): void {
    for (const hash of hashes) {
      const known = this.#known.get(hash);
      if (known === null) {
        this.#drop("placeholder");
        continue;
      }
      const isFirst = this.#addCopy(hash, tier, () => known);
      const { sequence, parent } = known;
      if (!isFirst) continue;
      this.#changes.stored({ tier, parent, sequence, local: null, tokens: null, isPlain: false });
    }
  }
}

function isSame(a: EngineHash, b: EngineHash): boolean {
  if (typeof a === "bigint" || typeof b === "bigint") return a === b;
  return Buffer.compare(a, b) === 0;
}

/** Of the first block; null: it says none, and the chain has its parent's. */
function saltOf(event: Stored): string | null {
  const salt = event.cacheSalt ?? event.extras?.[0]?.cacheSalt ?? null;
  if (salt === null || salt === "") return null;
  return salt.startsWith(SALT_PREFIX) ? salt.slice(SALT_PREFIX.length) : salt;
}

function isEmpty(extras: BlockExtras | null): boolean {
  if (extras === null) return true;
  const { loraName, cacheSalt, media, embeddings } = extras;
  return loraName === null && cacheSalt === null && media.length === 0 && embeddings === null;
}

/** What makes a block's hash another than that of its tokens; no router can know embeddings. */
function mediaOf(extras: BlockExtras | null): bigint[] {
  if (extras === null) return [];
  const hashes = extras.media.map(({ id }) => mediaHash(id));
  if (extras.embeddings !== null) {
    hashes.push(mediaHash(Buffer.from(extras.embeddings).toString("latin1")));
  }
  return hashes;
}
