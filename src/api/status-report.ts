import { type Static, t } from "elysia";
import type { Config } from "../config/index.ts";
import { cudaVersion } from "../devices/index.ts";
import { DROP_REASONS } from "../events/index.ts";
import type { Native } from "../native/index.ts";
import type { Health } from "../observability/index.ts";
import { AGENT_METRICS, type AgentSources, sum } from "./agent-metrics.ts";
import { bytes, count, hex32, nullable, oneOf, snakeCase } from "./fields.ts";

/**
 * Maximum namespaces that the status lists. A host has few models and variants; longer lists are
 * cut.
 */
export const NAMESPACES_SHOWN_MAX = 100;

/** Returns the schema of a number that is also a metric, described by the metric's help text. */
function figure(name: keyof typeof AGENT_METRICS) {
  const { help } = AGENT_METRICS[name];
  return name.includes("_bytes") ? bytes(help) : count(help);
}

const arena = t.Object(
  {
    bytes: figure("hearth_arena_bytes"),
    ready_bytes: figure("hearth_arena_ready_bytes"),
    locked_bytes: figure("hearth_arena_locked_bytes"),
    page_bytes: bytes("Page size"),
    huge: t.Boolean({ description: "Whether huge pages are used" }),
  },
  { description: "Memory of the RAM tier" },
);

const slotClass = t.Object({
  slot_bytes: bytes("Slot size"),
  slots: count("Slots of this size"),
  used: count("Slots that hold a block or are being written"),
});

const ram = t.Object({
  blocks: count("Readable blocks"),
  bytes: bytes("Size of these blocks"),
  capacity_bytes: bytes("Capacity of all slots"),
  slots: t.Array(slotClass, { description: "Slots by size" }),
  damaged_blocks: count("Blocks found damaged in RAM and dropped since the start"),
  false_reports: count("Blocks reported as damaged by readers and found intact since the start"),
  scrubbed_bytes: figure("hearth_ram_scrubbed_bytes_total"),
});

const ssd = nullable(
  t.Object({
    blocks: count("Blocks on SSD"),
    bytes: bytes("Size of these blocks"),
    used_bytes: figure("hearth_ssd_used_bytes"),
    capacity_bytes: figure("hearth_ssd_capacity_bytes"),
    queued_blocks: count("Blocks being written to SSD"),
    queued_bytes: figure("hearth_ssd_queued_bytes"),
    reading: figure("hearth_ssd_reading_blocks"),
    quarantined_files: figure("hearth_ssd_quarantined_files"),
    method: t.String({ description: "`io_uring` or `threads`" }),
    direct: t.Boolean({ description: "Whether direct I/O bypasses the page cache" }),
    registered: t.Boolean({ description: "Whether RAM is registered with io_uring" }),
    writes_stopped: nullable(
      t.String({ description: "Why writes are disabled; null: they are not" }),
    ),
    reads_stopped: nullable(
      t.String({ description: "Why reads are disabled; null: they are not" }),
    ),
    counters: t.Record(t.String(), count("Value since the start")),
  }),
  "SSD tier; null without one",
);

const held = (what: string) =>
  t.Object(
    {
      holds: count("Pins or leases in force"),
      blocks: count("Blocks protected; a block under two of them counts twice"),
      bytes: bytes("Size of these blocks"),
    },
    { description: what },
  );

const control = t.Object(
  {
    pins: held("Hard pins"),
    retains: held("Soft pins, which are evicted first"),
    leases: held("Leases of paused sessions"),
    kept_bytes: figure("hearth_kept_bytes"),
    kept_bytes_max: figure("hearth_kept_bytes_max"),
    running: figure("hearth_commands_running"),
    ledger_pending: nullable(
      count("Changes that the retention ledger has not committed; null without an SSD tier"),
    ),
    ledger_failing: nullable(
      t.String({ description: "Why the ledger cannot commit; null: it can" }),
    ),
  },
  { description: "Control plane: pins, leases and commands" },
);

