import { type Static, t } from "elysia";
import { gpuStatus, rdmaStatus } from "./device-report.ts";
import { bytes, count, nullable } from "./fields.ts";

/** Models and their variants on one node are few; whoever makes more is not listed whole. */
export const NAMESPACES_SHOWN_MAX = 100;

const arena = t.Object(
  {
    bytes: bytes("Size"),
    ready_bytes: bytes("Backed by memory; grows to the size after the start"),
    locked_bytes: bytes("Cannot be swapped out"),
    page_bytes: bytes("One page of it"),
    huge: t.Boolean({ description: "Whether its pages are huge pages" }),
  },
  { description: "The memory of the RAM tier" },
);

const slotClass = t.Object({
  slot_bytes: bytes("One slot"),
  slots: count("All slots of this size"),
  used: count("Hold a block, or are being written"),
});

const ram = t.Object({
  blocks: count("Blocks that can be read"),
  bytes: bytes("Their length"),
  capacity_bytes: bytes("What all slots hold together"),
  slots: t.Array(slotClass, { description: "By size of slot" }),
  damaged_blocks: count("Found to be damaged in RAM since the start, and dropped"),
  false_reports: count("Reported by readers as damaged since the start, and right"),
  scrubbed_bytes: bytes("Hashed in the background since the start"),
});

const ssd = t.Union(
  [
    t.Object({
      blocks: count("Blocks on SSD"),
      bytes: bytes("Their length"),
      used_bytes: bytes("What counts against the cap, as the file system allocates it"),
      capacity_bytes: bytes("The cap"),
      queued_blocks: count("Blocks on their way to SSD"),
      queued_bytes: bytes("Their length"),
      reading: count("Blocks on their way from SSD"),
      quarantined_files: count("Damaged files set aside"),
      method: t.String({ description: "`io_uring` or `threads`" }),
      direct: t.Boolean({ description: "Whether the page cache is passed by" }),
      registered: t.Boolean({ description: "Whether RAM is registered with io_uring" }),
      writes_stopped: nullable(t.String({ description: "Why nothing is written" })),
      reads_stopped: nullable(t.String({ description: "Why nothing is read" })),
      counters: t.Record(t.String(), count("Since the start")),
    }),
    t.Null(),
  ],
  { description: "The SSD tier; null without one" },
);

const held = (what: string) =>
  t.Object(
    {
      holds: count("In force"),
      blocks: count("Under them; one that is under two counts twice"),
      bytes: bytes("Their length"),
    },
    { description: what },
  );

const control = t.Object(
  {
    pins: held("Promises that blocks stay on this host"),
    retains: held("Preferences, which go first when room is needed"),
    leases: held("Of sessions that were put to sleep"),
    kept_bytes: bytes("Blocks that pins and leases keep, with what leads to them, each once"),
    kept_bytes_max: bytes("What they may keep: `control.pin_share` of RAM and SSD together"),
    running: count("Commands at work"),
    ledger_pending: nullable(
      count("Changes that the ledger of holds has not committed; null without an SSD tier"),
    ),
    ledger_failing: nullable(t.String({ description: "Why the ledger commits nothing now" })),
  },
  { description: "The control plane: what was asked to stay, and commands" },
);

const stream = t.Union(
  [
    t.Object({
      name: t.String(),
      status: t.Union([
        t.Literal("consuming"),
        t.Literal("waiting"),
        t.Literal("missing"),
        t.Literal("closed"),
      ]),
      why: nullable(t.String({ description: "Why it is not read" })),
      handled: count("Messages that were carried out or refused, since the start"),
      given_up: count("Messages that were neither, however often they came"),
    }),
    t.Null(),
  ],
  { description: "Where commands are taken from; null where they come as they are published" },
);

const workers = t.Union(
  [
    t.Object({
      bucket: t.String(),
      why: nullable(t.String({ description: "Why the broker does not take the entry" })),
    }),
    t.Null(),
  ],
  { description: "Where this worker says that it is there; null where it does not" },
);

const nats = t.Union(
  [
    t.Object({
      status: t.Union([
        t.Literal("connecting"),
        t.Literal("connected"),
        t.Literal("reconnecting"),
        t.Literal("closed"),
      ]),
      server: nullable(t.String({ description: "Which one; null while unconnected" })),
      why: nullable(t.String({ description: "Why it is not connected" })),
      reconnects: count("Since the start"),
      queued: count("Messages that wait for the connection"),
      dropped: count("Messages that found no room to wait, since the start"),
      stream,
      workers,
    }),
    t.Null(),
  ],
  { description: "The connection over which commands come; null without one" },
);

