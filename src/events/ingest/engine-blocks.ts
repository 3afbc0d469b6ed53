import { type Native, sequenceHashes } from "../../native/index.ts";
import { RESIDENCY_TIERS, type ResidencyTier } from "../../observability/activity/index.ts";
import { localHash, mediaHash, saltSeed, saltShare, sequenceHash } from "../dynamo/hashes.ts";
import type { BlockExtras, EngineEvent } from "../engine-events.ts";
import { ChangeList } from "./changes.ts";
import {
  type BlockName,
  type Copies,
  type KnownBlock,
  KnownBlocks,
  type PlacedBlock,
  placeOf,
} from "./known-blocks.ts";

/** Maximum blocks that wait for their parents. Each keeps its tokens. */
const ORPHANS_MAX = 2 ** 16;
/** With more blocks, a clear publishes removals first and `cleared` at the end. */
const CLEARED_AT_ONCE = 4_096;
/** Blocks forgotten, placed or announced per step. */
const BLOCKS_A_STEP = 256;
/** Maximum remembered removals of unknown blocks. */
const GONE_MAX = 2 ** 16;

/** Outcome of one copy of a block. `full`: the table of blocks is full. */
export type CopyOutcome = "stored" | "reannounced" | "full";

/** The state of one engine's blocks, for a file. */
export interface EngineBlocksState {
  readonly gone: Iterable<BlockName>;
  readonly hasForgottenGone: boolean;
  readonly known: Iterable<readonly [BlockName, KnownBlock]>;
  readonly orphans: Iterable<OrphanBlock>;
}

/** The position before a run: the block of that name, or null at the start of a prompt. */
export interface RunPlace {
  readonly start: ChainStart;
  readonly before: BlockName | null;
  readonly isComplete: boolean;
}

/** Consecutive blocks on one tier, under the engine's names. */
export interface BlockRun {
  readonly names: readonly BlockName[];
  readonly blocks: EventBlocks;
  readonly tier: ResidencyTier;
  readonly blockTokens: number;
}

/**
 * The blocks of one engine: those with a known sequence hash, and those that wait for their
 * parents. Collects the changes for readers.
 *
 * vLLM publishes one `stored` for each copy of a block on the device and one `removed` for each
 * copy that goes, so copies are counted. Two cases look the same: a request that announces reused
 * blocks again (`kv_cache_report_mode`), and one that stores second copies from the first block of
 * its prompt (a prompt of exactly one block, `prompt_logprobs`). Copies of such runs are counted as
 * possible. When the certain copies are gone, the block is removed for readers and counted as a
 * doubt until a later event shows whether the device has it.
 */
export class EngineBlocks {
  readonly #native: Native;
  readonly known: KnownBlocks;
  readonly orphans: OrphanBlocks;
  readonly changes = new ChangeList();
  /** Unknown blocks that the engine removed from its device. */
  readonly #gone = new Set<BlockName>();
  #hasForgottenGone = false;

  constructor(native: Native, knownMax: number) {
    this.#native = native;
    this.known = new KnownBlocks(knownMax);
    this.orphans = new OrphanBlocks(Math.min(knownMax, ORPHANS_MAX));
  }

  /** Runs in steps, because readers must not remove a million blocks in one turn. */
  *clearSteps(): Generator<void, void> {
    if (this.known.size > CLEARED_AT_ONCE) {
      for (const some of this.known.takeAll(BLOCKS_A_STEP)) {
        for (const { sequence, copies } of some) {
          for (const [place, tier] of RESIDENCY_TIERS.entries()) {
            if (copies[place]! > 0) this.changes.removed(tier, sequence);
          }
        }
        yield;
      }
    }
    this.known.clear();
    this.orphans.clear();
    this.#gone.clear();
    this.#hasForgottenGone = false;
    this.changes.cleared();
  }

