import { Elysia, type Static, t } from "elysia";
import { readBlockName } from "../core/index.ts";
import { bytes, count, nullable } from "./fields.ts";
import type { PeerServices } from "./services.ts";
import { refuseName } from "./tree-routes.ts";

/** Peers, and blocks fetched from them. */
export function peerRoutes(peers: PeerServices) {
  return new Elysia()
    .get("/v1/peers", () => peers.report(), {
      response: peersReport,
      detail: { summary: "Lists the peers that blocks are fetched from, with their state" },
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
        detail: { summary: "Traces the fetches of blocks from peers, step by step" },
      },
    );
}

// Written out because the framework loses the type of a computed list.
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
    aes: t.Boolean({ description: "Whether the processor has AES instructions" }),
  },
  { description: "Properties that decide which transports two hosts can use" },
);

const peer = t.Object({
  worker_id: t.String(),
  origin: t.Union([t.Literal("static"), t.Literal("announced")], {
    description: "Source: the configuration, or the peer's announcements over NATS",
  }),
  state: t.Union(
    [t.Literal("linked"), t.Literal("dialling"), t.Literal("idle"), t.Literal("down")],
    { description: "`idle`: no connection and no failure; `down`: its circuit breaker is open" },
  ),
  transport: t.Union([...names, t.Null()]),
  goodput_bytes_per_second: nullable(
    t.Number({
      minimum: 0,
      description: "Throughput of the latest fetches; null before the first",
    }),
  ),
  rtt_ms: nullable(milliseconds("Round-trip time")),
  breaker: t.Union([t.Literal("closed"), t.Literal("open"), t.Literal("trial")]),
  cooldown_ms: nullable(milliseconds("Time until the next attempt")),
  certificate_ends: nullable(time("Expiry of its latest certificate")),
  in_flight_bytes: bytes("Fetches in flight from this peer"),
  pulled_blocks: count("Blocks received from it since the start"),
  pulled_bytes: bytes("Size of these blocks"),
  failures: count("Failures since the start"),
  last_fault: nullable(t.String({ description: "Last error; null: none" })),
  transports_down: t.Array(
    t.Object({ transport, retry_ms: milliseconds("Time until the next attempt") }),
  ),
  endpoints: places("Addresses on which it listens"),
  hardware: nullable(hardware),
  heard_seconds_ago: nullable(
    t.Number({ minimum: 0, description: "Time since its last announcement; null: none" }),
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
    certificate_ends: nullable(time("Expiry of this host's certificate")),
    listening: places("Addresses at which peers reach this host"),
    inbound_links: count("Connections from peers to this host"),
    lent_bytes: bytes("Bytes being sent to peers now"),
    in_flight_bytes: bytes("Bytes being received from peers now"),
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
  ms: milliseconds("Time since the fetch began"),
  what: t.String({ description: "Message" }),
  peer: t.Optional(t.String()),
  transport: t.Optional(transport),
  bytes: t.Optional(count("Bytes")),
});

const pull = t.Object({
  key: t.String({ description: "The block's key, in hex" }),
  digest: t.String({ description: "Digest in hex" }),
  layer: count("Layer"),
  priority: t.Union([t.Literal("acquire"), t.Literal("warm"), t.Literal("mirror")], {
    description: "Origin of the request: an engine, a command, or a copy made in advance",
  }),
  started: time("UTC"),
  outcome: nullable(t.String({ description: "Outcome; null: in flight" })),
  bytes: bytes("Bytes received"),
  steps: t.Array(step),
});

/** Body of `GET /v1/pulls`. */
const pullsReport = t.Object(
  { pulls: t.Array(pull, { description: "Latest first; of each block the last fetches" }) },
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
      description: "Engine hash, page key, digest or block key; default: all blocks",
    }),
  ),
  limit: t.Optional(t.Numeric({ minimum: 1, maximum: PULLS_MAX, multipleOf: 1, default: 100 })),
});
