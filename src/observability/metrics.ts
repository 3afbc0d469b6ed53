import type { Clock } from "../core/index.ts";
import {
  type ApiRefusal,
  LOOKUP_OUTCOMES,
  LOOKUP_TIERS,
  type LookupOutcome,
  type LookupTier,
  RAM_FINDERS,
  TIERS,
} from "./catalogue.ts";
import { writeControl } from "./control-metrics.ts";
import { type DevicesSnapshot, writeDevices } from "./device-metrics.ts";
import type { HealthCount } from "./health.ts";
import type { PeersSnapshot } from "./peer-metrics.ts";
import { TRANSPORT_LABELS, type TransportLabel, writePeers } from "./peer-metrics.ts";
import { type PublisherSnapshot, writePublisher } from "./publisher-metrics.ts";
import { createRegistry, type MetricRegistry } from "./registry.ts";
import type {
  ControlSnapshot,
  EngineSnapshot,
  ProcessSnapshot,
  SsdSnapshot,
  StoreSnapshot,
} from "./snapshots.ts";

/** All metrics of an agent. Counters kept by other components are read at scrape time. */
export interface Metrics {
  /** Records the lookup of one request's blocks. Cheap enough for every request. */
  lookedUp(tier: LookupTier, outcome: LookupOutcome, seconds: number): void;
  observeStore(read: () => StoreSnapshot): void;
  observeEngine(read: () => EngineSnapshot): void;
  observeControl(read: () => ControlSnapshot): void;
  observePeers(read: () => PeersSnapshot): void;
  observeFeed(read: () => PublisherSnapshot): void;
  observeDevices(read: () => DevicesSnapshot): void;
  /** Records the time from a request to a peer to the last byte of its block. */
  pulled(transport: TransportLabel, seconds: number): void;
  observeHealth(read: () => readonly HealthCount[]): void;
  observeProcess(read: () => ProcessSnapshot): void;
  /** Sets the source of refused API callers by error code. */
  observeApi(read: () => ReadonlyMap<ApiRefusal, number>): void;
  /** The Prometheus text format. */
  text(): Promise<string>;
  readonly contentType: string;
}

export interface MetricsOptions {
  readonly clock: Clock;
  readonly version: string;
  readonly commit: string;
}

export function createMetrics({ clock, version, commit }: MetricsOptions): Metrics {
  const registry = createRegistry("agent");
  const startedMs = clock.monotonicMs();
  const lookups = lookupObservers(registry);
  const pulls = pullObservers(registry);
  const readers: (() => void)[] = [];
  registry.set("buildInfo", 1, { version, commit });
  return {
    lookedUp: (tier, outcome, seconds) => lookups[tier][outcome](seconds),
    observeStore: (read) => void readers.push(() => writeStore(registry, read())),
    observeEngine: (read) => void readers.push(() => writeEngine(registry, read())),
    observeControl: (read) => void readers.push(() => writeControl(registry, read())),
    observePeers: (read) => void readers.push(() => writePeers(registry, read())),
    observeFeed: (read) => void readers.push(() => writePublisher(registry, read())),
    observeDevices: (read) => void readers.push(() => writeDevices(registry, read())),
    pulled: (transport, seconds) => pulls[transport](seconds),
    observeHealth: (read) => void readers.push(() => writeHealth(registry, read())),
    observeProcess: (read) => void readers.push(() => writeProcess(registry, read())),
    observeApi: (read) =>
      void readers.push(() => {
        for (const [code, count] of read()) registry.set("apiRefused", count, { code });
      }),
    text: () =>
      registry.text(() => {
        for (const read of readers) read();
        registry.set("uptime", (clock.monotonicMs() - startedMs) / 1_000);
      }),
    contentType: registry.contentType,
  };
}

type Observe = (seconds: number) => void;
type LookupObservers = Record<LookupTier, Record<LookupOutcome, Observe>>;

function lookupObservers(registry: MetricRegistry): LookupObservers {
  const observers: Partial<Record<LookupTier, Record<LookupOutcome, Observe>>> = {};
  for (const tier of LOOKUP_TIERS) {
    const byOutcome: Partial<Record<LookupOutcome, Observe>> = {};
    for (const outcome of LOOKUP_OUTCOMES) {
      byOutcome[outcome] = registry.observer("lookupSeconds", { tier, outcome });
    }
    observers[tier] = byOutcome as Record<LookupOutcome, Observe>;
  }
  return observers as LookupObservers;
}

function pullObservers(registry: MetricRegistry): Record<TransportLabel, Observe> {
  const observers = TRANSPORT_LABELS.map((transport) => [
    transport,
    registry.observer("peerPullSeconds", { transport }),
  ]);
  return Object.fromEntries(observers) as Record<TransportLabel, Observe>;
}

