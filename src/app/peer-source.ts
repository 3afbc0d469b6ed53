import {
  type BlockName,
  type BlockResult,
  isWorkerId,
  type NamespaceIndex,
  type WorkerId,
} from "../core/index.ts";
import type { PeerFound, Puller, WantedBlock } from "../peers/index.ts";
import type { BlockSourcePort, FetchOutcome, Namespaces } from "../store/index.ts";

/** Blocks pulled before those that came are let go of: while they wait they cannot be evicted. */
const AT_ONCE = 256;
/** For so many blocks; slower than this is no warming. */
const PULL_MS = 30_000;
const FIND_MS = 5_000;
/** Namespaces that no engine here has named are taken from peers up to this number. */
const NAMESPACES_MAX = 1_024;
/** Of these, from one peer: numbers are never given back, and its word is all there is. */
const NAMESPACES_OF_ONE = 128;
/** The same for one name: blocks with a hash are in few namespaces, and all are asked for. */
const NAMESPACES_A_NAME = 4;
/** Namespaces in which a digest that nobody knows by another name is looked for. */
const NAMESPACES_TRIED = 16;

const MISSING: BlockResult = Object.freeze({ outcome: "missing" });
const DONE: BlockResult = Object.freeze({ outcome: "done" });
const FULL: BlockResult = Object.freeze({
  outcome: "rejected",
  reason: "full: RAM has no room for it that nothing warm is in",
});
const LATE: BlockResult = Object.freeze({
  outcome: "deferred",
  reason: "peers: it did not come in time",
});

/** One block that a name means, and who is said to have it. */
interface Meant extends WantedBlock {
  readonly namespace: NamespaceIndex;
  readonly sources: readonly WorkerId[];
  /** Places in the list of names. */
  readonly names: number[];
}

/** Brings what a command wants warm from other hosts; nothing while there is no puller. */
export class PeerSource implements BlockSourcePort {
  readonly #namespaces: Namespaces;
  /** Namespaces taken from each peer since the start. */
  readonly #taken = new Map<WorkerId, number>();
  #puller: Puller | null = null;

  constructor(namespaces: Namespaces) {
    this.#namespaces = namespaces;
  }

  get puller(): Puller | null {
    return this.#puller;
  }

  set puller(puller: Puller | null) {
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
      const outcomes = await puller.pull(group[0]!.namespace, group, {
        priority: "warm",
        deadlineMs: PULL_MS,
        sources: [...new Set([...workers, ...group.flatMap((one) => one.sources)])],
        signal,
        always: true,
        stopAtMiss: false,
      });
      for (const [at, outcome] of outcomes.entries()) note(results, group[at]!, outcome);
    }
    return results;
  }

  async #meant(
    puller: Puller,
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
      // Where it is a digest, its namespace is one of those in use here.
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

  /** Numbers the namespaces of what one name means, as far as they are taken from peers. */
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

/** As peers look names up: a hash in eight bytes, little-endian, else 32. */
function bytesOf(name: BlockName): Uint8Array {
  if (name.kind === "key") return name.bytes;
  const bytes = new Uint8Array(8);
  const view = new DataView(bytes.buffer);
  view.setUint32(0, name.lo, true);
  view.setUint32(4, name.hi, true);
  return bytes;
}

/** Blocks of one namespace, so many at a time. */
function groupsOf(meant: readonly Meant[]): Meant[][] {
  const byNamespace = Map.groupBy(meant, ({ namespace }) => namespace);
  return [...byNamespace.values()].flatMap((blocks) =>
    Array.from({ length: Math.ceil(blocks.length / AT_ONCE) }, (_, i) =>
      blocks.slice(i * AT_ONCE, (i + 1) * AT_ONCE),
    ),
  );
}

/** Of the blocks behind one name one that came is enough for `done`; else the worst is told. */
function note(results: BlockResult[], { names }: Meant, outcome: FetchOutcome): void {
  const result = resultOf(outcome);
  for (const at of names) {
    const before = results[at]!;
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
