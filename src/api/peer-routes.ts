import { Elysia, type Static, t } from "elysia";
import { type BlockName, type Clock, readBlockName } from "../core/index.ts";
import {
  type PeerRecord,
  type PeerStatus,
  type PullTrace,
  TRANSPORTS,
  type TransportName,
} from "../peers/index.ts";
import { BREAKER_STATES, PEER_STATES, type PeerSources, sum } from "./agent-metrics.ts";
import { bytes, count, nullable, oneOf, snakeCase } from "./fields.ts";
import type { PeerServices } from "./services.ts";
import { refuseName } from "./tree-routes.ts";

/** Returns the routes that list peers and the blocks fetched from them. */
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

const transport = oneOf(TRANSPORTS);
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
  origin: oneOf(
    ["static", "announced"],
    "Source: the configuration, or the peer's announcements over NATS",
  ),
  state: oneOf(
    PEER_STATES,
    "`idle`: no connection and no failure; `down`: its circuit breaker is open",
  ),
  transport: t.Unsafe<TransportName | null>(
    t.Union([...TRANSPORTS.map((name) => t.Literal(name)), t.Null()]),
  ),
  goodput_bytes_per_second: nullable(
    t.Number({
      minimum: 0,
      description: "Throughput of the latest fetches; null before the first",
    }),
  ),
  rtt_ms: nullable(milliseconds("Round-trip time")),
  breaker: oneOf(BREAKER_STATES),
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

/** Response body of `GET /v1/peers`. */
const peersReport = t.Object({
  enabled: t.Boolean({ description: "Whether `peers.cert_file` is set" }),
  cluster: nullable(t.String()),
  certificate_ends: nullable(time("Expiry of this host's certificate")),
  listening: places("Addresses at which peers reach this host"),
  inbound_links: count("Connections from peers to this host"),
  lent_bytes: bytes("Bytes being sent to peers now"),
  in_flight_bytes: bytes("Bytes being received from peers now"),
  peers: t.Array(peer),
});
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
  priority: oneOf(
    ["acquire", "warm", "mirror"],
    "Origin of the request: an engine, a command, or a copy made in advance",
  ),
  started: time("UTC"),
  outcome: nullable(t.String({ description: "Outcome; null: in flight" })),
  bytes: bytes("Bytes received"),
  steps: t.Array(step),
});

/** Response body of `GET /v1/pulls`. */
const pullsReport = t.Object({
  pulls: t.Array(pull, { description: "Latest first; of each block the last fetches" }),
});
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

/** Returns the state of all peers. Null if this host has no certificate for peers. */
export function readPeers(open: PeerSources | null, clock: Clock): PeersReport {
  if (open === null) {
    const nothing = { inbound_links: 0, lent_bytes: 0, in_flight_bytes: 0, peers: [] };
    return { enabled: false, cluster: null, certificate_ends: null, listening: {}, ...nothing };
  }
  const { credentials, fetcher, peers } = open;
  return {
    enabled: true,
    cluster: credentials.cluster,
    certificate_ends: dateOf(credentials.notAfterMs),
    listening: { ...open.endpoints },
    inbound_links: sum(TRANSPORTS, (name) => open.inboundConnections(name)),
    lent_bytes: open.server.lentBytes,
    in_flight_bytes: fetcher.stats.inFlightBytes,
    peers: peers.map((one) => peerOf(one, open.recordOf(one.worker), clock)),
  };
}

function peerOf(status: PeerStatus, record: PeerRecord | null, clock: Clock): PeerReport {
  const { worker, goodput, certificateEndsMs, transportsDown, ...rest } = status;
  const { hardware = null, heardMs = null } = record ?? {};
  return {
    worker_id: worker,
    goodput_bytes_per_second: goodput,
    ...snakeCase(rest),
    certificate_ends: certificateEndsMs === null ? null : dateOf(certificateEndsMs),
    transports_down: transportsDown.map(({ name, retryMs }) => {
      return { transport: name, retry_ms: Math.max(0, retryMs) };
    }),
    endpoints: { ...record?.endpoints },
    hardware: hardware && {
      rdma_devices: [...hardware.rdmaDevices],
      cores: hardware.cores,
      aes: hardware.hasAes,
    },
    heard_seconds_ago: heardMs === null ? null : (clock.monotonicMs() - heardMs) / 1_000,
  };
}

/**
 * Returns the latest fetches of the block with this name, or of all blocks if it is null; at most
 * `max`. `digestsOf` returns the digests of the blocks with an engine's hash on this host.
 */
export function readPulls(
  traces: readonly PullTrace[],
  digestsOf: (name: Uint8Array) => readonly Uint8Array[],
  { name, max }: { readonly name: BlockName | null; readonly max: number },
): PullsReport {
  const wanted = name === null ? traces : traces.filter(isMeant(name, digestsOf));
  return {
    pulls: wanted.slice(0, max).map(({ startedWallMs, steps, ...trace }) => {
      return { ...trace, started: dateOf(startedWallMs), steps: steps.map((one) => ({ ...one })) };
    }),
  };
}

/**
 * Returns true if a recorded fetch concerns the named block. Compares the block's key or digest; an
 * engine's hash is compared by the digests that this host knows for it.
 */
function isMeant(
  name: BlockName,
  digestsOf: (name: Uint8Array) => readonly Uint8Array[],
): (trace: PullTrace) => boolean {
  const bytes = name.kind === "key" ? name.bytes : new Uint8Array(8);
  if (name.kind === "hash") {
    const view = new DataView(bytes.buffer);
    view.setUint32(0, name.lo, true);
    view.setUint32(4, name.hi, true);
  }
  const hex = bytes.toHex();
  const digests = digestsOf(bytes).map((digest) => digest.toHex());
  return ({ key, digest }) => key === hex || digest === hex || digests.includes(digest);
}

function dateOf(ms: number): string {
  return new Date(ms).toISOString();
}
