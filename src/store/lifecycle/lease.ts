import {
  type BlockResult,
  type CommandOrigin,
  type HeldBy,
  LAYER_ALL,
  NO_NODE,
  type NodeId,
} from "../../core/index.ts";
import { crashPoint } from "../../native/index.ts";
import type { Cause } from "../departures.ts";
import type { EndedPin, PinInfo, Purged } from "../pins/index.ts";
import type { LifecycleContext } from "./context.ts";
import { Slices } from "./context.ts";
import type { Grant, HeldBlock, LifecycleReport, Remembering } from "./lifecycle.ts";
import {
  BY_DESCENDANTS,
  causeOf,
  DONE,
  heldBlock,
  holdersOf,
  isHeld,
  MISSING,
  NOT_DURABLE,
  OUR_TIERS,
  rejected,
  reportOf,
  STUCK_ON_SSD,
} from "./outcomes.ts";
import { Removal } from "./removal.ts";

/** Maximum number of descendants examined to find one in RAM or on SSD. */
const LOOKED_AT = 64;

/**
 * Sets the remaining time of a lease. `results` has one entry: `done`, `missing` or `rejected`. A
 * caller without permission to delete blocks cannot shorten another owner's lease. It may shorten
 * its own lease, whose expiry then removes no blocks.
 */
export async function renewLease(
  context: LifecycleContext,
  lease: string,
  ttlMs: number,
  { owner, grant, remember }: Remembering & { readonly owner: string; readonly grant: Grant },
): Promise<LifecycleReport> {
  const granted = Math.min(ttlMs, context.limits().leaseTtlMaxMs);
  const known = context.holds.lease(lease);
  if (known === null) return reportOf([MISSING]);
  if (!grant.mayPurge && granted < (known.remainingMs ?? Number.POSITIVE_INFINITY)) {
    if (known.owner !== owner) return reportOf([notShortened(known, grant)]);
    context.holds.keepBlocks(lease);
  }
  context.holds.renew(lease, granted);
  remember?.([DONE]);
  const durable = await context.durability.holds();
  const isOnDisk = durable && context.store.ssd !== null;
  return reportOf([durable ? DONE : NOT_DURABLE], { ttlMs: granted, durable: isOnDisk });
}

/**
 * Rejects a caller without permission to delete blocks that would shorten another owner's lease and
 * so end it early.
 */
function notShortened({ owner }: PinInfo, { fix }: Grant): BlockResult {
  return rejected(`forbidden: a shorter time for a lease of ${owner} needs the role purge${fix}`);
}

/**
 * Ends the lease and removes those of its blocks that nothing else protects and that have no stored
 * descendants. Returns one `HeldBlock` result per block. `remember` receives only the counts.
 */
export async function revokeLease(
  context: LifecycleContext,
  lease: string,
  origin: CommandOrigin,
  { remember }: Remembering = {},
): Promise<LifecycleReport> {
  const ending = context.holds.endLease(lease);
  const ended = ending instanceof Promise ? await ending : ending;
  if (ended === null) return reportOf([MISSING]);
  const leaving = new Leaving(context, ended, causeOf("lease_ended", origin));
  remember?.(ended.nodes.map(() => DONE));
  const [results, isOver] = await Promise.all([leaving.run(), context.durability.holds()]);
  const { isDurable, bytes } = leaving;
  const isDone = isDurable && results.every(({ outcome }) => outcome !== "deferred");
  if (isDone) ended.forget();
  const committed = isOver && (!isDone || (await context.durability.holds()));
  const told = results.map((result) =>
    result.outcome === "done" && !committed ? { ...result, ...NOT_DURABLE } : result,
  );
  const durable = committed && isDurable && context.store.ssd !== null;
  return reportOf(told, { bytes, durable });
}

/** Removes the blocks of an expired lease that nothing else protects. */
export async function purgeExpired(context: LifecycleContext, ended: EndedPin): Promise<Purged> {
  const { name } = ended.info;
  const leaving = new Leaving(context, ended, { reason: "lease_ended", by: name });
  const results = await leaving.run();
  const count = (which: string) => results.filter(({ outcome }) => outcome === which).length;
  // Blocks that left the table may have files that could not be removed earlier.
  const areSomeGone = ended.nodes.length < ended.info.blocks;
  const areStuck = areSomeGone && context.store.ssd?.room.removals.haveFailed === true;
  const isDurable = leaving.isDurable && count("deferred") === 0 && !areStuck;
  return { purged: count("done"), isDurable };
}

