import type { BusState, ConsumptionState } from "../bus/index.ts";
import {
  COMMAND_TYPES,
  type ControlStats,
  REFUSALS,
  type SubscriberStats,
} from "../control/index.ts";
import type { WorkerId } from "../core/index.ts";
import type { DirectFinding, HostGpusReport, HostRdmaReport } from "../devices/index.ts";
import {
  type EngineServer,
  FRAME_OPERATIONS,
  FRAME_STATUSES,
  type FrameCounts,
} from "../engine/index.ts";
import type {
  BusPublisherState,
  EngineRankState,
  ResidencyLog,
  StreamPublisherState,
  ZmqPublisherState,
} from "../events/publishing/index.ts";
import {
  counter,
  gauge,
  histogram,
  Metrics,
  type MetricTable,
  metricsOfPart,
  PROCESS_METRICS,
  type ProcessSources,
} from "../observability/index.ts";
import {
  type AnnouncerStats,
  type Endpoint,
  type Fetcher,
  type PeerRecord,
  type PeerStatus,
  PULL_OUTCOMES,
  type ServeStats,
  type SummariesStats,
  TRANSPORTS,
  type TransportName,
  type Trust,
} from "../peers/index.ts";
import type { LedgerState } from "../store/index/index.ts";
import type { ClaimStats, SsdSnapshot, SsdStats, StoreSnapshot } from "../store/index.ts";
import type { BudgetFigures, Holds } from "../store/pins/index.ts";

/**
 * State of the publishers of one data-parallel rank. A member is null if the rank is not published
 * that way.
 */
export interface PublishedRank {
  readonly residency: Pick<ResidencyLog, "lastSequence" | "ring">;
  readonly bus: BusPublisherState | null;
  readonly stream: StreamPublisherState | null;
  readonly zmq: ZmqPublisherState | null;
  readonly engine: EngineRankState | null;
}

/** State of publishing residency changes, for metrics and status. */
export interface PublishingSources {
  readonly mode: "ring" | "stream";
  readonly cluster: string;
  readonly ranks: readonly PublishedRank[];
  /** Number of times the queue of changes overflowed and publishing started over. */
  readonly restarts: number;
  /** Number of blocks that engines have, according to their own events. */
  readonly engineBlocks: number;
  /** Number of blocks in this host's store per tier, in the order of RESIDENCY_TIERS. */
  readonly heldBlocks: readonly [device: number, host: number, disk: number];
}

/** State of exchanging blocks with peers, for metrics and status. */
export interface PeerSources {
  readonly fetcher: Pick<Fetcher, "stats">;
  readonly peers: readonly PeerStatus[];
  readonly server: ServeStats;
  readonly summaries: SummariesStats | null;
  readonly announcer: AnnouncerStats | null;
  readonly credentials: Trust["credentials"];
  /** Addresses of this host that are announced to peers, by transport. */
  readonly endpoints: Readonly<Partial<Record<TransportName, Endpoint>>>;
  inboundConnections(transport: TransportName): number;
  recordOf(worker: WorkerId): PeerRecord | null;
}

/** The objects from which an agent's metrics and status are read. */
export interface AgentSources extends ProcessSources {
  readonly store: StoreSnapshot;
  readonly region: { readonly pageBytes: number; readonly lockedBytes: number };
  readonly engine: Pick<EngineServer, "connections" | "held" | "stats">;
  readonly frames: FrameCounts;
  /** RAM reserved by LOOKUP requests of engines, and blocks announced by engines. */
  readonly engines: {
    readonly lookups: { readonly size: number };
    readonly announcements: { readonly size: number };
    readonly book: { readonly stats: ClaimStats };
  };
  readonly control: {
    readonly holds: ReturnType<Holds["counts"]>;
    readonly figures: BudgetFigures;
    readonly stats: ControlStats;
    /** State of the ledger file. Null without an SSD tier. */
    readonly ledger: LedgerState | null;
  };
  /** State of the NATS connection. Null without NATS. */
  readonly bus: {
    readonly state: BusState;
    readonly answers: SubscriberStats;
    readonly stream: ({ readonly name: string } & ConsumptionState) | null;
    readonly workers: { readonly bucket: string; readonly why: string | null } | null;
  } | null;
  readonly peers: PeerSources | null;
  readonly publishing: PublishingSources | null;
  readonly devices: {
    readonly gpu: HostGpusReport | null;
    readonly rdma: HostRdmaReport | null;
    readonly direct: readonly DirectFinding[];
  };
}

