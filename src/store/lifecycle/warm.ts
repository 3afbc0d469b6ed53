import { type BlockName, type BlockResult, DIGEST_BYTES, type NodeId } from "../../core/index.ts";
import { type TableView, Tier } from "../blocks/index.ts";
import type { LifecycleContext } from "./context.ts";
import type { GpuSink, LifecycleReport, OfferedBlock, WarmOptions } from "./lifecycle.ts";
import { NamedBlocks } from "./named-blocks.ts";
import { ALREADY, DONE, MISSING, reportOf } from "./outcomes.ts";
import { Slices } from "./slices.ts";
import type { WarmGate } from "./warm-gate.ts";

/** Blocks asked for at once from other hosts. */
const PULLED_AT_ONCE = 256;

/** Of what RAM could give up when a warm begins, the share it may take: others' blocks stay. */
const SHARE_OF_EVICTABLE = 0.5;

const deferred = (reason: string): BlockResult => Object.freeze({ outcome: "deferred", reason });
const ABORTED = deferred("aborted: it was not brought");
const UNREADABLE = deferred("ssd: the block could not be read now");
const LOST_IN_SSD = deferred("ssd: it hangs; the block may still come");
const STALLED = deferred("peers: they did not answer those asked for before it");
const NO_SINK = deferred(
  "gpu_sink: in RAM; no engine here loads blocks to its GPU without a request",
);
const FULL: BlockResult = Object.freeze({
  outcome: "rejected",
  reason: "full: what is in RAM stays there rather than making room for this",
});

/** Brings blocks up: from SSD, or from another host; then offers them to a GPU where asked to. */
export async function warm(
  context: LifecycleContext,
  gate: WarmGate,
  sink: GpuSink | null,
  names: readonly BlockName[],
  options: WarmOptions,
): Promise<LifecycleReport> {
  const signal = AbortSignal.any([context.signal, ...(options.signal ? [options.signal] : [])]);
  const tiers = Tier.ram | Tier.ssd | (options.target === "gpu" ? Tier.gpu : 0);
  const blocks = new NamedBlocks(context, names, tiers);
  const warming = new Warming(context, gate, blocks, options, signal);
  const onGpu = warming.namesOnGpu();
  const results = blocks.resultsOf(await warming.run());
  await warming.pullMissing(names, results);
  if (options.target === "gpu") {
    for (const i of results.keys()) if (onGpu[i]) results[i] = ALREADY;
    const isHere = ({ outcome }: BlockResult) => outcome === "done" || outcome === "already";
    const places = [...results.keys()].filter((i) => !onGpu[i] && isHere(results[i]!));
    const came = await offer(
      context,
      sink,
      places.map((i) => names[i]!),
      signal,
    );
    for (const [k, i] of places.entries()) results[i] = came[k]!;
  }
  return reportOf(results, { bytes: warming.bytes });
}

class Warming {
  bytes = 0;
  readonly #context: LifecycleContext;
  readonly #gate: WarmGate;
  readonly #blocks: NamedBlocks;
  readonly #options: WarmOptions;
  readonly #signal: AbortSignal;
  readonly #slices: Slices;
  readonly #results: BlockResult[];
  /** Bytes of slots that may still be taken. */
  #room: number;
  #doneBlocks = 0;

  constructor(
    context: LifecycleContext,
    gate: WarmGate,
    blocks: NamedBlocks,
    options: WarmOptions,
    signal: AbortSignal,
  ) {
    const { table, slots } = context.store;
    const free = slots.readyBytes - slots.usedBytes;
    this.#context = context;
    this.#gate = gate;
    this.#blocks = blocks;
    this.#options = options;
    this.#signal = signal;
    this.#slices = new Slices(context.clock);
    this.#results = blocks.nodes.map(() => ABORTED);
    this.#room = free + table.evictableBytes(Tier.ram) * SHARE_OF_EVICTABLE;
  }

