import type { RouterSources } from "../../../src/api/index.ts";
import { Health } from "../../../src/observability/index.ts";
import { RouteCounts } from "../../../src/router/index.ts";
import { ManualClock } from "../../support/index.ts";

/** Sources of the numbers of a router that knows no worker. */
export function routerSources(more: Partial<RouterSources> = {}): RouterSources {
  const clock = new ManualClock();
  return {
    ...{ version: "1", commit: "c", clock, startedMs: clock.monotonicMs() },
    health: new Health({ clock, log: { log: () => undefined } }),
    lag: {
      longestSeconds: () => 0,
      longestTurnSeconds: () => 0,
      longestTurnCpuSeconds: () => 0,
      longTurns: 0,
    },
    ...{ logger: { dropped: 0 }, refusals: null, activeRequests: 0, targets: [] },
    counts: new RouteCounts(clock, () => undefined),
    index: {
      stats: { blocks: 0, heldBlocks: 0, runs: 0, bytes: 0, forgotten: 0 },
      digests: () => null,
    },
    ingest: {
      ...{ batches: 1, changes: 2, heartbeats: 3, duplicates: 0, early: 0, stale: 0 },
      ...{ unannounced: 0, incarnations: 0, gaps: 4, ranges: 0, snapshots: 5 },
      ...{ snapshotsFailed: 0, mismatches: 0, doubts: 0, refused: 0, overfull: 0, sources: 0 },
      ...{ known: 0, stalled: 0, pendingDropped: 6, pendingHashes: 0 },
      ...{ recoveriesRunning: 0, recoveriesWaiting: 0 },
    },
    ...{ replicas: null, snapshotsTaken: 0, locate: null, saves: null },
    ...{ reached: [], engines: [], policies: [], proxy: null },
    ...more,
  };
}
