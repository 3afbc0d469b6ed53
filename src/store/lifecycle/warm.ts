import type { BlockName, BlockResult, NodeId } from "../../core/index.ts";
import { type TableView, Tier } from "../blocks/index.ts";
import { type LifecycleContext, Slices } from "./context.ts";
import type { LifecycleReport, OfferedBlock, WarmOptions } from "./lifecycle.ts";
import { ALREADY, DONE, deferred, MISSING, NamedBlocks, rejected, reportOf } from "./outcomes.ts";

/** Maximum number of blocks requested from peers together. */
const PULLED_AT_ONCE = 256;

/**
 * Share of the evictable RAM, 0 to 1, that one warm command may take, so that other blocks stay.
 */
const SHARE_OF_EVICTABLE = 0.5;

const ABORTED = deferred("aborted: the block was not loaded");
const UNREADABLE = deferred("ssd: the block cannot be read now");
const LOST_IN_SSD = deferred("ssd: the disk hangs; the read may still complete");
const STALLED = deferred("peers: no answer to the preceding requests");
const NO_SINK = deferred(
  "gpu_sink: in RAM; no engine here loads blocks to its GPU without a request",
);
const FULL = rejected("full: RAM has no room without evicting blocks in use");

/**
 * Loads blocks into RAM from SSD or peers. With target `gpu`, then offers them to engines for their
 * GPU memory.
 */
export async function warm(
  context: LifecycleContext,
  names: readonly BlockName[],
  options: WarmOptions,
): Promise<LifecycleReport> {
  const signal = AbortSignal.any([context.signal, ...(options.signal ? [options.signal] : [])]);
  const tiers = Tier.ram | Tier.ssd | (options.target === "gpu" ? Tier.gpu : 0);
  const blocks = new NamedBlocks(context, names, tiers);
  const warming = new Warming(context, blocks, options, signal);
  const onGpu = warming.namesOnGpu();
  const results = blocks.resultsOf(await warming.run());
  await warming.pullMissing(names, results);
  if (options.target === "gpu") {
    for (const i of results.keys()) if (onGpu[i]) results[i] = ALREADY;
    const isHere = ({ outcome }: BlockResult) => outcome === "done" || outcome === "already";
    const places = [...results.keys()].filter((i) => !onGpu[i] && isHere(results[i]));
    const came = await offer(
      context,
      places.map((i) => names[i]),
      signal,
    );
    for (const [k, i] of places.entries()) results[i] = came[k];
  }
  return reportOf(results, { bytes: warming.bytes });
}

class Warming {
  bytes = 0;
  readonly #context: LifecycleContext;
  readonly #blocks: NamedBlocks;
  readonly #options: WarmOptions;
  readonly #signal: AbortSignal;
  readonly #slices: Slices;
  readonly #results: BlockResult[];
  /** Bytes of RAM that this command may still take. */
  #room: number;
  #doneBlocks = 0;

  constructor(
    context: LifecycleContext,
    blocks: NamedBlocks,
    options: WarmOptions,
    signal: AbortSignal,
  ) {
    const { table, slots } = context.store;
    const free = slots.readyBytes - slots.usedBytes;
    this.#context = context;
    this.#blocks = blocks;
    this.#options = options;
    this.#signal = signal;
    this.#slices = new Slices(context.clock);
    this.#results = blocks.nodes.map(() => ABORTED);
    this.#room = free + table.evictableBytes(Tier.ram) * SHARE_OF_EVICTABLE;
  }

  /** Returns, per name, whether one of its blocks is in GPU memory. */
  namesOnGpu(): boolean[] {
    const { table } = this.#context.store;
    const here = (node: NodeId) => (table.isResident(node, Tier.gpu) ? ALREADY : DONE);
    const { nodes } = this.#blocks;
    return this.#blocks.resultsOf(nodes.map(here)).map((result) => result === ALREADY);
  }

