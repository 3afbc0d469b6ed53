import { DROP_REASONS } from "../../events/index.ts";
import { RESIDENCY_TIERS } from "../../observability/activity/index.ts";
import { ENGINE_BLOCKS, type MetricRegistry } from "../../observability/index.ts";
import type { PrefixIndex, WorkerTable } from "../../router/index.ts";
import type { EngineReport } from "./engine-link.ts";

/** Enters how many blocks each worker holds; of workers that left nothing stays. */
export function writeHeldBlocks(
  registry: MetricRegistry,
  { targets }: Pick<WorkerTable, "targets">,
  index: Pick<PrefixIndex, "digests">,
): void {
  registry.clear("routerWorkerBlocks");
  registry.clear("routerWorkerKnown");
  for (const { id, worker, rank, isKnown } of targets) {
    const labels = { worker, rank: `${rank}` };
    registry.set("routerWorkerKnown", isKnown ? 1 : 0, labels);
    index.digests(id)?.forEach(({ blocks }, place) => {
      registry.set("routerWorkerBlocks", blocks, { ...labels, tier: RESIDENCY_TIERS[place]! });
    });
  }
}

/** Enters what engines that are followed without an agent publish. */
export function writeEngines(registry: MetricRegistry, reports: readonly EngineReport[]): void {
  for (const metric of [
    "routerEngineReached",
    "routerEngineBlockTokens",
    "routerEngineEvents",
    "routerEngineBlocks",
    "routerEngineDropped",
    "routerEngineResyncs",
  ] as const) {
    registry.clear(metric);
  }
  for (const report of reports) {
    const { worker, counts } = report;
    const labels = { worker, rank: `${report.rank}` };
    registry.set("routerEngineReached", report.isReached ? 1 : 0, labels);
    const sizes = { engine: report.blockTokens, configured: report.configuredBlockTokens };
    for (const [source, size] of Object.entries(sizes)) {
      if (size !== null) registry.set("routerEngineBlockTokens", size, { ...labels, source });
    }
    registry.set("routerEngineEvents", counts.events, labels);
    for (const kind of ENGINE_BLOCKS) {
      registry.set("routerEngineBlocks", counts[kind], { ...labels, kind });
    }
    for (const reason of DROP_REASONS) {
      registry.set("routerEngineDropped", counts.dropped[reason], { ...labels, reason });
    }
    const resyncs = { gap: counts.gaps, replay: counts.replays, restart: counts.restarts };
    for (const [kind, count] of Object.entries({ ...resyncs, lost_batch: counts.lostBatches })) {
      registry.set("routerEngineResyncs", count, { ...labels, kind });
    }
  }
}
