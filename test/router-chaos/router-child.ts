/** A router with its real parts, that routes requests of its own. */
import { randomBelow, seededRandom, systemClock, systemRandom } from "../../src/core/index.ts";
import { loadNative } from "../../src/native/index.ts";
import {
  INGEST_DEFAULTS,
  IndexSync,
  NativeIndex,
  REPLICA_DEFAULTS,
  ROUTER_DEFAULTS,
  Router,
  WorkerTable,
} from "../../src/router/index.ts";
import { chaosBus, obey, specOf, tell } from "./child-side.ts";
import { contentOf, digestOf, emptySets, hashOf } from "./content.ts";
import type { RouterReport, RouterSpec } from "./messages.ts";

const TRAFFIC_MS = 10;
const LIVE_MAX = 60;

const spec = specOf<RouterSpec>();
const native = loadNative();
const random = seededRandom(spec.seed);
const below = (limit: number) => randomBelow(random, limit);
const bus = chaosBus(spec.url, spec.name);
const index = new NativeIndex({ native, random: systemRandom, bytesMax: 32 * 2 ** 20 });
const table = new WorkerTable();
const upkeep = new IndexSync({
  ...{ bus, index, table, clock: systemClock, random: systemRandom, cluster: "chaos" },
  log: (level, message, fields) => {
    if (process.env.CHAOS_LOG) console.error(spec.name, level, message, JSON.stringify(fields));
  },
  load: { requestExpiryMs: 300_000 },
  blockTokens: 16,
  ingest: {
    ...INGEST_DEFAULTS,
    answerMs: 400,
    recovery: { atOnceMax: 8, retryMinMs: 50, retryMaxMs: 400 },
  },
  isConfigured: () => false,
  replicas: { ...REPLICA_DEFAULTS, everyMs: 200, goneBeats: 4, orphanMs: 400, answerMs: 400 },
  applyThresholds: () => true,
  keep: { folder: spec.folder, everyMs: 700, snapshotThreshold: 1_000_000 },
  ...{ streamConsumer: null, resetStates: false },
});
const settings = { ...ROUTER_DEFAULTS, queue: { requestsMax: 0, waitMs: 0 } };
const router = new Router({
  ...{ clock: systemClock, random, native, settings, table, index, load: upkeep.load },
});
/** Requests that it answers for, by id, with their workers. */
const own = new Map<string, string>();
let isBusy = false;
let numbers = 0;

router.listen({ freed: (id) => void own.delete(id) });
const { kind } = await upkeep.begin();
systemClock.every(TRAFFIC_MS, () => {
  if (isBusy) traffic();
});
obey((order) => {
  if (order.order === "churn") isBusy = order.on;
  else if (order.order === "report") tell(report(order.id, order.full));
});
await bus.connected(10_000);
if (process.env.CHAOS_LOG) console.error(spec.name, "began", kind);
tell("ready");

function traffic(): void {
  const dice = below(10);
  const ids = [...own.keys()];
  const one = ids[below(ids.length)];
  if (ids.length < LIVE_MAX && dice < 5) route();
  else if (one === undefined) return;
  else if (dice < 6) router.markPrefillComplete(one);
  else if (dice < 7) router.output(one, below(200));
  else {
    router.free(one);
    own.delete(one);
  }
}

function route(): void {
  const family = below(40);
  const hashes = BigUint64Array.from({ length: 1 + below(40) }, (_, at) => hashOf(family, at));
  const requestId = `${spec.name}-${process.pid}-${numbers++}`;
  const prompt = { kind: "hashes", hashes } as const;
  const outcome = router.bestWorkerNow({ model: "m", prompt, requestId });
  if (outcome.kind === "routed") own.set(requestId, outcome.target.worker);
}

function report(id: number, full: boolean): RouterReport {
  const ingest = upkeep.ingest.stats();
  const loads: Record<string, readonly [number, number, number]> = {};
  const targets = table.targets.map(({ id: target, worker, isKnown }) => {
    const { activeRequests, activeBlocks, activePrefillTokens } = upkeep.load.of(target);
    loads[worker] = [activeRequests, activeBlocks, activePrefillTokens];
    const sets = emptySets();
    for (const run of index.dump(target)) {
      for (const hash of run.hashes) sets[run.tier].add(hash);
    }
    const content = contentOf(sets);
    return { worker, isKnown, digest: digestOf(content), content: full ? content : null };
  });
  const counted: Record<string, number> = {};
  for (const worker of own.values()) counted[worker] = (counted[worker] ?? 0) + 1;
  return {
    ...{ id, targets, loads, own: counted },
    replicas: upkeep.group?.stats.replicas ?? 0,
    indexBlocks: index.stats.heldBlocks,
    pendingHashes: ingest.pendingHashes,
    requests: upkeep.load.requests,
    rssBytes: process.memoryUsage.rss(),
    counts: { ...ingest, ...upkeep.group?.stats, ...upkeep.snapshots?.stats },
  };
}
