import { Elysia, type Static, t } from "elysia";
import { readBlockName } from "../core/index.ts";
import { bytes, count, nullable } from "./fields.ts";
import type { PeerServices } from "./services.ts";
import { refuseName } from "./tree-routes.ts";

/** Other hosts, and what came from them. */
export function peerRoutes(peers: PeerServices) {
  return new Elysia()
    .get("/v1/peers", () => peers.report(), {
      response: peersReport,
      detail: { summary: "Other hosts that blocks are pulled from, and how it goes" },
    })
    .get(
      "/v1/pulls",
      ({ query: { key, limit = 100 } }) => {
        if (key === undefined) return peers.pulls(null, limit);
        const name = readBlockName(key);
        return name === null ? refuseName("key", key) : peers.pulls(name, limit);
      },
      {
        query: pullsQuery,
        response: pullsReport,
        detail: { summary: "What happened to blocks that were pulled, step by step" },
      },
    );
}

// Written out: the framework loses the type of a list that is made.
const names = [t.Literal("rdma"), t.Literal("stream"), t.Literal("quic")] as const;
const transport = t.Union([...names]);
const time = (description: string) => t.String({ format: "date-time", description });
const milliseconds = (description: string) =>
  t.Number({ minimum: 0, description: `${description}, milliseconds` });

const place = t.Object({ host: t.String(), port: count("Port") });
const places = (description: string) =>
  t.Object(
    { stream: t.Optional(place), quic: t.Optional(place), rdma: t.Optional(place) },
    { description },
  );

const hardware = t.Object(
  {
    rdma_devices: t.Array(t.String(), { description: "Names of RDMA devices" }),
    cores: count("Processor cores"),
    aes: t.Boolean({ description: "Whether it has instructions for AES" }),
  },
  { description: "What decides which transports two hosts have in common" },
);

const peer = t.Object({
  worker_id: t.String(),
  origin: t.Union([t.Literal("static"), t.Literal("announced")], {
    description: "From the configuration, or from its own announcements over NATS",
  }),
  state: t.Union(
    [t.Literal("linked"), t.Literal("dialling"), t.Literal("idle"), t.Literal("down")],
    { description: "`idle`: no connection, and nothing wrong; `down`: its breaker is open" },
  ),
  transport: t.Union([...names, t.Null()]),
  goodput_bytes_per_second: nullable(
    t.Number({ minimum: 0, description: "Over the latest pulls; null before the first" }),
  ),
  rtt_ms: nullable(milliseconds("Round trip")),
  breaker: t.Union([t.Literal("closed"), t.Literal("open"), t.Literal("trial")]),
  cooldown_ms: nullable(milliseconds("Until it is tried again")),
  certificate_ends: nullable(time("Of the certificate it showed last")),
  in_flight_bytes: bytes("On their way from it"),
  pulled_blocks: count("Blocks it sent, since the start"),
  pulled_bytes: bytes("Their length"),
  failures: count("Since the start"),
  last_fault: nullable(t.String({ description: "In words; null: all is well" })),
  transports_down: t.Array(t.Object({ transport, retry_ms: milliseconds("Until it is tried") })),
  endpoints: places("Where it listens"),
  hardware: nullable(hardware),
  heard_seconds_ago: nullable(
    t.Number({ minimum: 0, description: "Since its last announcement; null: there was none" }),
  ),
});
export type PeerReport = Static<typeof peer>;

const EXAMPLE_PEER: PeerReport = {
  worker_id: "gpu-02",
  origin: "announced",
  state: "linked",
  transport: "stream",
  goodput_bytes_per_second: 2_400_000_000,
  rtt_ms: 0.21,
  breaker: "closed",
  cooldown_ms: null,
  certificate_ends: "2027-01-01T00:00:00.000Z",
  in_flight_bytes: 10_485_760,
  pulled_blocks: 930,
  pulled_bytes: 9_751_756_800,
  failures: 1,
  last_fault: null,
  transports_down: [],
  endpoints: { stream: { host: "10.0.0.2", port: 7172 }, quic: { host: "10.0.0.2", port: 7173 } },
  hardware: { rdma_devices: [], cores: 64, aes: true },
  heard_seconds_ago: 1.4,
};

/** Body of `GET /v1/peers`. */
const peersReport = t.Object(
  {
    enabled: t.Boolean({ description: "Whether `peers.cert_file` is set" }),
    cluster: nullable(t.String()),
    certificate_ends: nullable(time("Of this host's certificate")),
    listening: places("Where other hosts reach this one"),
    inbound_links: count("Connections of other hosts to this one"),
    lent_bytes: bytes("Lent to other hosts now"),
    in_flight_bytes: bytes("On their way to this host"),
    peers: t.Array(peer),
  },
  {
    examples: [
      {
        enabled: true,
        cluster: "hearth",
        certificate_ends: "2027-01-01T00:00:00.000Z",
        listening: {
          stream: { host: "10.0.0.1", port: 7172 },
          quic: { host: "10.0.0.1", port: 7173 },
        },
        inbound_links: 1,
        lent_bytes: 0,
        in_flight_bytes: 10_485_760,
        peers: [EXAMPLE_PEER],
      },
    ],
  },
);
export type PeersReport = Static<typeof peersReport>;

const PULLS_MAX = 1_000;

const step = t.Object({
  ms: milliseconds("Since the pull began"),
  what: t.String({ description: "In words" }),
  peer: t.Optional(t.String()),
  transport: t.Optional(transport),
  bytes: t.Optional(count("Bytes")),
});

const pull = t.Object({
  key: t.String({ description: "The block's key, in hex" }),
  digest: t.String({ description: "In hex" }),
  layer: count("Layer"),
  priority: t.Union([t.Literal("acquire"), t.Literal("warm"), t.Literal("mirror")], {
    description: "Who wanted it: an engine, a command, a copy for later",
  }),
  started: time("UTC"),
  outcome: nullable(t.String({ description: "null: under way" })),
  bytes: bytes("What came"),
  steps: t.Array(step),
});

/** Body of `GET /v1/pulls`. */
const pullsReport = t.Object(
  { pulls: t.Array(pull, { description: "The latest first; of each block the last pulls" }) },
  {
    examples: [
      {
        pulls: [
          {
            key: "ab".repeat(32),
            digest: "cd".repeat(32),
            layer: 4_294_967_295,
            priority: "acquire",
            started: "2026-01-01T00:00:00.000Z",
            outcome: "ok",
            bytes: 10_485_760,
            steps: [
              { ms: 0, what: "asked", peer: "gpu-02", transport: "stream" },
              { ms: 6.2, what: "came", peer: "gpu-02", transport: "stream", bytes: 10_485_760 },
            ],
          },
        ],
      },
    ],
  },
);
export type PullsReport = Static<typeof pullsReport>;

const pullsQuery = t.Object({
  key: t.Optional(
    t.String({
      minLength: 1,
      maxLength: 128,
      description:
        "An engine's hash, a page key, a digest or a block's key; all blocks unless given",
    }),
  ),
  limit: t.Optional(t.Numeric({ minimum: 1, maximum: PULLS_MAX, multipleOf: 1, default: 100 })),
});