function writeStore(registry: MetricRegistry, store: StoreSnapshot): void {
  const { tiers, slots, arena, table, stats } = store;
  for (const tier of TIERS) {
    registry.set("blocks", tiers[tier].blocks, { tier });
    registry.set("bytes", tiers[tier].bytes, { tier });
  }
  registry.set("slots", slots.used, { state: "used" });
  registry.set("slots", slots.free, { state: "free" });
  registry.set("slots", slots.quarantined, { state: "quarantined" });
  registry.set("arenaBytes", arena.bytes);
  registry.set("arenaReadyBytes", arena.readyBytes);
  registry.set("arenaLockedBytes", arena.lockedBytes);
  registry.set("tableBlocks", table.blocks);
  registry.set("tableCapacity", table.capacity);
  registry.set("sessions", store.sessions);
  registry.set("evictions", stats.evictedBlocks, { tier: "ram" });
  registry.set("evictedBytes", stats.evictedBytes, { tier: "ram" });
  registry.set("evictionRuns", stats.evictionRuns);
  registry.set("matchedBlocks", stats.matchBlocks);
  registry.set("fullAnswers", stats.fullBlocks);
  registry.set("corruptBlocks", stats.corruptBlocks);
  writeChecks(registry, store.checks);
  registry.set("committedBytes", stats.committedBytes);
  if (store.ssd !== null) writeSsd(registry, store.ssd);
  const outcome = (operation: string, name: string, count: number) =>
    registry.set("blockOutcomes", count, { operation, outcome: name });
  outcome("acquire", "ok", stats.acquireHits);
  outcome("acquire", "miss", stats.acquireMisses);
  outcome("reserve", "ok", stats.reservedBlocks);
  outcome("reserve", "present", stats.presentBlocks);
  outcome("reserve", "full", stats.fullBlocks);
  outcome("commit", "ok", stats.committedBlocks);
  outcome("commit", "corrupt", stats.corruptBlocks);
  outcome("abort", "ok", stats.abortedBlocks);
}

function writeChecks(registry: MetricRegistry, checks: StoreSnapshot["checks"]): void {
  for (const by of RAM_FINDERS) registry.set("ramCorrupt", checks.damaged[by], { by });
  registry.set("ramReports", checks.damaged.report, { outcome: "damaged" });
  registry.set("ramReports", checks.falseReports, { outcome: "right" });
  registry.set("ramReports", checks.skippedReports, { outcome: "skipped" });
  registry.set("ramReports", checks.plantedBlocks, { outcome: "planted" });
  registry.set("ramReports", checks.unknownReports, { outcome: "unverified" });
  registry.set("ramScrubbedBytes", checks.scrubbedBytes);
}

function writeSsd(registry: MetricRegistry, ssd: SsdSnapshot): void {
  const { stats } = ssd;
  registry.set("ssdUsedBytes", ssd.usedBytes);
  registry.set("ssdCapacityBytes", ssd.capacityBytes);
  registry.set("ssdQueuedBytes", ssd.queuedBytes);
  registry.set("ssdReading", ssd.reading);
  registry.set("ssdQuarantined", ssd.quarantinedFiles);
  registry.set("evictions", stats.evictedBlocks, { tier: "ssd" });
  registry.set("evictedBytes", stats.evictedBytes, { tier: "ssd" });
  const event = (name: string, count: number) => registry.set("ssdBlocks", count, { event: name });
  event("written", stats.writtenBlocks);
  event("read", stats.readBlocks);
  event("shared_read", stats.sharedReads);
  event("late", stats.lateBlocks);
  event("skipped", stats.skippedBlocks);
  event("expired", stats.expiredBlocks);
  event("corrupt", stats.corruptBlocks);
  event("ram_damaged", stats.ramDamagedFiles);
  event("scrubbed", stats.scrubbedBlocks);
  event("purged", stats.purgedBlocks);
  registry.set("ssdBytes", stats.writtenBytes, { direction: "written" });
  registry.set("ssdBytes", stats.readBytes, { direction: "read" });
  registry.set("ssdBytes", stats.scrubbedBytes, { direction: "scrubbed" });
  registry.set("ssdErrors", stats.readErrors, { operation: "read" });
  registry.set("ssdErrors", stats.writeErrors, { operation: "write" });
}

function writeEngine(registry: MetricRegistry, engine: EngineSnapshot): void {
  const { connections, slotsHeld, frames, reservations, stats } = engine;
  const reserved = (outcome: string, count: number) =>
    registry.set("engineReservations", count, { outcome });
  registry.set("engineReservedBytes", reservations.bytes);
  reserved("acquired", reservations.takenBlocks);
  reserved("unused", reservations.unusedBlocks);
  reserved("refused", reservations.refusedBlocks);
  registry.set("engineLookupsWaiting", engine.lookupsWaiting);
  registry.set("engineAnnounced", engine.announcedBlocks);
  registry.set("engineConnections", connections);
  registry.set("engineSlotsHeld", slotsHeld);
  registry.set("engineConnected", stats.connected);
  registry.set("engineRefused", stats.refusedPeers);
  registry.set("engineCutOff", stats.cutOff);
  registry.set("engineQuarantines", stats.quarantines);
  registry.set("engineFaults", stats.faults);
  for (const { operation, status, count } of frames) {
    registry.set("frames", count, { operation, status });
  }
}

export function writeHealth(registry: MetricRegistry, counts: readonly HealthCount[]): void {
  for (const { code, isRaised, raised } of counts) {
    registry.set("health", isRaised ? 1 : 0, { code });
    registry.set("healthRaised", raised, { code });
  }
}

export function writeProcess(registry: MetricRegistry, process_: ProcessSnapshot): void {
  registry.set("eventLoopLag", process_.loop.longestSeconds());
  registry.set("eventLoopTurn", process_.loop.longestTurnSeconds());
  registry.set("eventLoopTurnCpu", process_.loop.longestTurnCpuSeconds());
  registry.set("eventLoopLongTurns", process_.loop.longTurns);
  registry.set("logLinesDropped", process_.logLinesDropped);
  registry.set("residentBytes", process.memoryUsage.rss());
  const { user, system } = process.cpuUsage();
  registry.set("cpuSeconds", (user + system) / 1e6);
}