  /**
   * Adds a run after a known block or at the start of a prompt, in steps. `isComplete`: a block
   * without a copy here has none on the device. `count` receives the outcome of each block.
   */
  *addSteps(
    run: BlockRun,
    { start, before, isComplete }: RunPlace,
    count: (outcome: CopyOutcome) => void,
  ): Generator<void, void> {
    let isAgain = before === null && run.tier === "device";
    // All blocks of a repeated announcement are resident.
    if (isAgain && isComplete) isAgain = yield* this.#mayHoldSteps(run.names);
    if (before !== null && run.tier === "device") yield* this.#proveSteps(before, isComplete);
    let place = { parent: start.parent, before };
    for (let from = 0; from < run.names.length; from += BLOCKS_A_STEP) {
      if (from > 0) yield;
      const piece = pieceOf(run, from, from + BLOCKS_A_STEP);
      place = this.#add(piece, { ...place, salt: start.salt }, isAgain, count);
    }
    for (const [i, name] of run.names.entries()) {
      if (this.orphans.size === 0) break;
      if (i > 0 && i % BLOCKS_A_STEP === 0) yield;
      yield* this.#linkSteps(name, run.blockTokens);
    }
  }

  *#mayHoldSteps(names: readonly BlockName[]): Generator<void, boolean> {
    for (const [i, name] of names.entries()) {
      if (i > 0 && i % BLOCKS_A_STEP === 0) yield;
      const known = this.known.get(name);
      if (known === null || known.copies[0] + known.perhaps === 0) return false;
    }
    return true;
  }

  /** A request that stores after a block keeps that block and all before it resident. */
  *#proveSteps(last: BlockName, isComplete: boolean): Generator<void, void> {
    // A removal may have counted for the wrong one of two copies as long as not all is known: then
    // any block of the path may seem to be absent.
    if (isComplete && this.known.doubts === 0) return;
    let steps = 0;
    for (let name: BlockName | null = last; name !== null; steps++) {
      if (steps > 0 && steps % BLOCKS_A_STEP === 0) yield;
      const block: KnownBlock | null = this.known.get(name);
      if (block === null) return;
      // If the state is complete, a block without a copy lost its name while the request used it.
      const isOpen = !isComplete || block.perhaps > 0;
      if (isOpen && this.known.prove(name)) this.#announce(block, "device");
      name = block.before;
    }
  }

  /** Adds the last block of the run. */
  #add(
    { names, blocks, tier, blockTokens }: BlockRun,
    { salt, ...place }: Omit<PlacedBlock, "sequence">,
    isAgain: boolean,
    count: (outcome: CopyOutcome) => void,
  ): Pick<PlacedBlock, "parent" | "before"> {
    const start = { parent: place.parent, salt };
    const { sequence, local } = chainOf(this.#native, blockTokens, blocks, start);
    const plain = isPlain(blocks, start);
    let { parent, before } = place;
    for (const [i, name] of names.entries()) {
      const block = { sequence: sequence[i]!, parent, before, salt };
      this.#adopt(name, block);
      const isPerhaps = isAgain && this.known.holds(name, tier);
      if (isPerhaps) this.known.addPerhaps(name);
      const isFirst = isPerhaps ? false : this.known.addCopies(name, tier, () => block);
      count(isFirst === null ? "full" : isPerhaps ? "reannounced" : "stored");
      this.#gone.delete(name);
      if (isFirst === true) {
        this.changes.stored({
          tier,
          parent,
          sequence: block.sequence,
          local: local[i]!,
          tokens: blocks.tokens,
          at: i * blockTokens,
          count: blockTokens,
          isPlain: plain,
        });
      }
      [parent, before] = [block.sequence, name];
    }
    return { parent, before };
  }

  /**
   * Keeps a run after an unknown block until the block is known. Returns false if the table is
   * full.
   */
  *keepSteps(
    { names, blocks, tier, blockTokens }: BlockRun,
    before: BlockName,
    salt: string | null,
  ): Generator<void, boolean> {
    if (!this.orphans.hasRoom(names.length)) return false;
    let parent = before;
    for (const [i, name] of names.entries()) {
      if (i > 0 && i % BLOCKS_A_STEP === 0) yield;
      if (this.known.get(name) !== null) this.addKnown(name, tier);
      else {
        const orphan = this.orphans.add({
          name,
          parent,
          salt,
          copies: [0, 0, 0],
          loraName: blocks.loraName,
          tokens: blocks.tokens.slice(i * blockTokens, (i + 1) * blockTokens),
          extras: blocks.extras?.[i] ?? null,
        });
        this.orphans.addCopy(orphan, tier);
        this.#gone.delete(name);
      }
      parent = name;
    }
    for (const [i, name] of names.entries()) {
      if (i > 0 && i % BLOCKS_A_STEP === 0) yield;
      if (this.known.get(name) !== null) yield* this.#linkSteps(name, blockTokens);
    }
    return true;
  }

  /** Adds a copy of a block by its name alone. Returns false if the block is unknown. */
  addKnown(name: BlockName, tier: ResidencyTier): boolean {
    const block = this.known.get(name);
    if (block !== null) {
      if (this.known.addCopies(name, tier, () => block)) this.#announce(block, tier);
      return true;
    }
    const orphan = this.orphans.get(name);
    if (orphan !== null) this.orphans.addCopy(orphan, tier);
    return orphan !== null;
  }

  /** Removes one copy. Returns false if none is known. */
  remove(name: BlockName, tier: ResidencyTier): boolean {
    const block = this.known.dropCopy(name, tier);
    if (block === "others") return true;
    if (block !== null) {
      this.changes.removed(tier, block.sequence);
      return true;
    }
    return this.orphans.dropCopy(name, tier);
  }

  /** Records that an unknown block is not on the device. */
  removeUnknown(name: BlockName): void {
    if (this.#gone.size < GONE_MAX) this.#gone.add(name);
    else this.#hasForgottenGone = true;
  }

  /**
   * Provides the engine's names of the first blocks of a prompt. A block that waits for its parent
   * proves that the engine had all blocks before it when it was stored; those not removed since are
   * still resident.
   */
  learn({ names, blocks, blockTokens }: BlockRun, start: ChainStart): void {
    const last = names.findLastIndex((name) => this.orphans.isWaitedFor(name));
    const { sequence } = chainOf(this.#native, blockTokens, blocks, start);
    for (const [i, name] of names.slice(0, last + 1).entries()) {
      if (this.known.get(name) !== null || this.orphans.get(name) !== null) continue;
      const isGone = this.#gone.delete(name) || this.#hasForgottenGone;
      const place = { parent: sequence[i - 1] ?? null, before: names[i - 1] ?? null };
      const block = { sequence: sequence[i]!, ...place, salt: start.salt };
      this.#place(name, isGone ? [0, 0, 0] : [1, 0, 0], block);
    }
    for (const name of names.slice(0, last + 1)) {
      for (const _step of this.#linkSteps(name, blockTokens));
    }
  }

  state(): EngineBlocksState {
    return {
      gone: this.#gone,
      hasForgottenGone: this.#hasForgottenGone,
      known: this.known.entries(),
      orphans: this.orphans.all(),
    };
  }

  /** Restores into an empty table. Readers are notified by `announceAll`. */
  restore(state: EngineBlocksState): void {
    this.#hasForgottenGone = state.hasForgottenGone;
    for (const name of state.gone) this.#gone.add(name);
    for (const [name, block] of state.known) this.known.restore(name, block);
    for (const orphan of state.orphans) this.orphans.add(orphan);
  }

  *announceSteps(): Generator<void, void> {
    for (const [, block] of this.known.entries()) {
      if (this.changes.blocks >= BLOCKS_A_STEP) yield;
      for (const [place, tier] of RESIDENCY_TIERS.entries()) {
        if (block.copies[place]! > 0) this.#announce(block, tier);
      }
    }
  }

  /** Announces without tokens; readers that compute names of their own do not need them. */
  #announce({ sequence, parent }: PlacedBlock, tier: ResidencyTier): void {
    this.changes.stored({ tier, parent, sequence, local: null, tokens: null, isPlain: false });
  }

  /** Takes over the copies of the waiting block with that name. */
  #adopt(name: BlockName, block: PlacedBlock): void {
    const orphan = this.orphans.take(name);
    if (orphan !== null) this.#place(name, orphan.copies, block);
  }

  /**
   * Resolves the blocks that waited for a block which is now known, and those that waited for them.
   */
  *#linkSteps(name: BlockName, blockTokens: number): Generator<void, void> {
    if (!this.orphans.isWaitedFor(name)) return;
    const names = [name];
    for (const parentName of names) {
      const parent = this.known.get(parentName);
      if (parent === null) continue;
      for (const orphan of this.orphans.takeChildren(parentName)) {
        this.#placeOrphan(orphan, parent, blockTokens);
        names.push(orphan.name);
        if (names.length % BLOCKS_A_STEP === 0) yield;
      }
    }
  }

  #placeOrphan(orphan: OrphanBlock, parent: PlacedBlock, blockTokens: number): void {
    const { name, tokens, loraName, extras, copies } = orphan;
    const start = { parent: parent.sequence, salt: shareOf(orphan.salt, parent.salt) };
    const blocks = { tokens, loraName, extras: extras === null ? null : [extras] };
    const chain = chainOf(this.#native, blockTokens, blocks, start);
    const made = { local: chain.local[0]!, tokens, isPlain: isPlain(blocks, start) };
    const block = { sequence: chain.sequence[0]!, before: orphan.parent, ...start };
    this.#place(name, copies, block, made);
  }

  /** If the table is full, the block is dropped as if the engine had no copy. */
  #place(
    name: BlockName,
    copies: readonly number[],
    { sequence, parent, before, salt }: PlacedBlock,
    made: Pick<Parameters<ChangeList["stored"]>[0], "local" | "tokens" | "isPlain"> = UNKNOWN,
  ): void {
    const block = () => ({ sequence, parent, before, salt });
    if (copies.every((count) => count === 0)) {
      // Only its children need the block.
      if (this.known.addCopies(name, "device", block)) this.known.dropCopy(name, "device");
      return;
    }
    for (const [place, tier] of RESIDENCY_TIERS.entries()) {
      if (copies[place] === 0) continue;
      const isFirst = this.known.addCopies(name, tier, block, copies[place]);
      if (isFirst) this.changes.stored({ tier, parent, sequence, ...made });
    }
  }
}

