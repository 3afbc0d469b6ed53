import { stringifyJson } from "../../core/index.ts";
import { workerNumber } from "../../events/index.ts";
import type { ResidencyTier } from "../../observability/activity/index.ts";
import type { HeldRun, PrefixIndex } from "../prefix-index.ts";
import type { WorkerTable } from "../workers.ts";

const STORAGE_TIERS: Readonly<Record<ResidencyTier, string>> = {
  device: "device",
  host: "host_pinned",
  disk: "disk",
};

/**
 * All runs, target by target, each of them read at once: whoever reads this may take its time, and
 * the index goes on changing meanwhile.
 */
export function* runsByTarget(index: PrefixIndex, table: WorkerTable): Generator<HeldRun> {
  for (const { id } of table.targets) yield* [...index.dump(id)];
}

/**
 * Runs of the index as Dynamo's RouterEvents, one JSON document each, 64-bit integers exact. A
 * block's own hash (`tokens_hash`) is not kept by the index: null, but for the first block of a
 * prompt, where both are the same.
 */
export function* dumpEvents(runs: Iterable<HeldRun>, table: WorkerTable): Generator<string> {
  const nextId = new Map<number, number>();
  for (const { target: id, tier, parent, hashes } of runs) {
    const target = table.get(id);
    if (target === null) continue;
    const eventId = nextId.get(id) ?? 1;
    nextId.set(id, eventId + 1);
    const blocks = Array.from(hashes, (hash, at) => ({
      block_hash: hash,
      tokens_hash: at === 0 && parent === null ? hash : null,
    }));
    const stored = { parent_hash: parent, start_position: null, blocks };
    yield stringifyJson({
      worker_id: workerNumber(target.worker),
      storage_tier: STORAGE_TIERS[tier],
      event: { event_id: eventId, data: { stored }, dp_rank: target.rank },
    });
  }
}