const TIERS = ["gpu", "ram", "ssd"] as const;
const LOOKUP_TIERS = [...TIERS, "peer"] as const;
const LOOKUP_OUTCOMES = ["hit", "partial", "miss"] as const;
/**
 * Bucket limits in seconds. A lookup in memory takes microseconds; one that waits for a slower tier
 * takes milliseconds.
 */
const LOOKUP_BUCKETS = [2e-6, 5e-6, 1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 5e-3, 2.5e-2, 0.1, 1];
/**
 * Bucket limits in seconds, from a round trip within a rack to a large block over a slow
 * connection.
 */
const PULL_BUCKETS = [5e-4, 1e-3, 2e-3, 5e-3, 1e-2, 2.5e-2, 5e-2, 0.1, 0.25, 0.5, 1, 2.5];
/** Components that detect damaged blocks in RAM, as label values. */
const RAM_FINDERS = ["report", "write", "scrub", "file", "read", "peer", "gpu"] as const;
const PIN_KINDS = ["pin", "retain", "lease"] as const;
const COMMAND_STATUSES = ["ok", "partial"] as const;
const REFUSAL_WORDS = Object.keys(REFUSALS);
export const PEER_STATES = ["linked", "dialling", "idle", "down"] as const;
export const BREAKER_STATES = ["closed", "open", "trial"] as const;
const PORT_STATES = ["active", "down", "no_address", "fatal"] as const;

/** Outcomes for blocks on SSD, as label values, each with its counter. */
const SSD_EVENTS = {
  written: "writtenBlocks",
  read: "readBlocks",
  shared_read: "sharedReads",
  late: "lateBlocks",
  skipped: "skippedBlocks",
  expired: "expiredBlocks",
  corrupt: "corruptBlocks",
  ram_damaged: "ramDamagedFiles",
  scrubbed: "scrubbedBlocks",
  purged: "purgedBlocks",
} as const satisfies Record<string, keyof SsdStats>;

/** Returns counters by label value. `names` maps each label value to the name of its counter. */
export function picked<Name extends string>(
  counters: Readonly<Record<Name, number>>,
  names: Readonly<Record<string, Name>>,
): Record<string, number> {
  const values = Object.entries(names).map(([label, name]) => [label, counters[name]] as const);
  return Object.fromEntries(values);
}

export function sum<Item>(
  items: readonly Item[],
  pick: (item: Item) => number | undefined,
): number {
  return items.reduce((total, item) => total + (pick(item) ?? 0), 0);
}

function byTransport(pick: (transport: TransportName) => number): [TransportName, number][] {
  return TRANSPORTS.map((transport) => [transport, pick(transport)]);
}

const SSD_METRICS = {
  hearth_ssd_used_bytes: gauge(
    "Bytes counted against the cap of the SSD tier, as allocated by the file system",
    (ssd) => ssd.usedBytes,
  ),
  hearth_ssd_capacity_bytes: gauge(
    "The cap of the SSD tier; 0 without one",
    (ssd) => ssd.capacityBytes,
  ),
  hearth_ssd_queued_bytes: gauge("Bytes of blocks being written to SSD", (ssd) => ssd.queuedBytes),
  hearth_ssd_reading_blocks: gauge("Blocks being read from SSD", (ssd) => ssd.reading),
  hearth_ssd_quarantined_files: gauge("Damaged files in quarantine", (ssd) => ssd.quarantinedFiles),
  hearth_ssd_blocks_total: counter(
    "Blocks of the SSD tier, by event",
    ({ stats }) => picked(stats, SSD_EVENTS),
    { event: Object.keys(SSD_EVENTS) },
  ),
  hearth_ssd_bytes_total: counter(
    "Bytes of blocks written to, read from and verified on SSD",
    ({ stats }) => ({
      written: stats.writtenBytes,
      read: stats.readBytes,
      scrubbed: stats.scrubbedBytes,
    }),
    { direction: ["written", "read", "scrubbed"] },
  ),
  hearth_ssd_errors_total: counter(
    "Operations on the SSD that failed",
    ({ stats }) => ({ read: stats.readErrors, write: stats.writeErrors }),
    { operation: ["read", "write"] },
  ),
} satisfies MetricTable<SsdSnapshot & { readonly stats: SsdStats }>;

