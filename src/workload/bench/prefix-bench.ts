import { HearthError, type Random, randomBelow, yieldToLoop } from "../../core/index.ts";
import { mixHash } from "../../observability/activity/index.ts";
import type { IndexChange, PrefixIndex, TargetId } from "../../router/index.ts";
import type { Trace } from "../traces/index.ts";
import { median, quantile, rounded } from "./measure.ts";

/** Number of blocks into which each block of the trace is split. */
const PARTS = 4;
const CHANGES_AT_ONCE = 256;
const PROMPTS_KEPT = 20_000;

export interface PrefixBenchOptions {
  readonly trace: Trace;
  readonly index: PrefixIndex;
  readonly random: Random;
  readonly workers: number;
  /** Minimum number of pairs of a block and a worker to store. */
  readonly heldBlocks: number;
  /** Number of blocks of each prompt that is looked up. */
  readonly promptBlocks: number;
  readonly lookups: number;
  /** Number of prompts in one call of `matchMany`. */
  readonly batch: number;
  /** Number of blocks that one removal names. */
  readonly removalBlocks: number;
  readonly signal?: AbortSignal;
  readonly onProgress?: (what: string) => void;
}

/** Fills an empty prefix index, looks up prompts, and removes everything. */
export async function benchPrefix(options: PrefixBenchOptions) {
  const { index, workers, onProgress } = options;
  const chains = await chainsOf(options.trace, PARTS);
  const filled = await fill(options, chains);
  const { blocks, heldBlocks, runs, bytes } = index.stats;
  if (heldBlocks !== filled.heldBlocks) {
    throw new HearthError("INTERNAL", `${filled.heldBlocks} were stored, ${heldBlocks} are held`);
  }
  onProgress?.("lookups");
  const single = await lookUp(options, filled.prompts);
  const batched = await lookUpMany(options, filled.prompts);
  const removal = await takeOut(options, filled.stores);
  return {
    workers,
    holder_blocks: heldBlocks,
    blocks,
    runs,
    /** Memory in use, including the whole hash table, per pair of a block and a worker. */
    bytes_per_holder_block: rounded(bytes / heldBlocks, 2),
    lookup_p50_ns: single.p50,
    lookup_p99_ns: single.p99,
    batch_lookup_ns: Math.round(batched),
    /** Mean number of workers (targets) in the result of a lookup. */
    targets_per_lookup: rounded(single.targets, 2),
    store_blocks_per_s: Math.round(filled.heldBlocks / filled.seconds),
    remove_blocks_per_s: Math.round(heldBlocks / removal),
  };
}

interface Filled {
  readonly stores: IndexChange[];
  readonly prompts: BigUint64Array[];
  readonly heldBlocks: number;
  readonly seconds: number;
}

async function fill(options: PrefixBenchOptions, chains: readonly Chain[]): Promise<Filled> {
  const { random, workers, promptBlocks, signal, onProgress } = options;
  const ids = idsIn(chains);
  const stores: IndexChange[] = [];
  const long: BigUint64Array[] = [];
  const fleet = new Fleet({ chains, ids, workers, random, shared: firstBlocks(chains, PARTS) });
  let heldBlocks = 0;
  let ns = 0;
  for (let copy = 0; heldBlocks < options.heldBlocks; copy++) {
    const served = fleet.serve(copy);
    ns += timed(options.index, served.stores);
    heldBlocks += served.heldBlocks;
    for (const store of served.stores) stores.push(store);
    for (const prompt of served.prompts) {
      if (prompt.length < promptBlocks) continue;
      const cut = prompt.slice(0, promptBlocks);
      if (long.length < PROMPTS_KEPT) long.push(cut);
      else if (randomBelow(random, 8) === 0) long[randomBelow(random, PROMPTS_KEPT)] = cut;
    }
    onProgress?.(`${heldBlocks} of ${options.heldBlocks} stored`);
    await yieldToLoop();
    signal?.throwIfAborted();
  }
  if (long.length === 0) {
    throw new HearthError("USAGE", `no prompt of the trace has ${promptBlocks} blocks`);
  }
  return { stores, prompts: long, heldBlocks, seconds: ns / 1e9 };
}