const UNKNOWN = { local: null, tokens: null, isPlain: false };

function pieceOf(
  { names, blocks, tier, blockTokens }: BlockRun,
  from: number,
  to: number,
): BlockRun {
  const { tokens, loraName, extras } = blocks;
  return {
    names: names.slice(from, to),
    tier,
    blockTokens,
    blocks: {
      tokens: tokens.subarray(from * blockTokens, to * blockTokens),
      loraName,
      extras: extras?.slice(from, to) ?? null,
    },
  };
}

/** A block whose sequence hash is unknown because its parent's hash is. */
export interface OrphanBlock {
  readonly name: BlockName;
  readonly parent: BlockName;
  /** A copy owned by this object. */
  readonly tokens: Uint32Array;
  readonly extras: BlockExtras | null;
  readonly loraName: string | null;
  /** Null: the salt of its parent. */
  readonly salt: string | null;
  readonly copies: Copies;
}

/**
 * Blocks that wait for their parents: an ingest that starts late receives children of blocks that
 * the engine stored before. Bounded in number. A block without copies stays while a child needs it.
 */
export class OrphanBlocks {
  readonly #max: number;
  readonly #byName = new Map<BlockName, OrphanBlock>();
  readonly #children = new Map<BlockName, Set<OrphanBlock>>();

