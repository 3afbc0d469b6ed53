import type { MetricRegistry } from "../../observability/index.ts";
import type { KeeperStats } from "../keeping/index.ts";
import type { LocateStats } from "../locate/index.ts";
import type { ReplicaStats } from "../replicas/index.ts";

type Registry = Pick<MetricRegistry, "set">;

export function writeReplicas(registry: Registry, stats: ReplicaStats, taken: number): void {
  registry.set("routerReplicas", stats.replicas);
  const news = {
    sent: stats.sent,
    received: stats.received,
    dropped: stats.dropped,
    refused: stats.refused,
    list: stats.lists,
    orphan_ended: stats.orphansEnded,
    unknown_worker: stats.unknownWorkers,
    picture_given: stats.picturesServed,
    picture_taken: taken,
  };
  for (const [kind, value] of Object.entries(news)) {
    registry.set("routerReplicaNews", value, { kind });
  }
}

export function writeLocate(registry: Registry, stats: LocateStats): void {
  for (const outcome of ["answered", "refused", "dropped"] as const) {
    registry.set("routerLocate", stats[outcome], { outcome });
  }
}

export function writeSaves(registry: Registry, { saves, failures }: KeeperStats): void {
  registry.set("routerSaves", saves, { outcome: "saved" });
  registry.set("routerSaves", failures, { outcome: "failed" });
}