/** Applies all changes and returns the nanoseconds taken. */
function timed(index: PrefixIndex, changes: readonly IndexChange[]): number {
  const started = Bun.nanoseconds();
  for (let at = 0; at < changes.length; at += CHANGES_AT_ONCE) {
    index.apply(changes.slice(at, at + CHANGES_AT_ONCE));
  }
  return Bun.nanoseconds() - started;
}

async function lookUp(options: PrefixBenchOptions, prompts: readonly BigUint64Array[]) {
  const { index, random, promptBlocks, lookups, signal } = options;
  // Copies each prompt to contiguous memory, as hashing leaves it.
  const prompt = new BigUint64Array(new ArrayBuffer(promptBlocks * 8));
  const ns: number[] = [];
  let targets = 0;
  for (let i = 0; i < lookups; i++) {
    prompt.set(prompts[randomBelow(random, prompts.length)]);
    const started = Bun.nanoseconds();
    const found = index.match(prompt);
    ns.push(Bun.nanoseconds() - started);
    targets += found.count;
    if (i % 4096 === 0) await yieldToLoop();
    signal?.throwIfAborted();
  }
  // The first lookups are a warm-up of the JIT compiler and do not count.
  const warm = ns.slice(Math.min(5_000, ns.length >> 1));
  return { p50: quantile(warm, 0.5), p99: quantile(warm, 0.99), targets: targets / lookups };
}

/** Looks up the prompts in batches and returns the median nanoseconds per lookup. */
async function lookUpMany(options: PrefixBenchOptions, prompts: readonly BigUint64Array[]) {
  const { index, random, promptBlocks, lookups, batch, signal } = options;
  const hashes = new BigUint64Array(new ArrayBuffer(promptBlocks * batch * 8));
  const ends = Uint32Array.from({ length: batch }, (_, i) => (i + 1) * promptBlocks);
  const ns: number[] = [];
  for (let done = 0; done < lookups; done += batch) {
    for (let i = 0; i < batch; i++) {
      hashes.set(prompts[randomBelow(random, prompts.length)], i * promptBlocks);
    }
    const started = Bun.nanoseconds();
    index.matchMany(hashes, ends);
    ns.push((Bun.nanoseconds() - started) / batch);
    await yieldToLoop();
    signal?.throwIfAborted();
  }
  return median(ns);
}

/** Removes all blocks in the order in which engines evict, and returns the seconds taken. */
async function takeOut(options: PrefixBenchOptions, stores: readonly IndexChange[]) {
  const { index, removalBlocks, signal, onProgress } = options;
  let ns = 0;
  for (let end = stores.length; end > 0; end -= 4096) {
    const some = stores.slice(Math.max(0, end - 4096), end).reverse();
    const removals = removalsOf(some, removalBlocks);
    ns += timed(index, removals);
    onProgress?.(`${index.stats.heldBlocks} left`);
    await yieldToLoop();
    signal?.throwIfAborted();
  }
  const { heldBlocks, blocks } = index.stats;
  if (heldBlocks + blocks > 0) throw new HearthError("INTERNAL", `${heldBlocks} were left over`);
  return ns / 1e9;
}

/** Block ids of one prompt in order. Ids are numbered without gaps over the whole trace. */
type Chain = Uint32Array;

/**
 * Returns the prompts of a trace with each block split into `parts`, so that chains are as long as
 * with smaller blocks. Prompts share the same prefixes as before.
 */
async function chainsOf(trace: Trace, parts: number): Promise<Chain[]> {
  const chains: Chain[] = [];
  for await (const { blocks } of trace.requests()) {
    if (blocks.length === 0) continue;
    const chain = new Uint32Array(blocks.length * parts);
    for (let i = 0; i < chain.length; i++) {
      chain[i] = blocks[Math.floor(i / parts)] * parts + (i % parts);
    }
    chains.push(chain);
  }
  return chains;
}

function idsIn(chains: readonly Chain[]): number {
  let last = 0;
  for (const chain of chains) last = Math.max(last, chain.at(-1)!);
  return last + 1;
}

/**
 * Returns the sequence hashes of copy number `copy` of all blocks. A copy stands for other users
 * with prompts of the same shape; the common prefixes (`shared` ids) are the same in all copies.
 */