const stream = nullable(
  t.Object({
    name: t.String(),
    status: oneOf(["consuming", "waiting", "missing", "closed"]),
    why: nullable(t.String({ description: "Why the stream is not read; null: it is" })),
    handled: count("Messages executed or refused since the start"),
    given_up: count("Messages neither executed nor refused, despite redelivery"),
  }),
  "Stream that commands are read from; null if they arrive as published",
);

const workers = nullable(
  t.Object({
    bucket: t.String(),
    why: nullable(
      t.String({ description: "Why the broker does not accept the entry; null: it does" }),
    ),
  }),
  "Entry of this worker in the broker; null if it has none",
);

const nats = nullable(
  t.Object({
    status: oneOf(["connecting", "connected", "reconnecting", "closed"]),
    server: nullable(t.String({ description: "Broker address; null while unconnected" })),
    why: nullable(t.String({ description: "Why it is not connected; null: it is" })),
    reconnects: figure("hearth_bus_reconnects_total"),
    queued: figure("hearth_bus_queued_messages"),
    dropped: count("Messages dropped from a full queue since the start"),
    stream,
    workers,
  }),
  "Connection to the command broker; null without one",
);

const peers = nullable(
  t.Object({
    known: count("Known peers"),
    down: count("Peers with an open circuit breaker"),
    pulled_blocks: count("Blocks fetched from peers since the start"),
    pulled_bytes: bytes("Size of these blocks"),
    served_blocks: count("Blocks sent to peers since the start"),
    served_bytes: bytes("Size of these blocks"),
    in_flight_bytes: figure("hearth_peer_in_flight_bytes"),
  }),
  "Peers; null if `peers.cert_file` is not set",
);

const feed = nullable(
  t.Object({
    mode: oneOf(["ring", "stream"]),
    cluster: t.String({ description: "Name in the subjects" }),
    ranks: count("Data parallel ranks, each published separately"),
    changes: figure("hearth_feed_changes_total"),
    device_blocks: count("Blocks published as on engines' GPUs"),
    host_blocks: count("Blocks published as in RAM"),
    disk_blocks: count("Blocks published as on SSD"),
    ring_blocks: figure("hearth_feed_ring_blocks"),
    sent: count("Messages with changes sent since the start"),
    unsent: count("Messages dropped for lack of a connection or room since the start"),
    snapshots: figure("hearth_feed_snapshots_total"),
    engine: nullable(
      t.Object({
        heard: count("Ranks whose engine is connected now"),
        known: count("Connected ranks without missing events"),
        blocks: figure("hearth_feed_engine_blocks"),
        events: count("Events read since the start"),
        dropped: count("Events and blocks ignored since the start"),
        dropped_by: t.Record(t.String(), t.Number(), {
          description: "Events and blocks ignored since the start, by reason",
        }),
        block_tokens: nullable(count("Tokens per block according to the events")),
        gaps: count("Gaps between batches since the start"),
      }),
      "KV events of the engine; null without `engine.kv_events`",
    ),
    stream: nullable(
      t.Object({
        status: oneOf(["publishing", "waiting", "refused"]),
        why: nullable(t.String({ description: "Why publishing is stopped; null: it is not" })),
        behind: figure("hearth_feed_stream_behind"),
        stored_snapshots: figure("hearth_feed_stored_snapshots_total"),
      }),
      'The stream of `mode = "stream"`; null without one',
    ),
  }),
  "Publishing of this host's blocks to routers; null if it is off",
);

const table = t.Object({
  blocks: figure("hearth_table_blocks"),
  capacity: figure("hearth_table_capacity_blocks"),
  gpu_blocks: count("Blocks that engines reported on their GPU"),
  namespaces: count("Namespaces seen since the start"),
});

const engine = t.Object({
  socket: t.String({ description: "Path of the engine socket" }),
  connections: figure("hearth_engine_connections"),
  slots_held: figure("hearth_engine_slots_held"),
  slots_quarantined: count("Slots that wait for the exit of a process"),
  frames: count("Frames since the start"),
  cut_off: figure("hearth_engine_cut_off_total"),
  refused: figure("hearth_engine_refused_total"),
});