/** Metrics of fetching blocks from peers and serving blocks to them. */
const PEER_METRICS = {
  cgn_kvcached_quic_pulls_total: counter(
    "Fetches of single blocks from peers over all transports, by outcome",
    ({ fetcher }) => fetcher.stats.outcomes,
    { outcome: PULL_OUTCOMES },
  ),
  hearth_peer_blocks_total: counter(
    "Blocks received from peers that passed verification",
    ({ fetcher }) => byTransport((name) => fetcher.stats.byTransport[name].blocks),
    { transport: TRANSPORTS },
  ),
  hearth_peer_bytes_total: counter(
    "Bytes of the blocks received from peers",
    ({ fetcher }) => byTransport((name) => fetcher.stats.byTransport[name].bytes),
    { transport: TRANSPORTS },
  ),
  hearth_peer_fallbacks_total: counter(
    "Requests repeated over another transport because this one failed",
    ({ fetcher }) => byTransport((name) => fetcher.stats.byTransport[name].fallbacks),
    { transport: TRANSPORTS },
  ),
  hearth_peer_hedges_total: counter(
    "Requests sent to a second peer because the first was slow; won: the second answered first",
    ({ fetcher: { stats } }) => ({ asked: stats.hedges, won: stats.hedgesWon }),
    { outcome: ["asked", "won"] },
  ),
  hearth_peer_shared_pulls_total: counter(
    "Requests joined to a fetch in progress",
    ({ fetcher }) => fetcher.stats.sharedPulls,
  ),
  hearth_peer_corrupt_blocks_total: counter(
    "Answers of peers that failed verification and were discarded",
    ({ fetcher }) => fetcher.stats.corrupt,
  ),
  hearth_peer_in_flight_bytes: gauge(
    "Bytes of blocks being fetched",
    ({ fetcher }) => fetcher.stats.inFlightBytes,
  ),
  hearth_peer_waiting_pulls: gauge(
    "Fetches waiting for the limit on bytes in flight",
    ({ fetcher }) => fetcher.stats.waiting,
  ),
  hearth_peers: gauge(
    "Known peers, by connection state",
    ({ peers }) =>
      PEER_STATES.map((name) => [name, peers.filter(({ state }) => state === name).length]),
    { state: PEER_STATES },
  ),
  hearth_peer_breakers: gauge(
    "Peers by circuit breaker state; open: not used for a while",
    ({ peers }) =>
      BREAKER_STATES.map((name) => [name, peers.filter((one) => one.breaker === name).length]),
    { state: BREAKER_STATES },
  ),
  hearth_peer_inbound_links: gauge(
    "Connections from peers",
    ({ inboundConnections }) => byTransport(inboundConnections),
    { transport: TRANSPORTS },
  ),
  hearth_peer_served_total: counter(
    "Blocks requested by peers, by outcome",
    ({ server }) => ({
      block: server.blocks,
      absent: server.absent,
      busy: server.busy,
      refused: server.refused + server.tooLong,
    }),
    { outcome: ["block", "absent", "busy", "refused"] },
  ),
  hearth_peer_served_bytes_total: counter(
    "Bytes of the blocks served to peers",
    ({ server }) => server.bytes,
  ),
  hearth_peer_lent_bytes: gauge(
    "Bytes being served to peers, which cannot be evicted",
    ({ server }) => server.lentBytes,
  ),
  hearth_peer_summary_bytes: gauge(
    "Memory of the index of peers' blocks",
    ({ summaries }) => summaries?.bytes ?? 0,
  ),
  hearth_peer_wrong_summaries_total: counter(
    "Blocks missing on a peer although the index listed them",
    ({ summaries }) => summaries?.wrong ?? 0,
  ),
  hearth_peer_announcements_total: counter(
    "Announcements of peers over NATS; refused: not valid; dropped: too many",
    ({ announcer }) => ({
      heard: announcer?.heard ?? 0,
      refused: announcer?.refused ?? 0,
      dropped: announcer?.dropped ?? 0,
    }),
    { outcome: ["heard", "refused", "dropped"] },
  ),
  hearth_peer_certificate_ends_seconds: gauge(
    "Expiry of this host's certificate in seconds since 1970; 0 without one",
    ({ credentials }) => Math.floor(credentials.notAfterMs / 1_000),
  ),
} satisfies MetricTable<PeerSources>;

