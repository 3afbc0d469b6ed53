import { type BlockName, type BlockResult, NO_NODE, type NodeId } from "../../core/index.ts";
import { crashPoint } from "../../native/index.ts";
import { NodeFlag, Tier } from "../blocks/index.ts";
import { EVICTED } from "../departures.ts";
import type { AddedPin } from "../pins/index.ts";
import type { LifecycleContext } from "./context.ts";
import { Slices } from "./context.ts";
import type { Grant, LifecycleReport, Remembering } from "./lifecycle.ts";
import { DONE, NamedBlocks, NOT_DURABLE, rejected, reportOf } from "./outcomes.ts";
import { ANCESTOR_OUTSTANDING, ancestorsOf, areOutOfRam } from "./pin.ts";

interface PauseOptions extends Remembering {
  readonly lease: string;
  readonly owner: string;
  readonly ttlMs: number | null;
  readonly grant: Grant;
}

const NO_SSD = rejected("no_ssd: pause requires an SSD tier");
const TRANSIENT = rejected("transient: a transient block is not written to SSD");
const LOCKS_FULL = rejected("limit: the block's lock count is at the maximum");
const NOT_WRITTEN = rejected("ssd: the block could not be written and is not leased");

/**
 * Writes blocks durably to SSD and leases them there; then ends the sessions whose last block is
 * among them and drops the blocks from RAM. The lease contains only blocks that are on SSD. If a
 * lease of that name exists, adds the blocks to it and renews it. When the lease expires, its
 * blocks are removed only if every caller that paused under that name was permitted to delete
 * blocks.
 */
export async function pause(
  context: LifecycleContext,
  names: readonly BlockName[],
  options: PauseOptions,
): Promise<LifecycleReport> {
  const { table, ssd } = context.store;
  const blocks = new NamedBlocks(context, names);
  if (ssd === null) return reportOf(blocks.resultsOf(blocks.nodes.map(() => NO_SSD)));
  const results = blocks.nodes.map((node) =>
    table.hasFlag(node, NodeFlag.transient) ? TRANSIENT : DONE,
  );
  // Lock the blocks while others are written. Go from last to first, since a lock also protects
  // ancestors.
  for (let at = results.length - 1; at >= 0; at--) {
    if (results[at] === DONE && !table.lock(blocks.nodes[at])) results[at] = LOCKS_FULL;
  }
  const locked = blocks.nodes.filter((_, at) => results[at] === DONE);
  let held: Leased;
  try {
    held = await lease(context, blocks, results, options);
  } finally {
    for (const node of locked.reverse()) table.unlock(node);
  }
  const { ttlMs, figures, isDurable, isLeading } = held;
  if (isDurable) await leaveRam(context, blocks, results);
  const told = results.map((result) => {
    if (result !== DONE) return result;
    if (!isDurable) return NOT_DURABLE;
    return isLeading ? DONE : ANCESTOR_OUTSTANDING;
  });
  const { bytes } = held;
  return reportOf(blocks.resultsOf(told), { bytes, figures, ttlMs, durable: isDurable });
}

interface Leased {
  readonly bytes: number;
  readonly ttlMs: number | null;
  readonly figures: AddedPin["figures"];
  readonly isDurable: boolean;
  /** True if all ancestors of the blocks are on SSD too. */
  readonly isLeading: boolean;
}

const NOTHING = { ttlMs: null, figures: null, isDurable: false, isLeading: false };

/** Writes the blocks that are only in RAM to SSD, then leases those that are on SSD. */
async function lease(
  context: LifecycleContext,
  blocks: NamedBlocks,
  results: BlockResult[],
  options: PauseOptions,
): Promise<Leased> {
  const { store, holds, durability, limits, signal } = context;
  const { table, ssd } = store;
  const wanted = (at: number) => results[at] === DONE;
  const fromRam = blocks.nodes.filter(
    (node, at) => wanted(at) && !table.isResident(node, Tier.ssd),
  );
  const above = ancestorsOf(table, blocks.nodes);
  if (fromRam.length > 0 || !areOutOfRam(table, above)) {
    await ssd!.secure([...fromRam, ...above], signal);
  }
  const bytes = fromRam.reduce(
    (sum, node) => sum + (table.isResident(node, Tier.ssd) ? table.bytesOf(node) : 0),
    0,
  );
  const isWritten = await durability.writes([...blocks.nodes, ...above]);
  crashPoint("pause.written");
  for (const [at, node] of blocks.nodes.entries()) {
    if (!wanted(at) || table.isResident(node, Tier.ssd)) continue;
    results[at] = table.hasFlag(node, NodeFlag.transient) ? TRANSIENT : NOT_WRITTEN;
  }
  const nodes = blocks.nodes.filter((_, at) => wanted(at));
  if (nodes.length === 0) return { ...NOTHING, bytes };
  const { lease: name, owner, grant, remember } = options;
  const ttlMs = Math.min(options.ttlMs ?? Number.POSITIVE_INFINITY, limits().leaseTtlMaxMs);
  const known = holds.lease(name);
  if (known?.owner === owner && !grant.mayPurge) holds.keepBlocks(name);
  const isKnown = known?.owner === owner && holds.renew(name, ttlMs);
  const terms = { priority: null, idleMs: null, purges: grant.mayPurge };
  const request = { kind: "lease" as const, owner, name, nodes, ...terms };
  const added =
    known === null
      ? await holds.addAll({ ...request, ttlMs })
      : await holds.extendAll(name, owner, nodes);
  let next = 0;
  for (const at of results.keys()) {
    if (!wanted(at)) continue;
    const result = added.results[next++];
    // A block that the lease contains already is in the requested state.
    results[at] = result.outcome === "rejected" ? result : DONE;
  }
  const { figures } = added;
  if (!isKnown && added.id === null) return { ...NOTHING, bytes, figures };
  remember?.(blocks.resultsOf(results));
  const isCommitted = await durability.holds();
  const isLeading = areOutOfRam(table, above);
  return { bytes, ttlMs, figures, isDurable: isWritten && isCommitted, isLeading };
}

/** Drops the paused blocks from RAM, except those that something else needs there. */
async function leaveRam(
  context: LifecycleContext,
  blocks: NamedBlocks,
  results: readonly BlockResult[],
): Promise<void> {
  const { store, sessions, clock } = context;
  const { table, ram } = store;
  const paused = new Set(blocks.nodes.filter((_, at) => results[at] === DONE));
  sessions.endAt(paused);
  const mayGo = (node: NodeId) =>
    table.isResident(node, Tier.ram) &&
    table.isResident(node, Tier.ssd) &&
    !table.isProtected(node, Tier.ram) &&
    table.isLeafOn(node, Tier.ram);
  const slices = new Slices(clock);
  for (let at = blocks.nodes.length - 1; at >= 0; at--) {
    if (!blocks.isLive(at)) continue;
    // Try the ancestors as well: a name list may contain a parent after its child.
    let node = blocks.nodes[at];
    while (node !== NO_NODE && paused.has(node) && mayGo(node)) {
      const parent = table.parentOf(node);
      ram.drop(node, EVICTED);
      node = parent;
    }
    if (slices.isOver()) await slices.turn();
  }
}