const found = oneOf(
  ["usable", "absent", "broken"],
  "`absent`: no such device; `broken`: a device cannot be used",
);
const numaNode = nullable(t.Number({ description: "NUMA node of the device; null: unknown" }));
const text = t.String({ description: "State in one line" });
const fix = nullable(t.String({ description: "Suggested fix; null if none is needed" }));

const gpu = t.Object({
  name: t.String(),
  pci: t.String({ description: "PCI address, as `0000:3b:00.0`" }),
  uuid: t.String({ description: "Id shown by nvidia-smi, without `GPU-`" }),
  memory_bytes: bytes("GPU memory"),
  numa_node: numaNode,
  dma_buf: t.Boolean({ description: "Whether other devices can access its memory" }),
  lost: nullable(
    t.String({ description: "Error that made the GPU unusable; null while it works" }),
  ),
  pageable_copies: figure("hearth_gpu_pageable_copies_total"),
});

/** Schema of `gpu` in the status. */
const gpuStatus = nullable(
  t.Object({
    found,
    text,
    fix,
    driver: nullable(t.String({ description: "CUDA version of the driver; null: unknown" })),
    batches: t.Boolean({ description: "Whether one call copies many pieces" }),
    registered_bytes: figure("hearth_gpu_registered_bytes"),
    devices: t.Array(gpu),
  }),
  'GPUs; null with `gpu.enabled = "off"`',
);

const port = t.Object({
  name: t.String({ description: "Device and port, as `mlx5_0/1`" }),
  state: oneOf(["active", "down", "no_address", "fatal"]),
  link_layer: oneOf(["infiniband", "ethernet"]),
  gbit_per_second: t.Number({ minimum: 0, description: "0: unknown" }),
  numa_node: numaNode,
  relaxed_ordering: t.Boolean({ description: "Whether writes use relaxed ordering" }),
  dma_buf: t.Boolean({ description: "Whether it can access memory of other devices" }),
});

const direct = t.Object({
  gpu: t.String({ description: "Name and address of the GPU" }),
  port: nullable(t.String({ description: "Port used for the test; null: none is active" })),
  works: t.Boolean({ description: "Whether a write to GPU memory arrived" }),
  text,
  fix,
});

/** Schema of `rdma` in the status. */
const rdmaStatus = nullable(
  t.Object({
    found,
    text,
    fix,
    ports: t.Array(port),
    direct: t.Array(direct, {
      description:
        "Results of the test at the start for each GPU; blocks go through RAM in any case",
    }),
  }),
  "RDMA devices; null if peers or RDMA are off",
);

const problem = t.Object({
  code: t.String({ description: "Stable code; see `hearth reference health`" }),
  severity: oneOf(["error", "warn"]),
  for_seconds: t.Number({ minimum: 0, description: "Time since the problem began" }),
  meaning: t.String(),
  details: t.String({ description: "Message" }),
  fix: t.String({ description: "Suggested fix" }),
});

const counters = t.Record(t.String(), count("Value since the start"), {
  description: "Counters of the block store since the start",
});

const build = t.Object({
  commit: t.String({ description: "Commit of the sources; `checkout` for a source checkout" }),
  runtime: t.String(),
  native: t.String({ description: "Build mode of the native library" }),
});

/**
 * Response body of `GET /v1/status`. Durations are in seconds, sizes in bytes; counters start at
 * the agent's start.
 */
export const statusReport = t.Object({
  version: t.String(),
  worker_id: t.String({ description: "Name of this worker" }),
  incarnation: t.String({
    pattern: "^[0-9]{1,20}$",
    description: "Id of this run, 64 bits; text, so that no client rounds it",
  }),
  state: oneOf(["starting", "ready", "draining"]),
  uptime_seconds: t.Number({ minimum: 0 }),
  arena,
  ram,
  ssd,
  control,
  nats,
  peers,
  feed,
  gpu: gpuStatus,
  rdma: rdmaStatus,
  table,
  namespaces: t.Array(hex32("Namespace key"), {
    maxItems: NAMESPACES_SHOWN_MAX,
    description: "Namespace keys in hex, in order of first use",
  }),
  engine,
  sessions: figure("hearth_sessions"),
  health: t.Array(problem, { description: "Current problems, worst first" }),
  counters,
  build,
});

export type StatusReport = Static<typeof statusReport>;

