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

/**
 * Maximum blocks that wait for their parent blocks to become known. Each keeps its tokens in
 * memory.
 */
const ORPHANS_MAX = 2 ** 16;
/**
 * If more blocks than this are resident, `clearSteps` publishes removals in steps first and
 * `cleared` at the end.
 */
const CLEARED_AT_ONCE = 4_096;
/** Blocks removed, added or published per step. */
const BLOCKS_A_STEP = 256;
/** Maximum remembered removals of blocks that are not known yet. */
const GONE_MAX = 2 ** 16;

/**
 * Result of adding one copy of a block. `reannounced`: possibly the same copy reported again.
 * `full`: the table of blocks has no room.
 */
export type CopyOutcome = "stored" | "reannounced" | "full";

/** The state of one engine's blocks, as saved to a file. */
export interface EngineBlocksState {
  readonly gone: Iterable<BlockName>;
  readonly hasForgottenGone: boolean;
  readonly known: Iterable<readonly [BlockName, KnownBlock]>;
  readonly orphans: Iterable<OrphanBlock>;
}

/**
 * The position before a run of blocks: the previous block's name, or null at the start of a prompt.
 */
export interface RunPlace {
  readonly start: ChainStart;
  readonly before: BlockName | null;
  readonly isComplete: boolean;
}

/** Consecutive blocks on one tier, named by the engine's hashes. */
export interface BlockRun {
  readonly names: readonly BlockName[];
  readonly blocks: EventBlocks;
  readonly tier: ResidencyTier;
  readonly blockTokens: number;
}

/**
 * The blocks of one engine: those with a known sequence hash, and those that wait for their parent
 * blocks. Collects the resulting residency changes for readers.
 *
 * vLLM publishes one `stored` for each copy of a block on the GPU and one `removed` for each copy
 * that it frees, so copies are counted. Two cases look the same: a request that reports reused
 * blocks again (`kv_cache_report_mode`), and a request that stores second copies from the first
 * block of its prompt on (a prompt of exactly one block, `prompt_logprobs`). Copies of such runs
 * are counted as possible copies. When the last certain copy is removed, readers see the block as
 * removed, and the block counts as doubtful until a later event shows whether the GPU has it.
 */
export class EngineBlocks {
  readonly #native: Native;
  readonly known: KnownBlocks;
  readonly orphans: OrphanBlocks;
  readonly changes = new ChangeList();
  /** Removals received for blocks that are not known, on the GPU tier. */
  readonly #gone = new Set<BlockName>();
  #hasForgottenGone = false;

  constructor(native: Native, knownMax: number) {
    this.#native = native;
    this.known = new KnownBlocks(knownMax);
    this.orphans = new OrphanBlocks(Math.min(knownMax, ORPHANS_MAX));
  }