  constructor(max: number) {
    this.#max = max;
  }

  get size(): number {
    return this.#byName.size;
  }
  /** Whether `count` more blocks fit. */
  hasRoom(count: number): boolean {
    return this.#byName.size + count <= this.#max;
  }

  get(name: BlockName): OrphanBlock | null {
    return this.#byName.get(name) ?? null;
  }

  /** Whether a waiting block names it as its parent. */
  isWaitedFor(name: BlockName): boolean {
    return this.#children.has(name);
  }

  all(): Iterable<OrphanBlock> {
    return this.#byName.values();
  }

  /** Adds a block with its copies. An existing block of the same name stays. */
  add(block: OrphanBlock): OrphanBlock {
    const known = this.#byName.get(block.name);
    if (known !== undefined) return known;
    this.#byName.set(block.name, block);
    const children = this.#children.get(block.parent);
    if (children === undefined) this.#children.set(block.parent, new Set([block]));
    else children.add(block);
    return block;
  }

  addCopy(block: OrphanBlock, tier: ResidencyTier): void {
    block.copies[placeOf(tier)]++;
  }

  /** Returns false if it had no copy. */
  dropCopy(name: BlockName, tier: ResidencyTier): boolean {
    const block = this.#byName.get(name);
    const place = placeOf(tier);
    if (block === undefined || block.copies[place] === 0) return false;
    block.copies[place]--;
    this.#forgetUnneeded(block);
    return true;
  }