/** The objects from which an agent's status is read. */
export interface StatusSources extends AgentSources {
  readonly config: Pick<Config, "node" | "engine">;
  readonly incarnation: bigint;
  readonly state: "starting" | "ready" | "draining" | "stopped";
  readonly health: Pick<Health, "counts" | "list">;
  /** Keys of the namespaces, in order of first use. */
  readonly namespaces: readonly Uint8Array[];
  readonly native: Pick<Native, "build">;
}

export function readStatus(sources: StatusSources): StatusReport {
  const { version, commit, config, state, store, region, engine, native } = sources;
  const secondsSince = (ms: number) => toSeconds(sources.clock.monotonicMs() - ms);
  const { held, quarantined } = engine.held();
  const { damaged, falseReports, scrubbedBytes } = store.checks;
  return {
    version,
    worker_id: config.node.id,
    incarnation: sources.incarnation.toString(),
    state: state === "stopped" ? "draining" : state,
    uptime_seconds: secondsSince(sources.startedMs),
    arena: {
      bytes: store.arenaBytes,
      ready_bytes: store.readyBytes,
      locked_bytes: region.lockedBytes,
      page_bytes: region.pageBytes,
      huge: region.pageBytes > 4096,
    },
    ram: {
      blocks: store.ramBlocks,
      bytes: store.ramBytes,
      capacity_bytes: store.readyBytes,
      slots: store.classes.map(({ slotBytes, slots, used }) => {
        return { slot_bytes: slotBytes, slots, used };
      }),
      damaged_blocks: sum(Object.values(damaged), (blocks) => blocks),
      false_reports: falseReports,
      scrubbed_bytes: scrubbedBytes,
    },
    ssd: ssdOf(sources),
    control: controlOf(sources),
    nats: natsOf(sources),
    peers: peersOf(sources),
    feed: feedOf(sources),
    gpu: gpuOf(sources),
    rdma: rdmaOf(sources),
    table: {
      blocks: store.tableNodes,
      capacity: store.tableNodesMax,
      gpu_blocks: store.gpuBlocks,
      namespaces: sources.namespaces.length,
    },
    namespaces: sources.namespaces.slice(0, NAMESPACES_SHOWN_MAX).map((key) => key.toHex()),
    engine: {
      socket: config.engine.socket,
      connections: engine.connections,
      slots_held: held,
      slots_quarantined: quarantined,
      frames: sources.frames.total(),
      cut_off: engine.stats.cutOff,
      refused: engine.stats.refusedPeers,
    },
    sessions: store.sessions,
    health: sources.health.list().map(({ sinceMs, ...problem }) => {
      return { ...problem, for_seconds: secondsSince(sinceMs) };
    }),
    counters: snakeCase(store.stats),
    build: { commit, runtime: `Bun ${Bun.version}`, native: native.build().optimizeMode },
  };
}

/** Converts milliseconds to seconds, rounded to the millisecond. */
export function toSeconds(ms: number): number {
  return Number((ms / 1_000).toFixed(3));
}

function ssdOf({ store: { ssd } }: StatusSources): StatusReport["ssd"] {
  if (ssd === null) return null;
  const { stats, ...tier } = ssd;
  return { ...snakeCase(tier), counters: snakeCase(stats) };
}

function controlOf({ control }: StatusSources): StatusReport["control"] {
  const { holds, figures, stats, ledger } = control;
  return {
    pins: holds.pin,
    retains: holds.retain,
    leases: holds.lease,
    kept_bytes: figures.hostUsedBytes,
    kept_bytes_max: figures.hostBudgetBytes,
    running: stats.running,
    ledger_pending: ledger?.pending ?? null,
    ledger_failing: ledger?.failing ?? null,
  };
}

function natsOf({ bus }: StatusSources): StatusReport["nats"] {
  if (bus === null) return null;
  const { status, server, why, reconnects, queuedMessages, droppedMessages } = bus.state;
  const { stream, workers } = bus;
  return {
    ...{ status, server, why, reconnects, queued: queuedMessages, dropped: droppedMessages },
    stream: stream && snakeCase(stream),
    workers,
  };
}

