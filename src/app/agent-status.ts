import { NAMESPACES_SHOWN_MAX, type StatusReport } from "../api/index.ts";
import { systemClock } from "../core/index.ts";
import type { Native } from "../native/index.ts";
import type { SsdStats, StoreSnapshot, StoreStats } from "../store/index.ts";
import type { Agent } from "./agent.ts";
import type { ControlBus, ControlService } from "./control-service.ts";
import { gpuStatus, rdmaStatus } from "./devices-service.ts";
import { peersStatus } from "./peer-reports.ts";
import { feedStatus } from "./publishing-service.ts";

interface About {
  readonly native: Native;
  readonly version: string;
  readonly commit: string;
}

/** Body of `GET /v1/status`. */
export function statusOf(agent: Agent, { native, version, commit }: About): StatusReport {
  const { config, engine, frames } = agent;
  const store = agent.store.snapshot();
  const { checks } = store;
  const { pageBytes, lockedBytes } = agent.region();
  const held = engine.held();
  return {
    version,
    worker_id: config.node.id,
    incarnation: agent.incarnation.toString(),
    state: agent.state === "stopped" ? "draining" : agent.state,
    uptime_seconds: secondsSince(agent.startedMs),
    arena: {
      bytes: store.arenaBytes,
      ready_bytes: store.readyBytes,
      locked_bytes: lockedBytes,
      page_bytes: pageBytes,
      huge: pageBytes > 4096,
    },
    ram: {
      blocks: store.ramBlocks,
      bytes: store.ramBytes,
      capacity_bytes: store.readyBytes,
      slots: store.classes.map(({ slotBytes, slots, used }) => ({
        slot_bytes: slotBytes,
        slots,
        used,
      })),
      damaged_blocks: Object.values(checks.damaged).reduce((sum, count) => sum + count, 0),
      false_reports: checks.falseReports,
      scrubbed_bytes: checks.scrubbedBytes,
    },
    table: {
      blocks: store.tableNodes,
      capacity: store.tableNodesMax,
      gpu_blocks: store.gpuBlocks,
      namespaces: agent.namespaces.size,
    },
    namespaces: agent.namespaces
      .keys()
      .slice(0, NAMESPACES_SHOWN_MAX)
      .map((key) => key.toHex()),
    engine: {
      socket: config.engine.socket,
      connections: engine.connections,
      slots_held: held.held,
      slots_quarantined: held.quarantined,
      frames: frames.total(),
      cut_off: engine.stats.cutOff,
      refused: engine.stats.refusedPeers,
    },
    ssd: ssdOf(store.ssd),
    control: controlOf(agent.control),
    nats: natsOf(agent.bus),
    peers: peersStatus(agent.peers, agent.store),
    feed: feedStatus(agent.feed),
    gpu: gpuStatus(agent.devices),
    rdma: rdmaStatus(agent.devices),
    sessions: store.sessions,
    health: agent.health.list().map(({ sinceMs, ...problem }) => ({
      ...problem,
      for_seconds: secondsSince(sinceMs),
    })),
    counters: snakeCase(store.stats),
    build: { commit, runtime: `Bun ${Bun.version}`, native: native.build().optimizeMode },
  };
}

function controlOf(service: ControlService): StatusReport["control"] {
  const { holds, keptBytes, keptBytesMax, running } = service.snapshot();
  const { pin, retain, lease } = holds;
  const ledger = service.ledgerState;
  return {
    pins: pin,
    retains: retain,
    leases: lease,
    kept_bytes: keptBytes,
    kept_bytes_max: keptBytesMax,
    running,
    ledger_pending: ledger?.pending ?? null,
    ledger_failing: ledger?.failing ?? null,
  };
}

function natsOf(bus: ControlBus | null): StatusReport["nats"] {
  if (bus === null) return null;
  const { stream, workers } = bus;
  const { status, server, why, reconnects, queuedMessages, droppedMessages } = bus.state;
  return {
    ...{ status, server, why, reconnects, queued: queuedMessages, dropped: droppedMessages },
    stream:
      stream === null
        ? null
        : {
            ...{ name: stream.name, status: stream.status, why: stream.why },
            ...{ handled: stream.handled, given_up: stream.givenUp },
          },
    workers,
  };
}

function ssdOf(ssd: StoreSnapshot["ssd"]): StatusReport["ssd"] {
  if (ssd === null) return null;
  return {
    blocks: ssd.blocks,
    bytes: ssd.bytes,
    used_bytes: ssd.usedBytes,
    capacity_bytes: ssd.capacityBytes,
    queued_blocks: ssd.queuedBlocks,
    queued_bytes: ssd.queuedBytes,
    reading: ssd.reading,
    quarantined_files: ssd.quarantinedFiles,
    method: ssd.method,
    direct: ssd.direct,
    registered: ssd.registered,
    writes_stopped: ssd.writesStopped,
    reads_stopped: ssd.readsStopped,
    counters: snakeCase(ssd.stats),
  };
}

function secondsSince(ms: number): number {
  return seconds(systemClock.monotonicMs() - ms);
}

/** Converts milliseconds to seconds, rounded to the millisecond. */
export function seconds(ms: number): number {
  return Number((ms / 1_000).toFixed(3));
}

function snakeCase(counters: Readonly<StoreStats> | Readonly<SsdStats>): Record<string, number> {
  const entries = Object.entries(counters);
  return Object.fromEntries(
    entries.map(([name, count]) => [name.replace(/[A-Z]/g, (c) => `_${c.toLowerCase()}`), count]),
  );
}