  /**
   * Removes all blocks and publishes that. Runs in steps, because readers cannot remove a million
   * blocks in one turn of the event loop.
   */
  *clearSteps(): Generator<void, void> {
    if (this.known.size > CLEARED_AT_ONCE) {
      for (const some of this.known.takeAll(BLOCKS_A_STEP)) {
        for (const { sequence, copies } of some) {
          for (const [place, tier] of RESIDENCY_TIERS.entries()) {
            if (copies[place] > 0) this.changes.removed(tier, sequence);
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
   * Adds a run of blocks at the start of a prompt or behind a known block, in steps. `isComplete`:
   * all blocks of the engine are known, so a block without a counted copy has none on the GPU.
   * `count` receives the outcome of each block.
   */
  *addSteps(
    run: BlockRun,
    { start, before, isComplete }: RunPlace,
    count: (outcome: CopyOutcome) => void,
  ): Generator<void, void> {
    let isAgain = before === null && run.tier === "device";
    // If the state is complete, the run can only repeat an earlier report if all its blocks may be
    // on the GPU.
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

  /**
   * Marks `last` and the blocks before it as resident on the GPU. An engine that stores a child
   * block keeps the child's parent and all ancestors resident during that request.
   */
  *#proveSteps(last: BlockName, isComplete: boolean): Generator<void, void> {
    // Without doubts and with complete state there is nothing to correct. Otherwise a removal may
    // have been counted for the wrong one of two copies, and any block of the path may wrongly
    // count as absent.
    if (isComplete && this.known.doubts === 0) return;
    let steps = 0;
    for (let name: BlockName | null = last; name !== null; steps++) {
      if (steps > 0 && steps % BLOCKS_A_STEP === 0) yield;
      const block: KnownBlock | null = this.known.get(name);
      if (block === null) return;
      // If the state is complete, a block without possible copies was really removed while the
      // request used it.
      const isOpen = !isComplete || block.perhaps > 0;
      if (isOpen && this.known.prove(name)) this.#announce(block, "device");
      name = block.before;
    }
  }

  /** Adds the blocks of one piece of a run. Returns the position of the last one. */
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
      const block = { sequence: sequence[i], parent, before, salt };
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
          local: local[i],
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
   * Keeps a run whose parent block is unknown, until the parent is known. Returns false if the
   * table of waiting blocks is full.
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

  /** Adds a copy of a block, given only its name. Returns false if the block is unknown. */
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

  /** Removes one copy of a block. Returns false if no copy is known. */
  remove(name: BlockName, tier: ResidencyTier): boolean {
    const block = this.known.dropCopy(name, tier);
    if (block === "others") return true;
    if (block !== null) {
      this.changes.removed(tier, block.sequence);
      return true;
    }
    return this.orphans.dropCopy(name, tier);
  }

  /** Records that a block without a known sequence hash was removed from the GPU. */
  removeUnknown(name: BlockName): void {
    if (this.#gone.size < GONE_MAX) this.#gone.add(name);
    else this.#hasForgottenGone = true;
  }

  /**
   * Provides the engine's names of the first blocks of a prompt. If one of these names is the
   * parent of a waiting block, the engine had all earlier blocks of the prompt when it stored that
   * block; those not removed since are still resident.
   */
  learn({ names, blocks, blockTokens }: BlockRun, start: ChainStart): void {
    const last = names.findLastIndex((name) => this.orphans.isWaitedFor(name));
    const { sequence } = chainOf(this.#native, blockTokens, blocks, start);
    for (const [i, name] of names.slice(0, last + 1).entries()) {
      if (this.known.get(name) !== null || this.orphans.get(name) !== null) continue;
      const isGone = this.#gone.delete(name) || this.#hasForgottenGone;
      const place = { parent: sequence[i - 1] ?? null, before: names[i - 1] ?? null };
      const block = { sequence: sequence[i], ...place, salt: start.salt };
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

  /** Restores a saved state into an empty table. `announceAll` publishes it to readers. */
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
        if (block.copies[place] > 0) this.#announce(block, tier);
      }
    }
  }

  /**
   * Publishes a block as stored, without its tokens. Readers that compute names from tokens do not
   * need this change.
   */
  #announce({ sequence, parent }: PlacedBlock, tier: ResidencyTier): void {
    this.changes.stored({ tier, parent, sequence, local: null, tokens: null, isPlain: false });
  }

  /** Moves the copies of the waiting block with that name to the block that is now known. */
  #adopt(name: BlockName, block: PlacedBlock): void {
    const orphan = this.orphans.take(name);
    if (orphan !== null) this.#place(name, orphan.copies, block);
  }

  /**
   * Adds the blocks that waited for the named parent, which is now known, then the blocks that
   * waited for those.
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
    const made = { local: chain.local[0], tokens, isPlain: isPlain(blocks, start) };
    const block = { sequence: chain.sequence[0], before: orphan.parent, ...start };
    this.#place(name, copies, block, made);
  }

  /**
   * Adds a block whose parent is now known. If the table is full, the block is dropped as if the
   * engine had no copy.
   */
  #place(
    name: BlockName,
    copies: readonly number[],
    { sequence, parent, before, salt }: PlacedBlock,
    made: Pick<Parameters<ChangeList["stored"]>[0], "local" | "tokens" | "isPlain"> = UNKNOWN,
  ): void {
    const block = () => ({ sequence, parent, before, salt });
    if (copies.every((count) => count === 0)) {
      // The block has no copy. Adding and removing one leaves its entry in the table, for its
      // children.
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

/** A block whose sequence hash is unknown because its parent's sequence hash is unknown. */
export interface OrphanBlock {
  readonly name: BlockName;
  readonly parent: BlockName;
  /** Tokens of the block: a copy owned by this object. */
  readonly tokens: Uint32Array;
  readonly extras: BlockExtras | null;
  readonly loraName: string | null;
  /** Salt of the block's prompt. Null if the event has none; the parent's salt applies then. */
  readonly salt: string | null;
  readonly copies: Copies;
}

/**
 * Blocks that wait for their parent blocks to become known. An ingest that starts late receives
 * children of blocks that the engine stored before. Bounded in number. A block without copies stays
 * as long as a child waits for it.
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
  /** Returns true if `count` more blocks fit. */
  hasRoom(count: number): boolean {
    return this.#byName.size + count <= this.#max;
  }

  get(name: BlockName): OrphanBlock | null {
    return this.#byName.get(name) ?? null;
  }

  /** Returns true if a waiting block has this name as its parent. */
  isWaitedFor(name: BlockName): boolean {
    return this.#children.has(name);
  }

  all(): Iterable<OrphanBlock> {
    return this.#byName.values();
  }

  /**
   * Adds a block with its copies and returns it. If a block of the same name exists, returns that
   * one unchanged.
   */
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

  /** Removes one copy of a waiting block. Returns false if it had none on that tier. */
  dropCopy(name: BlockName, tier: ResidencyTier): boolean {
    const block = this.#byName.get(name);
    const place = placeOf(tier);
    if (block === undefined || block.copies[place] === 0) return false;
    block.copies[place]--;
    this.#forgetUnneeded(block);
    return true;
  }

  /** Removes and returns the waiting block with this name, which is now known. */
  take(name: BlockName): OrphanBlock | null {
    const block = this.#byName.get(name);
    if (block === undefined) return null;
    this.#remove(block);
    return block;
  }

  /** Removes and returns the waiting blocks with this parent. */
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

  /**
   * Removes the block if it has neither copies nor waiting children, then checks its parent in the
   * same way.
   */
  #forgetUnneeded(block: OrphanBlock): void {
    let at: OrphanBlock | undefined = block;
    while (at?.copies.every((copies) => copies === 0) && !this.#children.has(at.name)) {
      this.#remove(at);
      at = this.#byName.get(at.parent);
    }
  }
}

/** The content of consecutive blocks of one event. */
interface EventBlocks {
  /** Tokens of the blocks, all whole. */
  readonly tokens: Uint32Array;
  readonly loraName: string | null;
  /** Extra keys, one entry per block. Null if no block has any. */
  readonly extras: readonly (BlockExtras | null)[] | null;
}

/** The position before the first block: its parent's hash and the prompt's salt. */
interface ChainStart {
  readonly parent: bigint | null;
  /** Number that the prompt's salt adds to the seeds of block hashes. */
  readonly salt: bigint;
}

interface BlockChain {
  readonly local: BigUint64Array;
  readonly sequence: BigUint64Array;
}

/**
 * Computes for each block the hash of its own tokens, and the sequence hash of the prompt up to its
 * end.
 */
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
    last = sequenceHash(last, into.local[i]);
    into.sequence[i] = last;
  }
  return into;
}

/** Returns true if the blocks have no LoRA adapter, salt or other extra keys. */
function isPlain({ loraName, extras }: EventBlocks, { salt }: ChainStart): boolean {
  if (salt !== 0n || loraName !== null) return false;
  return extras?.every((one) => isEmpty(one)) ?? true;
}

/** Prefix that Dynamo's router puts before cache salts that it sends to vLLM. */
const SALT_PREFIX = "dynamo-cache-salt:";

/**
 * Returns the salt in the event's first block. Null if it has none; the blocks then use their
 * parent's salt.
 */
export function saltOf(event: EngineEvent & { kind: "stored" }): string | null {
  const salt = event.cacheSalt ?? event.extras?.[0]?.cacheSalt ?? null;
  if (salt === null || salt === "") return null;
  return salt.startsWith(SALT_PREFIX) ? salt.slice(SALT_PREFIX.length) : salt;
}

/**
 * Returns the number that a salt adds to the seeds. Without a salt, returns the parent's number.
 */
export function shareOf(salt: string | null, parents: bigint): bigint {
  return salt === null ? parents : saltShare(salt);
}

function isEmpty(extras: BlockExtras | null): boolean {
  if (extras === null) return true;
  const { loraName, cacheSalt, media, embeddings } = extras;
  return loraName === null && cacheSalt === null && media.length === 0 && embeddings === null;
}

/**
 * Returns the hashes of media that change a block's hash. Prompt embeddings are excluded, because a
 * router cannot know them.
 */
function mediaOf(extras: BlockExtras | null): bigint[] {
  if (extras === null) return [];
  const hashes = extras.media.map(({ id }) => mediaHash(id));
  if (extras.embeddings !== null) {
    hashes.push(mediaHash(Buffer.from(extras.embeddings).toString("latin1")));
  }
  return hashes;
}