function peersOf({ peers: open, store: { stats } }: StatusSources): StatusReport["peers"] {
  if (open === null) return null;
  return {
    known: open.peers.length,
    down: open.peers.filter((peer) => peer.state === "down").length,
    pulled_blocks: stats.pulledBlocks,
    pulled_bytes: stats.pulledBytes,
    served_blocks: stats.lentBlocks,
    served_bytes: stats.lentBytes,
    in_flight_bytes: open.fetcher.stats.inFlightBytes,
  };
}

type FeedStatus = StatusReport["feed"];

function feedOf({ publishing }: StatusSources): FeedStatus {
  if (publishing === null) return null;
  const { mode, cluster, ranks } = publishing;
  const [device, host, disk] = publishing.heldBlocks;
  const streams = ranks.flatMap(({ stream }) => stream ?? []);
  const worst = streams.find(({ status }) => status !== "publishing") ?? streams[0];
  return {
    mode,
    cluster,
    ranks: ranks.length,
    changes: sum(ranks, ({ residency }) => residency.lastSequence),
    device_blocks: device,
    host_blocks: host,
    disk_blocks: disk,
    ring_blocks: sum(ranks, ({ residency }) => residency.ring.blocks),
    sent: sum(ranks, ({ bus, stream }) => stream?.acknowledged ?? bus?.sent),
    unsent: sum(ranks, ({ bus }) => bus?.unsent),
    snapshots: sum(ranks, ({ bus }) => bus?.snapshots),
    engine: engineEventsOf(publishing),
    stream:
      worst === undefined
        ? null
        : {
            status: worst.status,
            why: worst.why,
            behind: sum(streams, ({ behind }) => behind),
            stored_snapshots: sum(streams, ({ storedSnapshots }) => storedSnapshots),
          },
  };
}

function engineEventsOf({
  ranks,
  engineBlocks,
}: NonNullable<AgentSources["publishing"]>): NonNullable<FeedStatus>["engine"] {
  const engines = ranks.flatMap(({ engine }) => engine ?? []);
  if (engines.length === 0) return null;
  const dropped = DROP_REASONS.map((reason) => {
    return [reason, sum(engines, ({ counts }) => counts.dropped[reason])] as const;
  });
  return {
    heard: engines.filter(({ isHeard }) => isHeard).length,
    known: engines.filter(({ isKnown }) => isKnown).length,
    blocks: engineBlocks,
    events: sum(engines, ({ counts }) => counts.events),
    dropped: sum(dropped, ([, count]) => count),
    dropped_by: Object.fromEntries(dropped.filter(([, count]) => count > 0)),
    block_tokens: engines.find(({ blockTokens }) => blockTokens !== null)?.blockTokens ?? null,
    gaps: sum(engines, ({ counts }) => counts.gaps),
  };
}

function gpuOf({ devices: { gpu: report } }: StatusSources): StatusReport["gpu"] {
  if (report === null) return null;
  const { finding, driverVersion, hasBatches, registeredBytes, gpus } = report;
  return {
    found: finding.kind,
    text: finding.text,
    fix: finding.fix,
    driver: driverVersion === 0 ? null : cudaVersion(driverVersion),
    batches: hasBatches,
    registered_bytes: registeredBytes,
    devices: gpus.map(({ hasDmaBuf, ...device }) => {
      return { ...snakeCase(device), dma_buf: hasDmaBuf };
    }),
  };
}

function rdmaOf({ devices: { rdma: report, direct } }: StatusSources): StatusReport["rdma"] {
  if (report === null) return null;
  const { finding, ports } = report;
  return {
    found: finding.kind,
    text: finding.text,
    fix: finding.fix,
    ports: ports.map(({ name, state, linkLayer, numaNode, ...port }) => ({
      ...snakeCase({ name, state, linkLayer, numaNode }),
      gbit_per_second: port.speed / 1_000,
      relaxed_ordering: port.hasRelaxedOrdering,
      dma_buf: port.hasDmaBuf,
    })),
    direct: direct.map(({ kind, gpu, port, text, fix }) => {
      return { gpu, port, works: kind === "usable", text, fix };
    }),
  };
}