const peers = t.Union(
  [
    t.Object({
      known: count("Other hosts"),
      down: count("Of them, those that are left alone for a while"),
      pulled_blocks: count("Blocks that came from them, since the start"),
      pulled_bytes: bytes("Their length"),
      served_blocks: count("Blocks lent to them, since the start"),
      served_bytes: bytes("Their length"),
      in_flight_bytes: bytes("On their way to this host"),
    }),
    t.Null(),
  ],
  { description: "Other hosts; null where `peers.cert_file` is not set" },
);

const feed = t.Union(
  [
    t.Object({
      mode: t.Union([t.Literal("ring"), t.Literal("stream")]),
      cluster: t.String({ description: "Its name is in the subjects" }),
      ranks: count("Data parallel ranks, each told of by itself"),
      changes: count("Changes that were given a number, since the start"),
      device_blocks: count("Blocks told to be on engines' GPUs"),
      host_blocks: count("Blocks told to be in RAM"),
      disk_blocks: count("Blocks told to be on SSD"),
      ring_blocks: count("Blocks in the changes that are kept for those who missed some"),
      sent: count("Messages with changes that went out, since the start"),
      unsent: count("Messages there was no connection or no room for, since the start"),
      snapshots: count("Whole pictures taken for those who asked, since the start"),
      engine: t.Union(
        [
          t.Object({
            heard: count("Ranks whose engine can be heard now"),
            known: count("Of them, those of which nothing is missing"),
            blocks: count("Blocks they hold, by their own events"),
            events: count("Events that were read, since the start"),
            dropped: count("Events and blocks that were left out, since the start"),
            dropped_by: t.Record(t.String(), t.Number(), { description: "The same, by reason" }),
            block_tokens: nullable(count("Tokens in a block, as its events say")),
            gaps: count("Times that batches were missing, since the start"),
          }),
          t.Null(),
        ],
        { description: "The engine's own events; null without `engine.kv_events`" },
      ),
      stream: t.Union(
        [
          t.Object({
            status: t.Union([t.Literal("publishing"), t.Literal("waiting"), t.Literal("refused")]),
            why: nullable(t.String({ description: "Why it is not publishing" })),
            behind: count("Changes that wait for the broker's word"),
            stored_snapshots: count("Whole pictures the object store took, since the start"),
          }),
          t.Null(),
        ],
        { description: 'The stream of `mode = "stream"`; null without one' },
      ),
    }),
    t.Null(),
  ],
  { description: "What routers are told of this host's blocks; null where nobody is" },
);

const table = t.Object({
  blocks: count("Blocks known, all tiers together"),
  capacity: count("Blocks there is room for"),
  gpu_blocks: count("Blocks that engines said their GPU holds"),
  namespaces: count("Namespaces seen since the start"),
});

const engine = t.Object({
  socket: t.String({ description: "Path of the engine socket" }),
  connections: count("Engine processes connected now"),
  slots_held: count("Slots they hold, reserved and acquired together"),
  slots_quarantined: count("Slots that wait for the death of a process"),
  frames: count("Frames since the start"),
  cut_off: count("Engines cut off since the start"),
  refused: count("Connections not let in since the start"),
});

const problem = t.Object({
  code: t.String({ description: "Stable; see `hearth reference health`" }),
  severity: t.Union([t.Literal("error"), t.Literal("warn")]),
  for_seconds: t.Number({ minimum: 0, description: "How long it has been the matter" }),
  meaning: t.String(),
  details: t.String({ description: "This case" }),
  fix: t.String({ description: "What can be done about it" }),
});

const counters = t.Record(t.String(), count("Since the start"), {
  description: "What the block store counted since the start",
});

const build = t.Object({
  commit: t.String({ description: "Of the sources; `checkout` where it is not built" }),
  runtime: t.String(),
  native: t.String({ description: "Build mode of the native library" }),
});

/** Body of `GET /v1/status`. Durations in seconds, sizes in bytes, counters since the start. */
export const statusReport = t.Object({
  version: t.String(),
  worker_id: t.String({ description: "Name of this worker in the fleet" }),
  incarnation: t.String({
    pattern: "^[0-9]{1,20}$",
    description: "Differs after each start; a 64-bit number, as text so that no reader rounds it",
  }),
  state: t.Union([t.Literal("starting"), t.Literal("ready"), t.Literal("draining")]),
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
  namespaces: t.Array(t.String({ pattern: "^[0-9a-f]{64}$" }), {
    maxItems: NAMESPACES_SHOWN_MAX,
    description: "Keys of the namespaces in the order in which they were first seen, in hex",
  }),
  engine,
  sessions: count("Conversations that hold their last block now"),
  health: t.Array(problem, { description: "What is the matter now, the worst first" }),
  counters,
  build,
});

export type StatusReport = Static<typeof statusReport>;