/** Removes the blocks of an ended lease, children before parents. */
class Leaving {
  isDurable = false;
  readonly #context: LifecycleContext;
  readonly #nodes: readonly NodeId[];
  readonly #born: number[];
  readonly #removal: Removal;
  readonly #places = new Map<NodeId, number>();
  readonly #results: HeldBlock[] = [];
  readonly #files: (Promise<boolean> | null)[];

  constructor(context: LifecycleContext, { nodes }: EndedPin, cause: Cause) {
    const { table } = context.store;
    this.#context = context;
    this.#nodes = nodes;
    // Read the generations before any change, while the node ids are valid.
    this.#born = nodes.map((node) => table.generationOf(node));
    this.#files = nodes.map(() => null);
    this.#removal = new Removal(context, cause);
    for (const [at, node] of nodes.entries()) this.#places.set(node, at);
  }

  get bytes(): number {
    return this.#removal.bytes;
  }

  async run(): Promise<HeldBlock[]> {
    const slices = new Slices(this.#context.clock);
    // Go backwards, because children usually follow their parents in the list.
    for (let at = this.#nodes.length - 1; at >= 0; at--) {
      this.#leave(at);
      if (slices.isOver()) await slices.turn();
      if (this.#removal.isFull) await this.#removal.room();
    }
    this.isDurable = await this.#removal.end();
    crashPoint("lease.left");
    return this.#finalResults();
  }

  /** Removes the block, and then each of its ancestors that could not be removed before it. */
  #leave(from: number): void {
    const { table } = this.#context.store;
    let at: number | undefined = from;
    while (at !== undefined) {
      const node = this.#nodes[at];
      if (!table.isLive(node, this.#born[at])) {
        this.#results[at] ??= { ...MISSING, digest: null, layer: LAYER_ALL };
        return;
      }
      const parent = table.parentOf(node);
      if (!this.#leaveOne(at, node)) return;
      const above = parent === NO_NODE ? undefined : this.#places.get(parent);
      at = above !== undefined && this.#results[above]?.outcome === "held" ? above : undefined;
    }
  }

  /** Removes one block if nothing protects it. Returns true if it was removed. */
  #leaveOne(at: number, node: NodeId): boolean {
    const context = this.#context;
    const { table } = context.store;
    const { digest, layer } = this.#results[at] ?? heldBlock(context, node, []);
    const stays = (by: readonly HeldBy[]) => {
      this.#results[at] = { outcome: "held", by, digest, layer };
      return false;
    };
    if (isHeld(context, node)) return stays(holdersOf(context, node));
    if (isBuiltUpon(context, node)) return stays(BY_DESCENDANTS);
    const isHere = (table.residencyOf(node) & OUR_TIERS) !== 0;
    this.#results[at] = { ...(isHere ? DONE : MISSING), digest, layer };
    if (isHere) this.#files[at] = this.#removal.drop(node);
    return isHere;
  }

  /** Waits for the file removals and returns the results of all blocks. */
  async #finalResults(): Promise<HeldBlock[]> {
    const { ssd } = this.#context.store;
    const stuck = new Set(this.#files.filter((file) => file !== null));
    for (const file of stuck) if ((await ssd!.orHung(file)) === true) stuck.delete(file);
    return this.#results.map((result, at) => {
      const file = this.#files[at];
      if (result.outcome !== "done") return result;
      if (file !== null && stuck.has(file)) return { ...result, ...STUCK_ON_SSD };
      return this.isDurable ? result : { ...result, ...NOT_DURABLE };
    });
  }
}

/**
 * Returns whether a descendant of the block is in RAM or on SSD; true if `LOOKED_AT` descendants do
 * not decide it.
 */
function isBuiltUpon({ store }: LifecycleContext, node: NodeId): boolean {
  const { table } = store;
  let below = table.successorOf(node, node);
  for (let looks = 0; below !== NO_NODE; looks++) {
    if (looks === LOOKED_AT || (table.residencyOf(below) & OUR_TIERS) !== 0) return true;
    below = table.successorOf(below, node);
  }
  return false;
}
