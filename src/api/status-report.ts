import { type Static, t } from "elysia";
import { bytes, count, nullable } from "./fields.ts";

/** Namespaces listed at most. A node has few models and variants; longer lists are cut. */
export const NAMESPACES_SHOWN_MAX = 100;

const arena = t.Object(
  {
    bytes: bytes("Size"),
    ready_bytes: bytes("Bytes backed by memory; grows to the full size after the start"),
    locked_bytes: bytes("Bytes that cannot be swapped out"),
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
  scrubbed_bytes: bytes("Blocks hashed in the background since the start"),
});

const ssd = t.Union(
  [
    t.Object({
      blocks: count("Blocks on SSD"),
      bytes: bytes("Size of these blocks"),
      used_bytes: bytes("Bytes that count against the cap, as allocated by the file system"),
      capacity_bytes: bytes("Cap"),
      queued_blocks: count("Blocks being written to SSD"),
      queued_bytes: bytes("Size of these blocks"),
      reading: count("Blocks being read from SSD"),
      quarantined_files: count("Damaged files in quarantine"),
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
    t.Null(),
  ],
  { description: "SSD tier; null without one" },
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
    kept_bytes: bytes(
      "Blocks protected by pins and leases with their ancestors, each counted once",
    ),
    kept_bytes_max: bytes("Limit of protected bytes: `control.pin_share` of RAM and SSD together"),
    running: count("Commands running"),
    ledger_pending: nullable(
      count("Changes that the retention ledger has not committed; null without an SSD tier"),
    ),
    ledger_failing: nullable(
      t.String({ description: "Why the ledger cannot commit; null: it can" }),
    ),
  },
  { description: "Control plane: pins, leases and commands" },
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
      why: nullable(t.String({ description: "Why the stream is not read; null: it is" })),
      handled: count("Messages executed or refused since the start"),
      given_up: count("Messages neither executed nor refused, despite redelivery"),
    }),
    t.Null(),
  ],
  { description: "Stream that commands are read from; null if they arrive as published" },
);

const workers = t.Union(
  [
    t.Object({
      bucket: t.String(),
      why: nullable(
        t.String({ description: "Why the broker does not accept the entry; null: it does" }),
      ),
    }),
    t.Null(),
  ],
  { description: "Entry of this worker in the broker; null if it has none" },
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
      server: nullable(t.String({ description: "Broker address; null while unconnected" })),
      why: nullable(t.String({ description: "Why it is not connected; null: it is" })),
      reconnects: count("Reconnections since the start"),
      queued: count("Messages waiting for the connection"),
      dropped: count("Messages dropped from a full queue since the start"),
      stream,
      workers,
    }),
    t.Null(),
  ],
  { description: "Connection to the command broker; null without one" },
);

const peers = t.Union(
  [
    t.Object({
      known: count("Known peers"),
      down: count("Peers with an open circuit breaker"),
      pulled_blocks: count("Blocks fetched from peers since the start"),
      pulled_bytes: bytes("Size of these blocks"),
      served_blocks: count("Blocks sent to peers since the start"),
      served_bytes: bytes("Size of these blocks"),
      in_flight_bytes: bytes("Bytes being received from peers now"),
    }),
    t.Null(),
  ],
  { description: "Peers; null if `peers.cert_file` is not set" },
);

const feed = t.Union(
  [
    t.Object({
      mode: t.Union([t.Literal("ring"), t.Literal("stream")]),
      cluster: t.String({ description: "Name in the subjects" }),
      ranks: count("Data parallel ranks, each published separately"),
      changes: count("Changes numbered since the start"),
      device_blocks: count("Blocks published as on engines' GPUs"),
      host_blocks: count("Blocks published as in RAM"),
      disk_blocks: count("Blocks published as on SSD"),
      ring_blocks: count("Blocks in the changes kept for replay"),
      sent: count("Messages with changes sent since the start"),
      unsent: count("Messages dropped for lack of a connection or room since the start"),
      snapshots: count("Snapshots made for requests since the start"),
      engine: t.Union(
        [
          t.Object({
            heard: count("Ranks whose engine is connected now"),
            known: count("Connected ranks without missing events"),
            blocks: count("Blocks that the engines hold according to their events"),
            events: count("Events read since the start"),
            dropped: count("Events and blocks ignored since the start"),
            dropped_by: t.Record(t.String(), t.Number(), {
              description: "Events and blocks ignored since the start, by reason",
            }),
            block_tokens: nullable(count("Tokens per block according to the events")),
            gaps: count("Gaps between batches since the start"),
          }),
          t.Null(),
        ],
        { description: "KV events of the engine; null without `engine.kv_events`" },
      ),
      stream: t.Union(
        [
          t.Object({
            status: t.Union([t.Literal("publishing"), t.Literal("waiting"), t.Literal("refused")]),
            why: nullable(t.String({ description: "Why publishing is stopped; null: it is not" })),
            behind: count("Changes that the broker has not acknowledged"),
            stored_snapshots: count("Snapshots stored in the object store since the start"),
          }),
          t.Null(),
        ],
        { description: 'The stream of `mode = "stream"`; null without one' },
      ),
    }),
    t.Null(),
  ],
  { description: "Publishing of this host's blocks to routers; null if it is off" },
);

const table = t.Object({
  blocks: count("Known blocks of all tiers"),
  capacity: count("Capacity in blocks"),
  gpu_blocks: count("Blocks that engines reported on their GPU"),
  namespaces: count("Namespaces seen since the start"),
});

const engine = t.Object({
  socket: t.String({ description: "Path of the engine socket" }),
  connections: count("Connected engine processes"),
  slots_held: count("Slots reserved or acquired by engines"),
  slots_quarantined: count("Slots that wait for the exit of a process"),
  frames: count("Frames since the start"),
  cut_off: count("Engines disconnected since the start"),
  refused: count("Connections refused since the start"),
});

const found = t.Union([t.Literal("usable"), t.Literal("absent"), t.Literal("broken")], {
  description: "`absent`: no such device; `broken`: a device cannot be used",
});
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
  pageable_copies: count("Copies that blocked their thread since the start"),
});

/** `gpu` of the status. */
const gpuStatus = t.Union(
  [
    t.Object({
      found,
      text,
      fix,
      driver: nullable(t.String({ description: "CUDA version of the driver; null: unknown" })),
      batches: t.Boolean({ description: "Whether one call copies many pieces" }),
      registered_bytes: bytes("RAM registered with the driver"),
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

/** `rdma` of the status. */
const rdmaStatus = t.Union(
  [
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
    t.Null(),
  ],
  { description: "RDMA devices; null if peers or RDMA are off" },
);

const problem = t.Object({
  code: t.String({ description: "Stable code; see `hearth reference health`" }),
  severity: t.Union([t.Literal("error"), t.Literal("warn")]),
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

/** Body of `GET /v1/status`. Durations in seconds, sizes in bytes, counters since the start. */
export const statusReport = t.Object({
  version: t.String(),
  worker_id: t.String({ description: "Name of this worker" }),
  incarnation: t.String({
    pattern: "^[0-9]{1,20}$",
    description: "Id of this run, 64 bits; text, so that no client rounds it",
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
    description: "Namespace keys in hex, in order of first use",
  }),
  engine,
  sessions: count("Sessions that keep their last block now"),
  health: t.Array(problem, { description: "Current problems, worst first" }),
  counters,
  build,
});

export type StatusReport = Static<typeof statusReport>;

/** Example status of a node with both tiers and a broker, for the OpenAPI description. */
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
