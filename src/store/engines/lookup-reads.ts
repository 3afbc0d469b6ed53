import { type NodeId, yieldToLoop } from "../../core/index.ts";
import { AwaitedFetches } from "../awaited-blocks.ts";
import type { ReadOutcome } from "../ssd/block-reader.ts";
import type { TieredStore } from "../tiered-store.ts";
import type { Claim } from "./claims.ts";
import type { LookupRank } from "./lookup.ts";

const KEY_WORDS = 8;
const DIGEST_BYTES = 32;
/** Reads started before the event loop is yielded to. */
const READS_A_SLICE = 256;

interface LookupReadsParts {
  readonly store: TieredStore;
  readonly ranks: readonly LookupRank[];
  readonly layer: number;
  /** Reservation of the lookup. It must already contain the nodes to read. */
  readonly claim: Claim;
  /** Called when block `i` has arrived from a peer. The callee may reserve it. */
  readonly keep: (node: NodeId, i: number) => void;
  /**
   * `changed`: called when a block has arrived or failed. `failed`: called with an unexpected
   * error.
   */
  readonly changed: () => void;
  readonly failed: (error: unknown) => void;
}

/** The reads from SSD and fetches from peers of one lookup. */
export class LookupReads {
  readonly #parts: LookupReadsParts;
  readonly #reading = new Set<NodeId>();
  /** Per rank: indices of the blocks being fetched. */
  readonly #fetching: readonly Set<number>[];
  readonly #fetches = new Set<AwaitedFetches>();
  /** Queued until `begin`: nodes to read, and, per rank, indices of blocks to fetch. */
  #reads: NodeId[] = [];
  #places: number[][];
  #isOver = false;

  constructor(parts: LookupReadsParts) {
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
    return this.#fetching[rank].has(i);
  }

  /**
   * Cancels the fetches and ignores later results. A read in progress is completed, so that later
   * requests find the block in RAM.
   */
  stop(): void {
    this.#isOver = true;
    for (const fetched of this.#fetches) fetched.cancel();
  }

  /** Queues a read from SSD. The reservation must contain the block. */
  addRead(node: NodeId): void {
    this.#reads.push(node);
  }

  /** Queues a fetch of block `i` of this rank, which a peer announced. */
  addFetch(rank: number, i: number): void {
    this.#places[rank].push(i);
  }

  /** Starts the queued reads and fetches. `ms`: milliseconds until the deadline of the fetches. */
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
      // Skip a node that left the reservation: nothing else keeps it in the table until it is read.
      if (this.#isOver || !claim.has(node)) this.#reading.delete(node);
      else void store.ssd!.load(node).then((came) => this.#cameFromSsd(node, came));
    }
  }

  #cameFromSsd(node: NodeId, came: ReadOutcome): void {
    const { store, claim, changed } = this.#parts;
    this.#reading.delete(node);
    const isKept = claim.has(node);
    if (came !== "ok" && isKept) claim.drop(node);
    // If the reservation has ended, no request will acquire the block: add it to the eviction order
    // now.
    if (came === "ok" && !isKept) store.ram.settleFresh(node);
    changed();
  }

  /**
   * Fetches blocks of one rank from `sources`, or, without sources, from the peers that announced
   * them. Calls `notCome` if the first block did not arrive.
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
    const fetching = this.#fetching[rank];
    const { namespace, digests, keys } = ranks[rank];
    const blocks = places.map((i) => ({
      digest: digests.slice(DIGEST_BYTES * i, DIGEST_BYTES * (i + 1)),
      key: keys.slice(KEY_WORDS * i, KEY_WORDS * (i + 1)),
      layer,
    }));
    const fetched = new AwaitedFetches(store, namespace, blocks);
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