  /** Removes and returns a block that is now known. */
  take(name: BlockName): OrphanBlock | null {
    const block = this.#byName.get(name);
    if (block === undefined) return null;
    this.#remove(block);
    return block;
  }

  /** Removes and returns the blocks with this parent. */
  takeChildren(parent: BlockName): readonly OrphanBlock[] {
    const children = [...(this.#children.get(parent) ?? [])];
    for (const child of children) this.#remove(child);
    return children;
  }

  clear(): void {
    this.#byName.clear();
    this.#children.clear();
  }

  #remove(block: OrphanBlock): void {
    this.#byName.delete(block.name);
    const siblings = this.#children.get(block.parent);
    siblings?.delete(block);
    if (siblings?.size === 0) this.#children.delete(block.parent);
  }

  /** Walks up the chain and removes blocks without a copy or a child. */
  #forgetUnneeded(block: OrphanBlock): void {
    let at: OrphanBlock | undefined = block;
    while (at?.copies.every((copies) => copies === 0) && !this.#children.has(at.name)) {
      this.#remove(at);
      at = this.#byName.get(at.parent);
    }
  }
}

/** Consecutive blocks of one event. */
interface EventBlocks {
  /** Tokens of whole blocks. */
  readonly tokens: Uint32Array;
  readonly loraName: string | null;
  /** One entry per block; null if no block has extra keys. */
  readonly extras: readonly (BlockExtras | null)[] | null;
}

/** The position before the first block. */
interface ChainStart {
  readonly parent: bigint | null;
  /** Contribution of the prompt's salt to the seeds. */
  readonly salt: bigint;
}

interface BlockChain {
  readonly local: BigUint64Array;
  readonly sequence: BigUint64Array;
}

/** Hashes of each block's own tokens, and of the prefixes ending at each block. */
function chainOf(
  native: Native,
  blockTokens: number,
  { tokens, loraName, extras }: EventBlocks,
  { parent, salt }: ChainStart,
): BlockChain {
  const blocks = tokens.length / blockTokens;
  const seed = BigInt.asUintN(64, saltSeed(loraName, null) + salt);
  const into = { local: new BigUint64Array(blocks), sequence: new BigUint64Array(blocks) };
  sequenceHashes(native, tokens, { blockTokens, seed, parent }, into);
  if (extras === null) return into;
  let last = parent;
  for (let i = 0; i < blocks; i++) {
    const media = mediaOf(extras[i] ?? null);
    if (media.length > 0) {
      const own = tokens.subarray(i * blockTokens, (i + 1) * blockTokens);
      into.local[i] = localHash(native, own, seed, media);
    }
    last = sequenceHash(last, into.local[i]!);
    into.sequence[i] = last;
  }
  return into;
}

/** The blocks have no LoRA, salt or other extra keys. */
function isPlain({ loraName, extras }: EventBlocks, { salt }: ChainStart): boolean {
  if (salt !== 0n || loraName !== null) return false;
  return extras?.every((one) => isEmpty(one)) ?? true;
}

/** Prefix with which Dynamo's router marks salts for vLLM. */
const SALT_PREFIX = "dynamo-cache-salt:";

/** Salt of the first block; null if the event has none and the chain inherits its parent's. */
export function saltOf(event: EngineEvent & { kind: "stored" }): string | null {
  const salt = event.cacheSalt ?? event.extras?.[0]?.cacheSalt ?? null;
  if (salt === null || salt === "") return null;
  return salt.startsWith(SALT_PREFIX) ? salt.slice(SALT_PREFIX.length) : salt;
}

/** Contribution of a salt to the seeds; without a salt, the parent's contribution. */
export function shareOf(salt: string | null, parents: bigint): bigint {
  return salt === null ? parents : saltShare(salt);
}

function isEmpty(extras: BlockExtras | null): boolean {
  if (extras === null) return true;
  const { loraName, cacheSalt, media, embeddings } = extras;
  return loraName === null && cacheSalt === null && media.length === 0 && embeddings === null;
}

/** Media hashes that change a block's hash. A router cannot know embeddings. */
function mediaOf(extras: BlockExtras | null): bigint[] {
  if (extras === null) return [];
  const hashes = extras.media.map(({ id }) => mediaHash(id));
  if (extras.embeddings !== null) {
    hashes.push(mediaHash(Buffer.from(extras.embeddings).toString("latin1")));
  }
  return hashes;
}
