import { type Static, t } from "elysia";
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

const found = t.Union([t.Literal("usable"), t.Literal("absent"), t.Literal("broken")], {
  description: "`absent`: nothing of the kind is here; `broken`: it is here and cannot be used",
});
const numaNode = nullable(t.Number({ description: "Memory node it is near; null: unknown" }));
const text = t.String({ description: "What was found, in one line" });
const fix = nullable(t.String({ description: "What to do about it; null where nothing is" }));

const gpu = t.Object({
  name: t.String(),
  pci: t.String({ description: "Address on the bus, as `0000:3b:00.0`" }),
  uuid: t.String({ description: "As nvidia-smi has it, without its `GPU-`" }),
  memory_bytes: bytes("Its memory"),
  numa_node: numaNode,
  dma_buf: t.Boolean({ description: "Whether its memory can be handed to other devices" }),
  lost: nullable(t.String({ description: "With what it was lost; null while it works" })),
  pageable_copies: count("Copies that held up their thread, since the start"),
});

/** `gpu` of the status. */
const gpuStatus = t.Union(
  [
    t.Object({
      found,
      text,
      fix,
      driver: nullable(t.String({ description: "CUDA version it is for; null: unknown" })),
      batches: t.Boolean({ description: "Whether many pieces are copied by one call" }),
      registered_bytes: bytes("RAM that is registered with the driver"),
      devices: t.Array(gpu),
    }),
    t.Null(),
  ],
  { description: 'GPUs; null with `gpu.enabled = "off"`' },
);

const port = t.Object({
  name: t.String({ description: "Device and port, as `mlx5_0/1`" }),
  state: t.Union([
    t.Literal("active"),
    t.Literal("down"),
    t.Literal("no_address"),
    t.Literal("fatal"),
  ]),
  link_layer: t.Union([t.Literal("infiniband"), t.Literal("ethernet")]),
  gbit_per_second: t.Number({ minimum: 0, description: "0: unknown" }),
  numa_node: numaNode,
  relaxed_ordering: t.Boolean({ description: "Whether its writes may pass one another" }),
  dma_buf: t.Boolean({ description: "Whether it can reach memory of other devices" }),
});

const direct = t.Object({
  gpu: t.String({ description: "Name and address of the GPU" }),
  port: nullable(t.String({ description: "The port that was tried; null: none is active" })),
  works: t.Boolean({ description: "Whether what it wrote to the GPU's memory arrived" }),
  text,
  fix,
});

/** `rdma` of the status. */
const rdmaStatus = t.Union(
  [
    t.Object({
      found,
      text,
      fix,
      ports: t.Array(port),
      direct: t.Array(direct, {
        description: "Tried at the start, for each GPU; blocks go through RAM whatever came of it",
      }),
    }),
    t.Null(),
  ],
  { description: "RDMA devices; null where peers, or RDMA among them, are off" },
);

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

/** A node with both tiers and a broker, for the description of the API. */
export const STATUS_EXAMPLE: StatusReport = {
  version: "0.1.0",
  worker_id: "gpu-01",
  incarnation: "17040398372918264832",
  state: "ready",
  uptime_seconds: 86_400.5,
  arena: {
    bytes: 68_719_476_736,
    ready_bytes: 68_719_476_736,
    locked_bytes: 68_719_476_736,
    page_bytes: 2_097_152,
    huge: true,
  },
  ram: {
    blocks: 6_400,
    bytes: 67_108_864_000,
    capacity_bytes: 68_719_476_736,
    slots: [{ slot_bytes: 10_485_760, slots: 6_553, used: 6_400 }],
    damaged_blocks: 0,
    false_reports: 0,
    scrubbed_bytes: 134_217_728_000,
  },
  ssd: {
    blocks: 48_000,
    bytes: 503_316_480_000,
    used_bytes: 503_512_928_256,
    capacity_bytes: 536_870_912_000,
    queued_blocks: 2,
    queued_bytes: 20_971_520,
    reading: 1,
    quarantined_files: 0,
    method: "io_uring",
    direct: true,
    registered: true,
    writes_stopped: null,
    reads_stopped: null,
    counters: { written_blocks: 51_200, read_blocks: 9_300 },
  },
  control: {
    pins: { holds: 2, blocks: 92, bytes: 964_689_920 },
    retains: { holds: 1, blocks: 12, bytes: 125_829_120 },
    leases: { holds: 1, blocks: 31, bytes: 325_058_560 },
    kept_bytes: 1_289_748_480,
    kept_bytes_max: 302_795_194_368,
    running: 0,
    ledger_pending: 0,
    ledger_failing: null,
  },
  nats: {
    status: "connected",
    server: "nats://broker:4222",
    why: null,
    reconnects: 1,
    queued: 0,
    dropped: 0,
    stream: null,
    workers: null,
  },
  peers: {
    known: 7,
    down: 0,
    pulled_blocks: 930,
    pulled_bytes: 9_751_756_800,
    served_blocks: 1_204,
    served_bytes: 12_624_855_040,
    in_flight_bytes: 10_485_760,
  },
  feed: {
    mode: "ring",
    cluster: "hearth",
    ranks: 1,
    changes: 8_120,
    device_blocks: 2_048,
    host_blocks: 12_800,
    disk_blocks: 48_000,
    ring_blocks: 60_000,
    sent: 4_400,
    unsent: 0,
    snapshots: 2,
    engine: null,
    stream: null,
  },
  gpu: {
    found: "usable",
    text: "1 GPU (CUDA 12.8): NVIDIA H100 80GB HBM3 with 79.6GiB",
    fix: null,
    driver: "12.8",
    batches: true,
    registered_bytes: 68_719_476_736,
    devices: [
      {
        name: "NVIDIA H100 80GB HBM3",
        pci: "0000:3b:00.0",
        uuid: "4f6d2c9a-0b6e-4c53-8a1d-6a0f3b1c2d3e",
        memory_bytes: 85_520_809_984,
        numa_node: 0,
        dma_buf: true,
        lost: null,
        pageable_copies: 0,
      },
    ],
  },
  rdma: null,
  table: { blocks: 51_300, capacity: 1_000_000, gpu_blocks: 2_048, namespaces: 1 },
  namespaces: ["ab".repeat(32)],
  engine: {
    socket: "/run/hearth/engine.sock",
    connections: 1,
    slots_held: 4,
    slots_quarantined: 0,
    frames: 184_320,
    cut_off: 0,
    refused: 0,
  },
  sessions: 17,
  health: [
    {
      code: "KV_LIMITS",
      severity: "warn",
      for_seconds: 86_000,
      meaning: "a limit of the host holds the agent back",
      details: "RAM is not locked and may be swapped",
      fix: 'set LimitMEMLOCK=infinity, or kv.lock_memory to "off"',
    },
  ],
  counters: { committed_blocks: 57_700 },
  build: { commit: "0123abc", runtime: "Bun 1.4.5", native: "ReleaseSafe" },
};
