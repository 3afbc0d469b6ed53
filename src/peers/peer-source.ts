import {
  type BlockName,
  type BlockResult,
  isWorkerId,
  type NamespaceIndex,
  type WorkerId,
} from "../core/index.ts";
import type { BlockSourcePort, FetchOutcome, Namespaces } from "../store/index.ts";
import type { Fetcher } from "./fetcher/index.ts";
import type { PeerFound, WantedBlock } from "./messages.ts";

/**
 * Maximum blocks per batch. Received blocks cannot be evicted until their whole batch is released.
 */
const AT_ONCE = 256;
/** Maximum milliseconds for one batch. A slower fetch is of no use to a `warm` command. */
const PULL_MS = 30_000;
const FIND_MS = 5_000;
/** Above this number of known namespaces, no further ones are learned from peers. */
const NAMESPACES_MAX = 1_024;
/**
 * Maximum namespaces learned from one peer. Namespace indices are never reused, and the peer's
 * statement is unverified.
 */
const NAMESPACES_OF_ONE = 128;
/**
 * Maximum namespaces learned from one peer per name. An engine hash occurs in few namespaces; its
 * blocks are fetched in all of them.
 */
const NAMESPACES_A_NAME = 4;
/** Number of namespaces in which to look for a digest that no peer has found by name. */
const NAMESPACES_TRIED = 16;

const MISSING: BlockResult = Object.freeze({ outcome: "missing" });
const DONE: BlockResult = Object.freeze({ outcome: "done" });
const FULL: BlockResult = Object.freeze({
  outcome: "rejected",
  reason: "full: all RAM is used by warmer blocks",
});
const LATE: BlockResult = Object.freeze({
  outcome: "deferred",
  reason: "peers: the fetch timed out",
});

/** A block that one or several names identify, with the peers that have it. */
interface Meant extends WantedBlock {
  readonly namespace: NamespaceIndex;
  readonly sources: readonly WorkerId[];
  /** Indices, in the command's list of names, of the names that identify this block. */
  readonly names: number[];
}

/**
 * Fetches the blocks of `warm` commands from peers. Without a puller, reports all blocks as
 * missing.
 */
export class PeerSource implements BlockSourcePort {
  readonly #namespaces: Namespaces;
  /** Number of namespaces learned from each peer since the start. */
  readonly #taken = new Map<WorkerId, number>();
  #puller: Fetcher | null = null;

  constructor(namespaces: Namespaces) {
    this.#namespaces = namespaces;
  }

  get puller(): Fetcher | null {
    return this.#puller;
  }

  set puller(puller: Fetcher | null) {
    this.#puller = puller;
  }

  async pull(
    names: readonly BlockName[],
    sources: readonly string[],
    given: AbortSignal | null,
  ): Promise<readonly BlockResult[]> {
    const results: BlockResult[] = names.map(() => MISSING);
    const puller = this.#puller;
    if (puller === null) return results;
    const signal = given ?? new AbortController().signal;
    const workers = sources.filter(isWorkerId);
    const meant = await this.#meant(puller, names, workers, signal);
    for (const group of groupsOf(meant)) {
      if (signal.aborted) break;
      const outcomes = await puller.pull(group[0].namespace, group, {
        priority: "warm",
        deadlineMs: PULL_MS,
        sources: [...new Set([...workers, ...group.flatMap((one) => one.sources)])],
        signal,
        always: true,
        stopAtMiss: false,
      });
      for (const [at, outcome] of outcomes.entries()) note(results, group[at], outcome);
    }
    return results;
  }

  async #meant(
    puller: Fetcher,
    names: readonly BlockName[],
    sources: readonly WorkerId[],
    signal: AbortSignal,
  ): Promise<Meant[]> {
    const options = { deadlineMs: FIND_MS, signal };
    const found = await puller.find(names.map(bytesOf), sources, options);
    const meant = new Map<string, Meant>();
    for (const [at, name] of names.entries()) {
      this.#take(found[at] ?? []);
      for (const block of found[at] ?? []) this.#add(meant, at, block, block.worker);
      if (found[at]?.length || name.kind === "hash") continue;
      // A digest does not identify its namespace, so try the most recently added namespaces.
      for (const namespace of this.#namespaces.keys().slice(-NAMESPACES_TRIED)) {
        this.#add(meant, at, { namespace, digest: name.bytes, layer: name.layer }, null);
      }
    }
    return [...meant.values()];
  }

  #add(
    meant: Map<string, Meant>,
    at: number,
    { namespace: key, digest, layer }: Pick<PeerFound, "namespace" | "digest" | "layer">,
    worker: WorkerId | null,
  ): void {
    const name = `${key.toHex()} ${digest.toHex()} ${layer}`;
    const known = meant.get(name);
    if (known === undefined) {
      const namespace = this.#namespaces.find(key);
      if (namespace === null) return;
      const sources = worker === null ? [] : [worker];
      meant.set(name, { namespace, digest, layer, sources, names: [at] });
      return;
    }
    if (!known.names.includes(at)) known.names.push(at);
    const isNew = worker !== null && !known.sources.includes(worker);
    if (isNew) meant.set(name, { ...known, sources: [...known.sources, worker] });
  }

  /** Adds namespaces of blocks that peers have found to the known namespaces, within the limits. */
  #take(found: readonly (PeerFound & { readonly worker: WorkerId })[]): void {
    const namespaces = this.#namespaces;
    const here = new Map<WorkerId, number>();
    for (const { namespace, worker } of found) {
      if (namespaces.size >= NAMESPACES_MAX) return;
      if (namespaces.find(namespace) !== null) continue;
      const [now, ever] = [here.get(worker) ?? 0, this.#taken.get(worker) ?? 0];
      if (now === NAMESPACES_A_NAME || ever === NAMESPACES_OF_ONE) continue;
      here.set(worker, now + 1);
      this.#taken.set(worker, ever + 1);
      namespaces.indexOf(namespace);
    }
  }
}

/**
 * Encodes a name for a `find` request: 8 bytes little-endian for an engine hash, otherwise 32
 * bytes.
 */
function bytesOf(name: BlockName): Uint8Array {
  if (name.kind === "key") return name.bytes;
  const bytes = new Uint8Array(8);
  const view = new DataView(bytes.buffer);
  view.setUint32(0, name.lo, true);
  view.setUint32(4, name.hi, true);
  return bytes;
}

/** Groups blocks by namespace, in batches of at most `AT_ONCE`. */
function groupsOf(meant: readonly Meant[]): Meant[][] {
  const byNamespace = Map.groupBy(meant, ({ namespace }) => namespace);
  return [...byNamespace.values()].flatMap((blocks) =>
    Array.from({ length: Math.ceil(blocks.length / AT_ONCE) }, (_, i) =>
      blocks.slice(i * AT_ONCE, (i + 1) * AT_ONCE),
    ),
  );
}

/**
 * Merges the outcome of fetching a block into the results of the names that identify it. A name's
 * result is `done` if any of its blocks arrived; otherwise it is the first failure other than a
 * missing block.
 */
function note(results: BlockResult[], { names }: Meant, outcome: FetchOutcome): void {
  const result = resultOf(outcome);
  for (const at of names) {
    const before = results[at];
    if (result === DONE || before === MISSING) results[at] = before === DONE ? DONE : result;
  }
}

function resultOf(outcome: FetchOutcome): BlockResult {
  switch (outcome.kind) {
    case "ok":
      outcome.arrival.release(false);
      return DONE;
    case "miss":
      return MISSING;
    case "full":
      return FULL;
    case "late":
      return LATE;
    default:
      return outcome satisfies never;
  }
}