  /** By name: whether a GPU has one of its blocks. */
  namesOnGpu(): boolean[] {
    const { table } = this.#context.store;
    const here = (node: NodeId) => (table.isResident(node, Tier.gpu) ? ALREADY : DONE);
    const { nodes } = this.#blocks;
    return this.#blocks.resultsOf(nodes.map(here)).map((result) => result === ALREADY);
  }

  /** One result for each block, when all have come that come. */
  async run(): Promise<BlockResult[]> {
    const coming: Promise<void>[] = [];
    for (const at of this.#blocks.nodes.keys()) {
      if (this.#signal.aborted) break;
      const bytes = this.#wants(at);
      if (bytes !== null && (await this.#gate.enter(bytes, this.#signal))) {
        coming.push(this.#bring(at, bytes).finally(() => this.#gate.leave(bytes)));
      }
      if (this.#slices.isOver()) await this.#slices.turn();
    }
    await Promise.all(coming);
    return this.#results;
  }

  /** Bytes of a block that is to be read; null where its result is known already. */
  #wants(at: number): number | null {
    const { table, ssd, slots } = this.#context.store;
    const node = this.#blocks.nodes[at]!;
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

  async #bring(at: number, bytes: number): Promise<void> {
    const { table, ssd, ram } = this.#context.store;
    const node = this.#blocks.nodes[at]!;
    // It may have gone, or come, while this waited for its turn.
    if (this.#blocks.isOn(at, Tier.ram)) this.#results[at] = ALREADY;
    else if (!this.#blocks.isOn(at, Tier.ssd)) this.#results[at] = MISSING;
    else if (!table.lock(node)) this.#results[at] = UNREADABLE;
    else {
      const read = ssd!.bring(node, { warm: true }).then((outcome) => {
        // Nobody asked for it yet: it comes into the order by itself.
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

  /**
   * Asks other hosts for what is not here, some blocks at a time, as long as there is room and they
   * answer.
   */
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
      const wanted = some.map((i) => names[i]!);
      const pulled = await peers.pull(wanted, this.#options.sources, this.#signal);
      for (const [k, i] of some.entries()) results[i] = this.#pulled(names[i]!, pulled[k]);
      const came = wanted.filter((_, k) => pulled[k]?.outcome === "done");
      this.#countPulled(came);
      isStalled = came.length === 0 && pulled.some(({ outcome }) => outcome === "deferred");
    }
  }

  #pulled(name: BlockName, result: BlockResult = MISSING): BlockResult {
    if (result.outcome !== "missing") return result;
    // An engine may have written it meanwhile.
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
    if (!this.#slices.mayTell()) return;
    const progress = { doneBlocks: this.#doneBlocks, doneBytes: this.bytes };
    this.#options.onProgress?.({ ...progress, totalBlocks: this.#blocks.nodes.length });
  }
}

/** What a read came to. */
const RESULTS = {
  ok: DONE,
  full: FULL,
  miss: MISSING,
  unread: UNREADABLE,
  late: LOST_IN_SSD,
} as const;

/** Blocks that are in RAM now go on to the engine that takes them. */
async function offer(
  context: LifecycleContext,
  sink: GpuSink | null,
  names: readonly BlockName[],
  signal: AbortSignal,
): Promise<BlockResult[]> {
  const { table } = context.store;
  const wanted = new NamedBlocks(context, names, Tier.ram);
  const results = wanted.nodes.map((node) =>
    table.isResident(node, Tier.gpu) ? ALREADY : NO_SINK,
  );
  const places = [...results.keys()].filter((at) => results[at] === NO_SINK);
  if (sink !== null && places.length > 0) {
    const blocks = places.map((at) => offeredOf(table, wanted.nodes[at]!));
    const answers = await sink.offer(blocks, signal);
    for (const [k, at] of places.entries()) results[at] = answers[k] ?? NO_SINK;
  }
  return wanted.resultsOf(results);
}

function offeredOf(table: TableView, node: NodeId): OfferedBlock {
  const digest = new Uint8Array(DIGEST_BYTES);
  table.readDigest(node, digest, 0);
  return { namespace: table.namespaceOf(node), layer: table.layerOf(node), digest };
}
