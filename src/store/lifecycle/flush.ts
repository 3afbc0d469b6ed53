import { type BlockResult, NO_NODE, type NodeId } from "../../core/index.ts";
import { type RecencyTier, Tier } from "../blocks/index.ts";
import type { LifecycleContext } from "./context.ts";
import { isHeld } from "./held.ts";
import { KeptBlocks } from "./kept-blocks.ts";
import type { Lifecycle, LifecycleReport } from "./lifecycle.ts";
import { OUR_TIERS } from "./named-blocks.ts";
import { ALREADY, causeOf, DONE, NOT_DURABLE, reportOf, STUCK_ON_SSD } from "./outcomes.ts";
import { Removal } from "./removal.ts";
import { Slices } from "./slices.ts";

/** A second pass for those whose writes were called off in the first. */
const PASSES = 3;
/** Ids looked at in one go for blocks that stayed. */
const IDS_AT_ONCE = 65_536;

/** Removes everything that nothing holds, the oldest first, a slice at a time. */
export async function flush(
  context: LifecycleContext,
  origin: Parameters<Lifecycle["flush"]>[0],
): Promise<LifecycleReport> {
  const flushing = new Flushing(context, new Removal(context, causeOf("flushed", origin)));
  for (let pass = 1; pass <= PASSES; pass++) {
    context.store.landings.allRemoved();
    // What is on both goes with its file; what is pinned has its file behind it.
    await flushing.drain(Tier.ssd);
    await flushing.drain(Tier.ram);
    await flushing.lookAtTheRest(pass < PASSES);
    if (!(await flushing.kept.cancelledAreOver())) break;
  }
  const report = await flushing.report();
  // For other hosts, which may take longer, the time counts from the end.
  context.store.landings.allRemoved();
  return report;
}

class Flushing {
  readonly kept: KeptBlocks;
  readonly #context: LifecycleContext;
  readonly #removal: Removal;
  readonly #slices: Slices;

  constructor(context: LifecycleContext, removal: Removal) {
    this.kept = new KeptBlocks(context);
    this.#context = context;
    this.#removal = removal;
    this.#slices = new Slices(context.clock);
  }

  get #mustEnd(): boolean {
    return this.#removal.hung || this.#context.signal.aborted;
  }

  /** As many as may go now: what engines store meanwhile stays. */
  async drain(tier: RecencyTier): Promise<void> {
    const { table } = this.#context.store;
    for (let left = table.evictableBlocks(tier); left > 0 && !this.#mustEnd; left--) {
      const node = table.oldest(tier);
      if (node === NO_NODE) return;
      // It may leave RAM because SSD has it: no reason for it to do so now. It makes way.
      if (isHeld(this.#context, node)) table.touchPath(node);
      else void this.#removal.drop(node);
      if (this.#slices.isOver()) await this.#slices.turn();
      if (this.#removal.isFull) await this.#removal.room();
    }
  }

  /** Calls off writes that alone keep blocks, and notes what is held. */
  async lookAtTheRest(mayCancel: boolean): Promise<void> {
    const { table } = this.#context.store;
    this.kept.begin(mayCancel);
    for (let from = 0; from <= table.nodesMax && !this.#mustEnd; from += IDS_AT_ONCE) {
      const end = from + IDS_AT_ONCE;
      const next = (node: number) => table.nextOn(node as NodeId, OUR_TIERS, end);
      for (let node = next(Math.max(0, from - 1)); node !== NO_NODE; node = next(node)) {
        if (isHeld(this.#context, node)) this.kept.meet(node);
        if (this.#slices.isOver()) await this.#slices.turn();
      }
      if (this.#slices.isOver()) await this.#slices.turn();
    }
  }

  async report(): Promise<LifecycleReport> {
    const removal = this.#removal;
    const isGone = await removal.end();
    const { blocks, bytes, stuck } = removal;
    const counts = removal.counts(isGone, this.kept.count);
    const durable = isGone && stuck === 0 && this.#context.store.ssd !== null;
    this.#context.log("info", "blocks were flushed", { blocks, bytes, held: this.kept.count });
    return reportOf([this.#result(isGone)], { counts, held: this.kept.listed, bytes, durable });
  }

  #result(isGone: boolean): BlockResult {
    const { blocks, stuck, hung } = this.#removal;
    if (this.#context.signal.aborted) return { outcome: "deferred", reason: "aborted: stopping" };
    if (hung) return { outcome: "deferred", reason: "ssd: it hangs; the rest was not looked at" };
    if (stuck > 0) return STUCK_ON_SSD;
    if (!isGone) return NOT_DURABLE;
    if (this.kept.count > 0) return { outcome: "held", by: this.kept.firstHolders };
    return blocks > 0 ? DONE : ALREADY;
  }
}