/** Metrics of publishing residency changes, summed over all ranks. */
const PUBLISHING_METRICS = {
  hearth_feed_changes_total: counter("Numbered residency changes, over all ranks", ({ ranks }) =>
    sum(ranks, ({ residency }) => residency.lastSequence),
  ),
  hearth_feed_messages_total: counter(
    "Messages with changes; unsent: not connected, or the queue was full. Consumers request missed changes",
    ({ ranks }) => ({
      sent: sum(ranks, ({ bus, stream }) => stream?.acknowledged ?? bus?.sent),
      unsent: sum(ranks, ({ bus }) => bus?.unsent),
    }),
    { outcome: ["sent", "unsent"] },
  ),
  hearth_feed_questions_total: counter(
    "Queries of routers for missed changes, by answer",
    ({ ranks }) => ({
      range: sum(ranks, ({ bus }) => bus?.questions.ranges),
      snapshot: sum(ranks, ({ bus }) => bus?.questions.snapshotParts),
      evicted: sum(ranks, ({ bus }) => bus?.questions.evicted),
      busy: sum(ranks, ({ bus }) => bus?.questions.busy),
      refused: sum(ranks, ({ bus }) => bus?.questions.refused),
      dropped: sum(ranks, ({ bus }) => bus?.questions.dropped),
    }),
    { answer: ["range", "snapshot", "evicted", "busy", "refused", "dropped"] },
  ),
  hearth_feed_snapshots_total: counter("Snapshots taken", ({ ranks }) =>
    sum(ranks, ({ bus }) => bus?.snapshots),
  ),
  hearth_feed_stored_snapshots_total: counter("Snapshots stored in the object store", ({ ranks }) =>
    sum(ranks, ({ stream }) => stream?.storedSnapshots),
  ),
  hearth_feed_restarts_total: counter(
    "Overflows of the change queue, each followed by a full republication",
    ({ restarts }) => restarts,
  ),
  hearth_feed_ring_blocks: gauge(
    "Blocks in the changes kept for consumers that missed some",
    ({ ranks }) => sum(ranks, ({ residency }) => residency.ring.blocks),
  ),
  hearth_feed_engine_blocks: gauge(
    "Blocks known from engines' own events",
    ({ engineBlocks }) => engineBlocks,
  ),
  hearth_feed_stream_behind: gauge(
    "Changes waiting for the acknowledgement of the stream",
    ({ ranks }) => sum(ranks, ({ stream }) => stream?.behind),
  ),
  hearth_feed_stream_holes_total: counter(
    "Gaps in the stream because more changes waited than are kept; a snapshot closes each gap",
    ({ ranks }) => sum(ranks, ({ stream }) => stream?.holes),
  ),
  hearth_feed_zmq_subscribers: gauge("Connected ZMQ subscribers", ({ ranks }) =>
    sum(ranks, ({ zmq }) => zmq?.subscribers),
  ),
  hearth_feed_zmq_dropped_total: counter(
    "Messages dropped because a ZMQ subscriber was too slow",
    ({ ranks }) => sum(ranks, ({ zmq }) => zmq?.dropped),
  ),
} satisfies MetricTable<PublishingSources>;

