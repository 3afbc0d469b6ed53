import { Tier } from "../blocks/index.ts";
import { DIGEST_BYTES, LAYER_ALL, NO_NODE, type NodeId } from "../core/index.ts";
import { crashPoint } from "../native/index.ts";
import { type AddressBatch, createAddressBatch } from "./batches.ts";
import type { RamStore } from "./ram-store.ts";

export interface PurgeAddress {
  readonly digest: Uint8Array;
  /** `LAYER_ALL` unless layers are stored one by one. */
  readonly layer: number;
}

/**
 * `held`: an engine, a session or a read has it, nothing was done. `failed`: the disk did not do
 * what it was asked to; the block is not served any more, but a crash may bring it back.
 */
export type PurgeOutcome = "done" | "missing" | "held" | "failed";

/**
 * Removes blocks from every tier of this host. What is answered `done` does not come back after any
 * crash: its file is gone, and that is on the disk. One outcome for each address.
 */
export async function purgeBlocks(
  store: RamStore,
  addresses: readonly PurgeAddress[],
): Promise<PurgeOutcome[]> {
  const batch = createAddressBatch(1);
  const removed = await Promise.all(
    addresses.map((address) => purgeOne(store, find(store, batch, address))),
  );
  crashPoint("purge.removed");
  const onSsd = removed.some(({ touchedSsd }) => touchedSsd);
  const safe = !onSsd || (await store.ssd?.makeDurable()) === true;
  crashPoint("purge.before-answer");
  return removed.map(({ outcome, touchedSsd }) =>
    outcome === "done" && touchedSsd && !safe ? "failed" : outcome,
  );
}

interface Removed {
  readonly outcome: PurgeOutcome;
  readonly touchedSsd: boolean;
}

function find(store: RamStore, batch: AddressBatch, { digest, layer }: PurgeAddress): NodeId {
  batch.count = 1;
  batch.layer = layer >>> 0 === LAYER_ALL ? LAYER_ALL : layer;
  batch.digests.set(digest.subarray(0, DIGEST_BYTES));
  store.deriveKeys(batch, false);
  return store.table.find(batch.keys, 0);
}

async function purgeOne(store: RamStore, node: NodeId): Promise<Removed> {
  const { table, ram, ssd, ssdStats } = store;
  if (node === NO_NODE) return { outcome: "missing", touchedSsd: false };
  const generation = table.generationOf(node);
  // Its own write is no reason to keep it; what that write left on SSD is gone when it is over.
  const wasQueued = ssd?.writer.isQueued(node) === true;
  await ssd?.writer.cancel(node);
  const there = table.isLive(node, generation) ? table.residencyOf(node) : 0;
  if ((there & (Tier.ram | Tier.ssd)) === 0) {
    return { outcome: wasQueued ? "done" : "missing", touchedSsd: wasQueued };
  }
  if (table.isProtected(node)) return { outcome: "held", touchedSsd: wasQueued };
  const inRam = (there & Tier.ram) !== 0;
  const onSsd = (there & Tier.ssd) !== 0;
  // From SSD first: without either the node is gone.
  const gone = onSsd ? ssd?.room.drop(node) : undefined;
  if (inRam) ram.drop(node);
  ssdStats.purgedBlocks++;
  const removed = gone === undefined || (await gone);
  return { outcome: removed ? "done" : "failed", touchedSsd: onSsd || wasQueued };
}
