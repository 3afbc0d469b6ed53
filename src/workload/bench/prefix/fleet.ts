import { type Random, randomBelow } from "../../../core/index.ts";
import type { IndexChange, TargetId } from "../../../router/index.ts";
import { type Chain, hashesOfCopy } from "./chains.ts";

/** One prompt in this many is also served by a worker that never saw its conversation. */
const STRAYS = 8;

export interface FleetOptions {
  readonly chains: readonly Chain[];
  /** Distinct blocks in them. */
  readonly ids: number;
  /** Blocks that are the same in all copies. */
  readonly shared: ReadonlySet<number>;
  readonly workers: number;
  readonly random: Random;
}

/** What workers say while they serve one copy of all prompts. */
export interface Served {
  readonly stores: IndexChange[];
  /** In the order of the chains. */
  readonly prompts: BigUint64Array[];
  readonly heldBlocks: number;
}

/**
 * Workers that serve the same prompts for other users again and again. Prompts of one conversation
 * (what follows on a shared block) go to one worker, which stores what it does not have yet.
 */
export class Fleet {
  readonly #options: FleetOptions;
  /** Shared blocks by worker. */
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
      const topic = chain.find((id) => !shared.has(id)) ?? chain[0]!;
      const home = homes.get(topic) ?? randomBelow(random, workers);
      homes.set(topic, home);
      const prompt = BigUint64Array.from(chain, (id) => hashes[id]!);
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

  /** By id, what a worker has of a copy: of a new one the shared blocks. */
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
  const parent = from === 0 ? null : prompt[from - 1]!;
  const hashes = prompt.slice(from);
  const change = { kind: "stored", tier: "device", parent, hashes, tokenHashes: null } as const;
  return { target: worker as TargetId, change };
}

/** The removal of what was stored, in the order in which engines evict: ends first. */
export function removalsOf(stores: readonly IndexChange[], blocksOfEach: number): IndexChange[] {
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