/** Declarations of an agent's metrics. */
export const AGENT_METRICS = {
  cgn_kvcached_blocks: gauge(
    "Blocks resident on a tier; on gpu, those reported by engines",
    ({ store }) => ({ gpu: store.gpuBlocks, ram: store.ramBlocks, ssd: store.ssd?.blocks ?? 0 }),
    { tier: TIERS },
  ),
  cgn_kvcached_bytes: gauge(
    "Bytes of the blocks on a tier",
    ({ store }) => ({ gpu: store.gpuBytes, ram: store.ramBytes, ssd: store.ssd?.bytes ?? 0 }),
    { tier: TIERS },
  ),
  cgn_kvcached_lookup_seconds: histogram(
    "Time to look up the blocks of one request, by the tier that answered",
    LOOKUP_BUCKETS,
    { tier: LOOKUP_TIERS, outcome: LOOKUP_OUTCOMES },
  ),
  cgn_kvcached_evictions_total: counter(
    "Blocks evicted from a tier",
    ({ store: { stats, ssd } }) => ({
      ram: stats.evictedBlocks,
      ...(ssd && { ssd: ssd.stats.evictedBlocks }),
    }),
    { tier: ["ram", "ssd"] },
  ),
  hearth_evicted_bytes_total: counter(
    "Bytes of the blocks evicted from a tier",
    ({ store: { stats, ssd } }) => ({
      ram: stats.evictedBytes,
      ...(ssd && { ssd: ssd.stats.evictedBytes }),
    }),
    { tier: ["ram", "ssd"] },
  ),
  hearth_eviction_runs_total: counter(
    "Passes of the background eviction that evicted a block",
    ({ store }) => store.stats.evictionRuns,
  ),
  hearth_block_outcomes_total: counter(
    "Answers to engines for single blocks",
    ({ store: { stats } }) => ({
      acquire: { ok: stats.acquireHits, miss: stats.acquireMisses },
      reserve: { ok: stats.reservedBlocks, present: stats.presentBlocks, full: stats.fullBlocks },
      commit: { ok: stats.committedBlocks, corrupt: stats.corruptBlocks },
      abort: { ok: stats.abortedBlocks },
    }),
    {
      operation: ["acquire", "reserve", "commit", "abort"],
      outcome: ["ok", "miss", "present", "full", "corrupt"],
    },
  ),
  hearth_match_blocks_total: counter(
    "Blocks requested by MATCH",
    ({ store }) => store.stats.matchBlocks,
  ),
  hearth_full_answers_total: counter(
    "Blocks that could not be stored because no slot was free",
    ({ store }) => store.stats.fullBlocks,
  ),
  hearth_corrupt_blocks_total: counter(
    "Blocks rejected because of a checksum mismatch",
    ({ store }) => store.stats.corruptBlocks,
  ),
  hearth_ram_corrupt_total: counter(
    "Damaged blocks in RAM, which were dropped, by the component that found them",
    ({ store }) => store.checks.damaged,
    { by: RAM_FINDERS },
  ),
  hearth_ram_reports_total: counter(
    "Blocks reported as damaged by readers, by the state of the copy in RAM; unverified: the key is missing",
    ({ store: { checks } }) => ({
      damaged: checks.damaged.report,
      right: checks.falseReports,
      skipped: checks.skippedReports,
      planted: checks.plantedBlocks,
      unverified: checks.unknownReports,
    }),
    { outcome: ["damaged", "right", "skipped", "planted", "unverified"] },
  ),
  hearth_ram_scrubbed_bytes_total: counter(
    "Bytes of blocks in RAM verified in the background",
    ({ store }) => store.checks.scrubbedBytes,
  ),
  hearth_committed_bytes_total: counter(
    "Bytes of blocks stored by engines",
    ({ store }) => store.stats.committedBytes,
  ),
  ...metricsOfPart(({ store }: AgentSources) => store.ssd, SSD_METRICS),
  hearth_slots: gauge(
    "Slots of the block sizes in use; quarantined slots are released when their process exits",
    ({ store: { classes, slotsUsed: used, slotsQuarantined: quarantined } }) => {
      const slots = classes.reduce((sum, one) => sum + one.slots, 0);
      return { used, free: slots - used, quarantined };
    },
    { state: ["used", "free", "quarantined"] },
  ),
  hearth_arena_bytes: gauge("Size of the RAM arena", ({ store }) => store.arenaBytes),
  hearth_arena_ready_bytes: gauge(
    "Bytes of the arena backed by memory; grows to the arena size after the start",
    ({ store }) => store.readyBytes,
  ),
  hearth_arena_locked_bytes: gauge(
    "Bytes of the arena locked in memory",
    ({ region }) => region.lockedBytes,
  ),
  hearth_table_blocks: gauge(
    "Blocks in the table, over all tiers",
    ({ store }) => store.tableNodes,
  ),
  hearth_sessions: gauge(
    "Conversations whose last block is retained",
    ({ store }) => store.sessions,
  ),
  hearth_table_capacity_blocks: gauge(
    "Capacity of the block table",
    ({ store }) => store.tableNodesMax,
  ),
  hearth_engine_connections: gauge(
    "Connected engine processes",
    ({ engine }) => engine.connections,
  ),
  hearth_engine_slots_held: gauge(
    "Slots referenced by connected engines, reserved and acquired",
    ({ engine }) => engine.held().held,
  ),
  hearth_engine_connects_total: counter(
    "Connections accepted on the engine socket",
    ({ engine }) => engine.stats.connected,
  ),
  hearth_engine_refused_total: counter(
    "Connections rejected: wrong user, or limit reached",
    ({ engine }) => engine.stats.refusedPeers,
  ),
  hearth_engine_cut_off_total: counter(
    "Engines disconnected: lease expired, answers unread, no HELLO",
    ({ engine }) => engine.stats.cutOff,
  ),
  hearth_engine_quarantines_total: counter(
    "Connections that ended while their process referenced slots",
    ({ engine }) => engine.stats.quarantines,
  ),
  hearth_engine_faults_total: counter(
    "Internal errors while handling a frame",
    ({ engine }) => engine.stats.faults,
  ),
  hearth_engine_frames_total: counter(
    "Frames from engines, by operation and status of the answer",
    ({ frames }) => frames.list(),
    { operation: FRAME_OPERATIONS, status: FRAME_STATUSES },
  ),
  hearth_engine_reserved_bytes: gauge(
    "RAM reserved for engines that looked blocks up and have not acquired them yet",
    ({ engines }) => engines.book.stats.bytes,
  ),
  hearth_engine_reservations_total: counter(
    "Reserved blocks, by outcome: acquired, expired unused, or refused by the budget",
    ({ engines: { book } }) => ({
      acquired: book.stats.takenBlocks,
      unused: book.stats.unusedBlocks,
      refused: book.stats.refusedBlocks,
    }),
    { outcome: ["acquired", "unused", "refused"] },
  ),
  hearth_engine_lookups_waiting: gauge(
    "Lookups that wait for blocks from SSD, peers or writers",
    ({ engines }) => engines.lookups.size,
  ),
  hearth_engine_announced_blocks: gauge(
    "Blocks announced by engines of this host and not stored yet",
    ({ engines }) => engines.announcements.size,
  ),
  hearth_holds: gauge(
    "Current pins, soft pins and leases",
    ({ control: { holds } }) => PIN_KINDS.map((kind) => [kind, holds[kind].holds]),
    { kind: PIN_KINDS },
  ),
  hearth_held_blocks: gauge(
    "Distinct blocks named by pins, soft pins and leases",
    ({ control: { holds } }) => PIN_KINDS.map((kind) => [kind, holds[kind].blocks]),
    { kind: PIN_KINDS },
  ),
  hearth_held_bytes: gauge(
    "Bytes of the blocks named by pins, soft pins and leases",
    ({ control: { holds } }) => PIN_KINDS.map((kind) => [kind, holds[kind].bytes]),
    { kind: PIN_KINDS },
  ),
  hearth_kept_bytes: gauge(
    "Protected bytes: pinned and leased blocks and their ancestors",
    ({ control }) => control.figures.hostUsedBytes,
  ),
  hearth_kept_bytes_max: gauge(
    "The budget for protected bytes, control.pin_share of RAM and SSD",
    ({ control }) => control.figures.hostBudgetBytes,
  ),
  hearth_holds_ended_total: counter(
    "Pins, soft pins and leases that ended without a command: evicted for space, expired, or blocks lost",
    ({ control: { holds } }) => ({
      relieved: holds.relieved,
      expired: holds.expired,
      lost: holds.lost,
    }),
    { how: ["relieved", "expired", "lost"] },
  ),
  hearth_commands_total: counter(
    "Lifecycle commands carried out, by status of the receipt",
    ({ control: { stats } }) =>
      COMMAND_TYPES.flatMap((type) =>
        COMMAND_STATUSES.map((status) => [type, status, stats.commands[`${type}/${status}`] ?? 0]),
      ),
    { type: COMMAND_TYPES, status: COMMAND_STATUSES },
  ),
  hearth_commands_refused_total: counter(
    "Lifecycle commands refused, by code of `hearth reference commands`",
    ({ control: { stats }, bus }) => {
      const unread: Record<string, number> = {
        busy: bus?.answers.overflowed ?? 0,
        rate_limited: bus?.answers.limited ?? 0,
      };
      return REFUSAL_WORDS.map((word) => [word, (stats.refused[word] ?? 0) + (unread[word] ?? 0)]);
    },
    { reason: REFUSAL_WORDS },
  ),
  hearth_command_duplicates_total: counter(
    "Repeated commands answered with the stored receipt",
    ({ control }) => control.stats.duplicates,
  ),
  hearth_commands_running: gauge("Commands executing", ({ control }) => control.stats.running),
  hearth_audit_lines_dropped_total: counter(
    "Lines dropped by the audit log",
    ({ control }) => control.stats.auditDropped,
  ),
  hearth_ledger_pending: gauge(
    "Changes of pins and leases not yet on disk",
    ({ control }) => control.ledger?.pending ?? 0,
  ),
  hearth_ledger_dropped_total: counter(
    "Changes of pins and leases dropped because the disk did not accept them in time",
    ({ control }) => control.ledger?.dropped ?? 0,
  ),
  hearth_bus_connected: gauge("Whether NATS is connected: 1 or 0; 0 without NATS", ({ bus }) =>
    bus?.state.status === "connected" ? 1 : 0,
  ),
  hearth_bus_reconnects_total: counter(
    "Reconnections to NATS",
    ({ bus }) => bus?.state.reconnects ?? 0,
  ),
  hearth_bus_messages_total: counter(
    "Messages over NATS; dropped: not connected and the queue was full; ignored: received " +
      "and not answered because of a discovery flood",
    ({ bus }) => ({
      sent: bus?.state.sentMessages ?? 0,
      received: bus?.state.receivedMessages ?? 0,
      dropped: bus?.state.droppedMessages ?? 0,
      ignored: bus?.state.ignoredMessages ?? 0,
    }),
    { direction: ["sent", "received", "dropped", "ignored"] },
  ),
  hearth_bus_answers_total: counter(
    "Answers to commands over NATS; lost: the bus did not accept the answer; unread: the " +
      "command was not decoded because of its rate",
    ({ bus }) => ({
      answered: bus?.answers.answered ?? 0,
      unasked: bus?.answers.unasked ?? 0,
      lost: bus?.answers.lost ?? 0,
      unread: (bus?.answers.overflowed ?? 0) + (bus?.answers.limited ?? 0),
    }),
    { outcome: ["answered", "unasked", "lost", "unread"] },
  ),
  hearth_bus_stream_reading: gauge(
    "Whether the command stream is consumed: 1 or 0; 0 without one",
    ({ bus }) => (bus?.stream?.status === "consuming" ? 1 : 0),
  ),
  hearth_bus_stream_messages_total: counter(
    "Messages of the command stream; given_up: not handled in ten attempts",
    ({ bus }) => ({ handled: bus?.stream?.handled ?? 0, given_up: bus?.stream?.givenUp ?? 0 }),
    { outcome: ["handled", "given_up"] },
  ),
  hearth_bus_queued_messages: gauge(
    "Messages queued for a connection",
    ({ bus }) => bus?.state.queuedMessages ?? 0,
  ),
  hearth_peer_pull_seconds: histogram(
    "Time from a request to a peer to the last byte of a block",
    PULL_BUCKETS,
    { transport: TRANSPORTS },
  ),
  ...metricsOfPart(({ peers }: AgentSources) => peers, PEER_METRICS),
  ...metricsOfPart(({ publishing }: AgentSources) => publishing, PUBLISHING_METRICS),
  hearth_gpus: gauge(
    "GPUs that the agent opened, by state; a lost GPU needs a restart of the agent",
    ({ devices: { gpu } }) => {
      const lost = gpu?.gpus.filter((one) => one.lost !== null).length ?? 0;
      return { ok: (gpu?.gpus.length ?? 0) - lost, lost };
    },
    { state: ["ok", "lost"] },
  ),
  hearth_gpu_registered_bytes: gauge(
    "Bytes of RAM registered with the GPU driver",
    ({ devices: { gpu } }) => gpu?.registeredBytes ?? 0,
  ),
  hearth_gpu_pageable_copies_total: counter(
    "Copies that blocked their thread because their part of RAM was not registered",
    ({ devices: { gpu } }) => sum(gpu?.gpus ?? [], ({ pageableCopies }) => pageableCopies),
  ),
  hearth_gpu_bytes_total: counter(
    "Bytes copied for engines, from their GPU memory (stored) or to it (loaded)",
    ({ engine: { stats } }) => ({ stored: stats.gpuStoredBytes, loaded: stats.gpuLoadedBytes }),
    { direction: ["stored", "loaded"] },
  ),
  hearth_gpu_copy_failures_total: counter(
    "Copies that failed in a GPU or its driver",
    ({ engine }) => engine.stats.gpuFailures,
  ),
  hearth_gpu_leaked_slots: gauge(
    "Slots that stay unused until the agent restarts, because a lost GPU may still write to them",
    ({ engine }) => engine.stats.gpuLeakedSlots,
  ),
  hearth_rdma_ports: gauge(
    "Ports of RDMA devices that the agent opened, by state",
    ({ devices: { rdma } }) =>
      PORT_STATES.map((name) => [
        name,
        rdma?.ports.filter(({ state }) => state === name).length ?? 0,
      ]),
    { state: PORT_STATES },
  ),
  ...PROCESS_METRICS,
} satisfies MetricTable<AgentSources>;

function tabulate<Name extends string, Value>(names: readonly Name[], of: (name: Name) => Value) {
  return Object.fromEntries(names.map((name) => [name, of(name)])) as Record<Name, Value>;
}

/** An agent's registered metrics. */
export class AgentMetrics extends Metrics<AgentSources> {
  readonly #lookups = tabulate(LOOKUP_TIERS, (tier) =>
    tabulate(LOOKUP_OUTCOMES, (outcome) =>
      this.observer("cgn_kvcached_lookup_seconds", tier, outcome),
    ),
  );
  readonly #pulls = tabulate(TRANSPORTS, (name) => this.observer("hearth_peer_pull_seconds", name));

  constructor() {
    super(AGENT_METRICS);
  }

  /**
   * Counts the lookup of one request's blocks and its duration. It is fast enough to be called for
   * every request.
   */
  lookedUp(
    tier: (typeof LOOKUP_TIERS)[number],
    outcome: (typeof LOOKUP_OUTCOMES)[number],
    seconds: number,
  ): void {
    this.#lookups[tier][outcome](seconds);
  }

  /** Records the seconds from a request to a peer to the last byte of the block. */
  pulled(transport: TransportName, seconds: number): void {
    this.#pulls[transport](seconds);
  }
}