function hashesOfCopy(ids: number, copy: number, shared: ReadonlySet<number>) {
  const salt = BigInt(copy + 1) << 40n;
  return BigUint64Array.from({ length: ids }, (_, id) =>
    mixHash(BigInt(id + 1) + (shared.has(id) ? 0n : salt)),
  );
}

/** Returns the first blocks of all prompts. */
function firstBlocks(chains: readonly Chain[], parts: number): Set<number> {
  return new Set(chains.flatMap((chain) => [...chain.subarray(0, parts)]));
}

/** One prompt in this many is also stored on a worker that never served its conversation. */
const STRAYS = 8;

interface FleetOptions {
  readonly chains: readonly Chain[];
  /** Number of distinct blocks in the chains. */
  readonly ids: number;
  /** Ids of the blocks that are the same in all copies. */
  readonly shared: ReadonlySet<number>;
  readonly workers: number;
  readonly random: Random;
}

/** Index changes of the workers that serve one copy of all prompts. */
interface Served {
  readonly stores: IndexChange[];
  /** Hashes of each prompt, in the order of the chains. */
  readonly prompts: BigUint64Array[];
  readonly heldBlocks: number;
}

/**
 * Workers that serve copies of the same prompts for ever more users. All prompts of one
 * conversation go to one worker, which stores the blocks that it does not have.
 */
class Fleet {
  readonly #options: FleetOptions;
  /** Ids of the shared blocks that each worker has. */
  readonly #held = new Map<number, Set<number>>();

  constructor(options: FleetOptions) {
    this.#options = options;
  }

  serve(copy: number): Served {
    const { chains, ids, shared, workers, random } = this.#options;
    const hashes = hashesOfCopy(ids, copy, shared);
    const homes = new Map<number, number>();
    const held = new Map<number, Uint8Array>();
    const served: Served = { stores: [], prompts: [], heldBlocks: 0 };
    let heldBlocks = 0;
    for (const chain of chains) {
      const topic = chain.find((id) => !shared.has(id)) ?? chain[0];
      const home = homes.get(topic) ?? randomBelow(random, workers);
      homes.set(topic, home);
      const prompt = BigUint64Array.from(chain, (id) => hashes[id]);
      served.prompts.push(prompt);
      const strays = randomBelow(random, STRAYS) === 0;
      for (const worker of strays ? [home, randomBelow(random, workers)] : [home]) {
        const own = held.get(worker) ?? this.#begin(worker);
        held.set(worker, own);
        const from = chain.findIndex((id) => own[id] === 0);
        if (from < 0) continue;
        this.#keep(worker, own, chain.subarray(from));
        heldBlocks += chain.length - from;
        served.stores.push(storeOf(worker, prompt, from));
      }
    }
    return { ...served, heldBlocks };
  }

  /** Returns, by block id, the blocks of a new copy that the worker has: the shared ones. */
  #begin(worker: number): Uint8Array {
    const own = new Uint8Array(this.#options.ids);
    for (const id of this.#held.get(worker) ?? []) own[id] = 1;
    return own;
  }

  #keep(worker: number, own: Uint8Array, ids: Chain): void {
    const shared = this.#held.get(worker) ?? new Set();
    this.#held.set(worker, shared);
    for (const id of ids) {
      own[id] = 1;
      if (this.#options.shared.has(id)) shared.add(id);
    }
  }
}

function storeOf(worker: number, prompt: BigUint64Array, from: number): IndexChange {
  const parent = from === 0 ? null : prompt[from - 1];
  const hashes = prompt.slice(from);
  const change = { kind: "stored", tier: "device", parent, hashes, tokenHashes: null } as const;
  return { target: worker as TargetId, change };
}

/** Returns removals of all stored blocks in the order in which engines evict: leaves first. */
function removalsOf(stores: readonly IndexChange[], blocksOfEach: number): IndexChange[] {
  const removals: IndexChange[] = [];
  for (const { target, change } of stores) {
    if (change.kind !== "stored") continue;
    const reversed = change.hashes.slice().reverse();
    for (let at = 0; at < reversed.length; at += blocksOfEach) {
      const hashes = reversed.slice(at, at + blocksOfEach);
      removals.push({ target, change: { kind: "removed", tier: change.tier, hashes } });
    }
  }
  return removals;
}
