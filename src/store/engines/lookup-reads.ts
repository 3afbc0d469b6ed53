import { type NodeId, yieldToLoop } from "../../core/index.ts";
import { FetchedBlocks } from "../awaited-blocks.ts";
import type { ReadOutcome } from "../ssd/block-reader.ts";
import type { TieredStore } from "../tiered-store.ts";
import type { Claim } from "./claims.ts";
import type { LookupRank } from "./lookup.ts";

const KEY_WORDS = 8;
const DIGEST_BYTES = 32;
/** Reads begun before others have their turn. */
const READS_A_SLICE = 256;

export interface BringingParts {
  readonly store: TieredStore;
  readonly ranks: readonly LookupRank[];
  readonly layer: number;
  /** Keeps what comes; the nodes that are read are in it. */
  readonly claim: Claim;
  /** Block `i` has come from a peer: whether it is kept is not this one's business. */
  readonly keep: (node: NodeId, i: number) => void;
  /** Something has come, or will not. */
  readonly changed: () => void;
  readonly failed: (error: unknown) => void;
}

/** Blocks on their way to RAM for one lookup. */
export class Bringing {
  readonly #parts: BringingParts;
  readonly #reading = new Set<NodeId>();
  /** By rank: positions of blocks on their way from peers. */
  readonly #fetching: readonly Set<number>[];
  readonly #fetches = new Set<FetchedBlocks>();
  /** To begin with: nodes to read, and by rank the positions of blocks to fetch. */
  #reads: NodeId[] = [];
  #places: number[][];
  #isOver = false;

  constructor(parts: BringingParts) {
    this.#parts = parts;
    this.#fetching = parts.ranks.map(() => new Set());
    this.#places = parts.ranks.map(() => []);
  }

  get areReads(): boolean {
    return this.#reading.size > 0;
  }

  isReading(node: NodeId): boolean {
    return this.#reading.has(node);
  }

  isFetching(rank: number, i: number): boolean {
    return this.#fetching[rank]!.has(i);
  }

  /** Nothing is wanted any more. A read that has begun completes, for later requests. */
  stop(): void {
    this.#isOver = true;
    for (const fetched of this.#fetches) fetched.cancel();
  }

  /** A block to bring from SSD, which the claim has. */
  addRead(node: NodeId): void {
    this.#reads.push(node);
  }

  /** A block to bring from a peer that is believed to have it. */
  addFetch(rank: number, i: number): void {
    this.#places[rank]!.push(i);
  }

  /** Begins to bring what was added, within `ms`. */
  begin(ms: number): void {
    const [reads, places] = [this.#reads, this.#places];
    [this.#reads, this.#places] = [[], places.map(() => [])];
    void this.#read(reads).catch(this.#parts.failed);
    for (const [rank, some] of places.entries()) this.fetch(rank, some, ms);
  }

  async #read(nodes: readonly NodeId[]): Promise<void> {
    const { store, claim } = this.#parts;
    for (const node of nodes) this.#reading.add(node);
    for (const [begun, node] of nodes.entries()) {
      if (begun > 0 && begun % READS_A_SLICE === 0) await yieldToLoop();
      // The claim is what keeps the node alive until it is read.
      if (this.#isOver || !claim.has(node)) this.#reading.delete(node);
      else void store.ssd!.bring(node).then((came) => this.#cameFromSsd(node, came));
    }
  }

  #cameFromSsd(node: NodeId, came: ReadOutcome): void {
    const { store, claim, changed } = this.#parts;
    this.#reading.delete(node);
    const isKept = claim.has(node);
    if (came !== "ok" && isKept) claim.drop(node);
    // The order hears of it with the request that acquires it, or now.
    if (came === "ok" && !isKept) store.ram.settleFresh(node);
    changed();
  }

  /**
   * Brings blocks of one rank from peers: from `sources`, or from those that are believed to have
   * them. `notCome` is called if the first did not come.
   */
  fetch(
    rank: number,
    places: readonly number[],
    ms: number,
    sources: readonly string[] = [],
    notCome: () => void = () => undefined,
  ): void {
    if (places.length === 0) return;
    void this.#fetch(rank, places, ms, sources, notCome).catch(this.#parts.failed);
  }

  async #fetch(
    rank: number,
    places: readonly number[],
    ms: number,
    sources: readonly string[],
    notCome: () => void,
  ): Promise<void> {
    const { store, ranks, layer, keep, changed } = this.#parts;
    const fetching = this.#fetching[rank]!;
    const { namespace, digests, keys } = ranks[rank]!;
    const blocks = places.map((i) => ({
      digest: digests.slice(DIGEST_BYTES * i, DIGEST_BYTES * (i + 1)),
      key: keys.slice(KEY_WORDS * i, KEY_WORDS * (i + 1)),
      layer,
    }));
    const fetched = new FetchedBlocks(store, namespace, blocks);
    this.#fetches.add(fetched);
    for (const i of places) fetching.add(i);
    await fetched.wait(ms, true, sources);
    this.#fetches.delete(fetched);
    for (const [k, i] of places.entries()) {
      fetching.delete(i);
      const node = fetched.nodeOf(k);
      if (node !== null && !this.#isOver) keep(node, i);
    }
    if (fetched.nodeOf(0) === null) notCome();
    fetched.release(() => true);
    changed();
  }
}
