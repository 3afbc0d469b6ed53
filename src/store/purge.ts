import { DIGEST_BYTES, LAYER_ALL, NO_NODE, type NodeId } from "../core/index.ts";
import { crashPoint } from "../native/index.ts";
import { type AddressBatch, createAddressBatch } from "./batches.ts";
import { Tier } from "./blocks/index.ts";
import type { Cause } from "./departures.ts";
import { blockPath } from "./kvb/index.ts";
import type { TieredStore } from "./tiered-store.ts";

export interface PurgeAddress {
  readonly digest: Uint8Array;
  /** Layer number; `LAYER_ALL` if the namespace does not store layers separately. */
  readonly layer: number;
}

/**
 * `done`: removed from all tiers. `missing`: not on this host. `held`: an engine, a session, a
 * read, a pin or a lease protects the block or a descendant; the block stays, but its queued write
 * to SSD may have been cancelled. `failed`: the disk failed or hangs, so a crash may restore the
 * block. Requests do not get a failed block any more, except while its own write to SSD hangs; it
 * is removed when that write ends.
 */
export type PurgeOutcome = "done" | "missing" | "held" | "failed";

/**
 * Removes blocks from RAM and SSD of this host. Returns one outcome per address. A block answered
 * `done` or `missing` does not return after a crash: its file is removed, and the removal is
 * durable. An evicted block whose file is still being removed counts as `missing`.
 */
export async function purgeBlocks(
  store: TieredStore,
  addresses: readonly PurgeAddress[],
  cause: Cause = { reason: "purged", by: null },
): Promise<PurgeOutcome[]> {
  const batch = createAddressBatch(1);
  const found = addresses.map((address) => find(store, batch, address));
  const purged = found.map(({ node }) => purgeOne(store, node, cause));
  const { ssd } = store;
  if (ssd === null) return Promise.all(purged);
  const outcomes = await Promise.all(
    purged.map(async (one) => (await ssd.orHung(one)) ?? "failed"),
  );
  const isOver = (await ssd.orHung(ssd.room.removalsOver().then(() => true))) === true;
  crashPoint("purge.removed");
  const isSafe = isOver && (!ssd.room.removals.areVolatile || (await ssd.makeDurable()));
  crashPoint("purge.before-answer");
  const stuck = new Set(ssd.room.removals.stuckPaths().map(stemOf));
  return outcomes.map((outcome, i) => {
    if (outcome === "held") return outcome;
    return isSafe && !stuck.has(found[i].stem) ? outcome : "failed";
  });
}

interface Found {
  readonly node: NodeId;
  /** Common prefix of the paths of all files in which the block may be stored. */
  readonly stem: string;
}

function find(store: TieredStore, batch: AddressBatch, { digest, layer }: PurgeAddress): Found {
  batch.count = 1;
  batch.layer = layer >>> 0 === LAYER_ALL ? LAYER_ALL : layer;
  batch.digests.set(digest.subarray(0, DIGEST_BYTES));
  store.deriveKeys(batch, false);
  store.incoming.removed(batch.keys, 0);
  const stem = stemOf(blockPath(batch.keyBytes, batch.layer, 0));
  return { node: store.table.find(batch.keys, 0), stem };
}

function stemOf(path: string): string {
  return path.slice(0, path.indexOf("."));
}

async function purgeOne(store: TieredStore, node: NodeId, cause: Cause): Promise<PurgeOutcome> {
  const { table, ram, ssd, ssdStats } = store;
  if (node === NO_NODE) return "missing";
  const generation = table.generationOf(node);
  // The block's own write to SSD does not protect it. When that write ends, its file is removed.
  const wasQueued = ssd?.writer.isQueued(node) === true;
  const ownLocks = wasQueued ? 1 : 0;
  if (table.locksOf(node) > ownLocks || table.isKept(node)) return "held";
  await ssd?.writer.cancel(node);
  const there = table.isLive(node, generation) ? table.residencyOf(node) : 0;
  if ((there & (Tier.ram | Tier.ssd)) === 0) {
    return wasQueued ? "done" : "missing";
  }
  if (table.isProtected(node, Tier.ssd)) return "held";
  const inRam = (there & Tier.ram) !== 0;
  const onSsd = (there & Tier.ssd) !== 0;
  // Remove from SSD first: the node leaves the block table together with its last copy.
  const gone = onSsd ? ssd?.room.drop(node, cause) : undefined;
  if (inRam) ram.drop(node, cause);
  ssdStats.purgedBlocks++;
  return gone === undefined || (await gone) ? "done" : "failed";
}