  /** Reads the blocks. Returns one result per block when all reads have ended. */
  async run(): Promise<BlockResult[]> {
    const coming: Promise<void>[] = [];
    const { warmGate } = this.#context;
    for (const at of this.#blocks.nodes.keys()) {
      if (this.#signal.aborted) break;
      const bytes = this.#wants(at);
      if (bytes !== null && (await warmGate.enter(bytes, this.#signal))) {
        coming.push(this.#load(at, bytes).finally(() => warmGate.leave(bytes)));
      }
      if (this.#slices.isOver()) await this.#slices.turn();
    }
    await Promise.all(coming);
    return this.#results;
  }

  /** Returns the bytes of a block that has to be read; null if its result is already known. */
  #wants(at: number): number | null {
    const { table, ssd, slots } = this.#context.store;
    const node = this.#blocks.nodes[at];
    const bytes = this.#blocks.isLive(at) ? table.bytesOf(node) : 0;
    const known = (result: BlockResult) => {
      this.#results[at] = result;
      return null;
    };
    if (this.#blocks.isOn(at, Tier.ram)) return known(ALREADY);
    if (!this.#blocks.isOn(at, Tier.ssd) || ssd === null) return known(MISSING);
    if (!ssd.readable) return known(UNREADABLE);
    const slotBytes = slots.slotBytesFor(bytes);
    if (slotBytes > this.#room) return known(FULL);
    this.#room -= slotBytes;
    return bytes;
  }

  async #load(at: number, bytes: number): Promise<void> {
    const { table, ssd, ram } = this.#context.store;
    const node = this.#blocks.nodes[at];
    // The block may have been removed or loaded while this command waited.
    if (this.#blocks.isOn(at, Tier.ram)) this.#results[at] = ALREADY;
    else if (!this.#blocks.isOn(at, Tier.ssd)) this.#results[at] = MISSING;
    else if (!table.lock(node)) this.#results[at] = UNREADABLE;
    else {
      const read = ssd!.load(node, { warm: true }).then((outcome) => {
        // No request has used the block yet, so add it to the eviction order here.
        if (outcome === "ok") ram.settleFresh(node);
        const isThere = table.isResident(node, Tier.ssd);
        table.unlock(node);
        return outcome === "miss" && isThere ? "unread" : outcome;
      });
      const outcome = (await ssd!.orHung(read)) ?? "late";
      this.#results[at] = RESULTS[outcome];
      if (outcome === "full") this.#room = 0;
      if (outcome === "ok") this.#came(bytes);
    }
  }

  /** Fetches missing blocks from peers in batches, as long as RAM has room and peers answer. */
  async pullMissing(names: readonly BlockName[], results: BlockResult[]): Promise<void> {
    const { peers } = this.#context;
    const places = [...results.keys()].filter((i) => results[i] === MISSING);
    let isStalled = false;
    while (peers !== null && places.length > 0) {
      const some = places.splice(0, PULLED_AT_ONCE);
      const instead = this.#signal.aborted ? ABORTED : this.#room <= 0 ? FULL : null;
      if (instead !== null || isStalled) {
        for (const i of some) results[i] = instead ?? STALLED;
        continue;
      }
      const wanted = some.map((i) => names[i]);
      const pulled = await peers.pull(wanted, this.#options.sources, this.#signal);
      for (const [k, i] of some.entries()) results[i] = this.#pulled(names[i], pulled[k]);
      const came = wanted.filter((_, k) => pulled[k]?.outcome === "done");
      this.#countPulled(came);
      isStalled = came.length === 0 && pulled.some(({ outcome }) => outcome === "deferred");
    }
  }

  #pulled(name: BlockName, result: BlockResult = MISSING): BlockResult {
    if (result.outcome !== "missing") return result;
    // An engine may have written the block during the fetch.
    if (new NamedBlocks(this.#context, [name], Tier.ram).nodes.length > 0) return ALREADY;
    return this.#signal.aborted ? ABORTED : result;
  }

  #countPulled(names: readonly BlockName[]): void {
    const { table, slots } = this.#context.store;
    for (const node of new NamedBlocks(this.#context, names, Tier.ram).nodes) {
      this.#room -= slots.slotBytesFor(table.bytesOf(node));
      this.#came(table.bytesOf(node));
    }
  }

  #came(bytes: number): void {
    this.bytes += bytes;
    this.#doneBlocks++;
    if (!this.#slices.isReportDue()) return;
    const progress = { doneBlocks: this.#doneBlocks, doneBytes: this.bytes };
    this.#options.onProgress?.({ ...progress, totalBlocks: this.#blocks.nodes.length });
  }
}

/** Result of a block by the outcome of its read from SSD. */
const RESULTS = {
  ok: DONE,
  full: FULL,
  miss: MISSING,
  unread: UNREADABLE,
  late: LOST_IN_SSD,
} as const;

/** Offers blocks in RAM to engines for their GPU memory. */
async function offer(
  context: LifecycleContext,
  names: readonly BlockName[],
  signal: AbortSignal,
): Promise<BlockResult[]> {
  const { store, gpuSink } = context;
  const { table } = store;
  const wanted = new NamedBlocks(context, names, Tier.ram);
  const results = wanted.nodes.map((node) =>
    table.isResident(node, Tier.gpu) ? ALREADY : NO_SINK,
  );
  const places = [...results.keys()].filter((at) => results[at] === NO_SINK);
  if (gpuSink !== null && places.length > 0) {
    const blocks = places.map((at) => offeredOf(table, wanted.nodes[at]));
    const answers = await gpuSink.offer(blocks, signal);
    for (const [k, at] of places.entries()) results[at] = answers[k] ?? NO_SINK;
  }
  return wanted.resultsOf(results);
}

function offeredOf(table: TableView, node: NodeId): OfferedBlock {
  const [namespace, layer] = [table.namespaceOf(node), table.layerOf(node)];
  return { namespace, layer, digest: table.digestOf(node) };
}
