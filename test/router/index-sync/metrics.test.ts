import { expect, test } from "bun:test";
import { RouterMetrics } from "../../../src/api/index.ts";
import { createLocalBus, LocalHub } from "../../../src/bus/index.ts";
import { systemClock, systemRandom } from "../../../src/core/index.ts";
import { IndexSync, WorkerTable } from "../../../src/router/index.ts";
import { routerSources } from "../../api/router/router-sources.ts";
import { tempDir, waitFor } from "../../support/index.ts";
import { QUICK } from "../ingest/ingest-kit.ts";
import { CLUSTER } from "../ingest/scripted-worker.ts";
import { ReferenceIndex } from "../prefix-index/reference-index.ts";
import { basics, SOON } from "../replicas/replica-kit.ts";

const FOLDER = tempDir();

async function upkeepOn(hub: LocalHub, folder: string) {
  const bus = createLocalBus(hub, basics);
  const sync = new IndexSync({
    ...{ bus, clock: systemClock, random: systemRandom, cluster: CLUSTER },
    ...{ index: new ReferenceIndex(), table: new WorkerTable(), log: () => undefined },
    load: { requestExpiryMs: 300_000 },
    ...{ blockTokens: 16, ingest: QUICK, isConfigured: () => false, replicas: SOON },
    applyThresholds: () => true,
    keep: { folder, everyMs: 3_600_000, snapshotThreshold: 1_000_000 },
    ...{ streamConsumer: null, resetStates: false },
  });
  await bus.connected(1_000);
  await sync.begin();
  return { bus, sync };
}

test("replicas, block lookups and saves appear in the metrics", async () => {
  const hub = new LocalHub();
  const [a, b] = [await upkeepOn(hub, `${FOLDER}/a`), await upkeepOn(hub, `${FOLDER}/b`)];
  await using _a = a.sync;
  await using _b = b.sync;
  await waitFor(() => a.sync.group!.stats.replicas === 1);
  expect(await a.sync.snapshots!.save()).toBe(true);
  b.bus.publish("kv-locate", Uint8Array.of(1), { reply: "nowhere" });
  await waitFor(() => {
    const { refused } = a.sync.locate!.stats;
    return refused + b.sync.locate!.stats.refused === 1;
  });
  const { group, locate, snapshots, fromReplicas } = a.sync;
  const sources = routerSources({
    ...{ replicas: group!.stats, locate: locate!.stats, saves: snapshots!.stats },
    snapshotsTaken: fromReplicas.taken,
  });
  const text = await new RouterMetrics().text(() => sources);
  expect(text).toContain("hearth_router_replicas 1");
  expect(text).toContain('hearth_router_saves_total{outcome="saved"} 1');
  expect(text).toMatch(/hearth_router_replica_news_total\{kind="received"\} [1-9]/);
  expect(text).toMatch(/hearth_router_locate_total\{outcome="refused"\} [01]/);
});
