import { CLUSTER_NAME } from "../../core/index.ts";
import { isHostName, type ListenAddress } from "../address-kinds.ts";
import {
  booleanKind,
  choiceKind,
  durationKind,
  integerKind,
  orOff,
  pathKind,
  patternKind,
  sizeKind,
} from "../kinds.ts";
import {
  cipherKind,
  hostKind,
  listenOrOffKind,
  namespacesKind,
  peerListKind,
  rdmaDevicesKind,
  transportsKind,
} from "../peer-kinds.ts";
import { type KeySpec, optional, section, withDefault } from "../spec.ts";

const PATH_BYTES_MAX = 4095;
const MIB = 2 ** 20;
const MINUTE_MS = 60_000;
const RDMA_PORT = 7175;
/** Wildcard addresses. */
const WILDCARDS = ["0.0.0.0", "::"];

/** A file that SIGHUP reloads. */
function file(key: string, example: string, doc: string) {
  const kind = pathKind({ bytesMax: PATH_BYTES_MAX, example });
  return optional({ key, kind, reload: false, doc, example });
}

function size(key: string, defaultValue: string, doc: string) {
  const kind = sizeKind({ min: MIB, max: 2 ** 40, example: defaultValue });
  return withDefault({ key, kind, defaultValue, reload: true, doc });
}

function duration(
  key: string,
  limits: [min: number, max: number],
  defaultValue: string,
  doc: string,
) {
  const kind = durationKind({ min: limits[0], max: limits[1], example: defaultValue });
  return withDefault({ key, kind, defaultValue, reload: true, doc });
}

const certFile = file(
  "cert_file",
  "/etc/hearth/peer.pem",
  "This host's certificate chain in PEM. It names the worker in the URI " +
    "`spiffe://<cluster>/hearth/<node.id>`; `hearth ca issue` creates one. If set, the agent " +
    "pulls blocks from other hosts and serves blocks to them. SIGHUP reloads it.",
);

const keyFile = file(
  "key_file",
  "/etc/hearth/peer.key",
  "The private key of `cert_file` in PEM. Only the agent should be able to read it.",
);

const caFile = file(
  "ca_file",
  "/etc/hearth/peers-ca.pem",
  "CA certificates in PEM that sign the certificates of this cluster's hosts. During a rotation " +
    "the file holds both the old and the new one.",
);

const cluster = withDefault({
  key: "cluster",
  kind: patternKind<string>({
    name: "cluster name",
    pattern: CLUSTER_NAME,
    words: "1 to 64 small letters, digits, . - and _, the first a letter or digit",
    example: "hearth",
  }),
  defaultValue: "hearth",
  reload: false,
  doc:
    "The trust domain in the names of certificates. Hosts of other clusters are refused, even " +
    "if the same authority signed their certificates.",
});

const listenStream = withDefault({
  key: "listen_stream",
  kind: listenOrOffKind,
  defaultValue: "0.0.0.0:7172",
  reload: false,
  doc:
    "Listen address of the stream transport (TLS over TCP). Peers need a certificate of this " +
    "cluster. `off` does not serve this transport.",
});

const listenQuic = withDefault({
  key: "listen_quic",
  kind: listenOrOffKind,
  defaultValue: "0.0.0.0:7173",
  reload: false,
  doc: "Listen address of the QUIC transport (UDP). `off` does not serve this transport.",
});

const lanesPort = withDefault({
  key: "lanes_port",
  kind: integerKind({ min: 0, max: 65_535 }),
  defaultValue: 7174,
  reload: false,
  doc:
    "TCP port on the address of `listen_stream` for the block data of the stream transport, " +
    "encrypted record by record. 0 picks a free port, so the firewall must allow all ports.",
});

const listenRdma: KeySpec<ListenAddress | "off"> = {
  key: "listen_rdma",
  kind: listenOrOffKind,
  defaultValue: {
    is: "derived",
    words: "port 7175 of the address of `listen_stream`, or of `listen_quic`",
    needs: ["peers.listen_stream", "peers.listen_quic"],
    from({ value }) {
      const stream = value<ListenAddress | "off">("peers.listen_stream");
      const listens = stream === "off" ? value<ListenAddress | "off">("peers.listen_quic") : stream;
      if (listens === "off") return "off";
      // If those ports are chosen freely, this one is too.
      return Object.freeze({ ...listens, port: listens.port === 0 ? 0 : RDMA_PORT });
    },
  },
  reload: false,
  doc:
    "Listen address of the control connection (TLS over TCP) of the RDMA transport. The agent " +
    "listens only if [rdma] has a usable device and `trusted_network` is set. `off` does not " +
    "serve this transport.",
  example: "0.0.0.0:7175",
};

const advertise: KeySpec<string | null> = {
  key: "advertise",
  kind: hostKind as KeySpec<string | null>["kind"],
  defaultValue: {
    is: "derived",
    words: "the listen address, or the host name if that is a wildcard",
    needs: ["peers.listen_stream", "peers.listen_quic"],
    from({ facts, value }) {
      const stream = value<ListenAddress | "off">("peers.listen_stream");
      const listens = stream === "off" ? value<ListenAddress | "off">("peers.listen_quic") : stream;
      if (listens !== "off" && !WILDCARDS.includes(listens.host)) return listens.host;
      const { hostname } = facts;
      return hostname !== null && isHostName(hostname) ? hostname : null;
    },
  },
  reload: false,
  doc:
    "The address or name that other hosts use to reach this host, published in announcements. " +
    "Set it if the host name does not resolve to this host elsewhere.",
  example: "10.0.0.1",
};

const peers = optional({
  key: "peers",
  kind: peerListKind,
  reload: true,
  doc:
    "Hosts to pull blocks from: `worker@host:stream/quic/rdma`, separated by commas. A host " +
    "without one of the transports leaves out its port (`:7172`, `:/7173`, `:7172//7175`). " +
    "Hosts that announce themselves over NATS need not be listed.",
  example: "gpu-02@10.0.0.2:7172/7173/7175",
});

const announceMs = withDefault({
  key: "announce",
  kind: orOff(durationKind({ min: 500, max: 5 * MINUTE_MS, example: "5s" })),
  defaultValue: "5s",
  reload: false,
  doc:
    "Interval of this host's announcements over NATS. A peer is forgotten after three missed " +
    "announcements. `off` neither announces nor listens.",
});

const summaryMs = withDefault({
  key: "summaries",
  kind: orOff(durationKind({ min: 200, max: 10 * MINUTE_MS, example: "3s" })),
  defaultValue: "3s",
  reload: false,
  doc:
    "Interval at which the agent fetches residency summaries from peers in the background: one " +
    "for each namespace, 1.5 to 2 bytes per block and at most 8MiB, nothing if unchanged. " +
    "`off`: engines get blocks only from hosts that the router names.",
});

const transports = withDefault({
  key: "transport",
  kind: transportsKind,
  defaultValue: "auto",
  reload: false,
  doc:
    "Transports for blocks: `rdma`, `stream` (TLS for control, encrypted TCP for data) and " +
    "`quic`, in the order to try them. `auto` chooses by what both hosts support, then by " +
    "measured speed.",
});

const encrypt = withDefault({
  key: "encrypt",
  kind: booleanKind,
  defaultValue: true,
  reload: false,
  doc:
    "Encrypt block data on the stream transport. Off requires `trusted_network`: anyone on the " +
    "path can then read and modify KV data. Control messages always use TLS.",
});

const cipher = withDefault({
  key: "cipher",
  kind: cipherKind,
  defaultValue: "aegis-128l",
  reload: false,
  doc: "Cipher of block data. AES-128-GCM is slower; some security policies require it.",
});

const trustedNetwork = withDefault({
  key: "trusted_network",
  kind: booleanKind,
  defaultValue: false,
  reload: false,
  doc:
    "Declares that the network between the hosts is private; see `encrypt`. Required for RDMA, " +
    "which is never encrypted.",
});

const bytesMax = size(
  "bytes_max",
  "1GiB",
  "Maximum bytes in flight from peers to this host. Capped at half of RAM.",
);

const peerBytesMax = size(
  "peer_bytes_max",
  "256MiB",
  "Maximum bytes in flight from one peer. If a peer hangs, its bytes in flight are blocked " +
    "until the deadline.",
);

const namespaceBytesMax = size(
  "namespace_bytes_max",
  "512MiB",
  "Maximum bytes in flight for one namespace, so that warming one model leaves room for the " +
    "others.",
);

const serveBytesMax = size(
  "serve_bytes_max",
  "1GiB",
  "Maximum bytes being served to peers, which cannot be evicted meanwhile. Requests above it " +
    "are answered `busy`. Capped at half of RAM.",
);

const itemsMax = withDefault({
  key: "items_max",
  kind: integerKind({ min: 1, max: 256 }),
  defaultValue: 64,
  reload: true,
  doc:
    "Maximum blocks in one request to a peer. Lower values reduce the latency of each block, " +
    "higher values the number of requests.",
});

const progressMs = duration(
  "progress",
  [50, MINUTE_MS],
  "2s",
  "Timeout of a pull without progress; after it the pull is aborted and tried at another peer.",
);

const dialMs = duration(
  "dial",
  [50, MINUTE_MS],
  "2s",
  "Timeout of connecting to a peer, including the TLS handshake.",
);

const cooldownMs = duration(
  "cooldown",
  [50, 10 * MINUTE_MS],
  "1s",
  "Initial cooldown of a peer after a failure, doubled at each further failure.",
);

const cooldownMaxMs = duration(
  "cooldown_max",
  [50, 60 * MINUTE_MS],
  "1m",
  "Maximum cooldown of a peer. At least `cooldown`.",
);

const prefillTokensPerSecond = optional({
  key: "prefill_tokens_per_second",
  kind: integerKind({ min: 1, max: 100_000_000 }),
  reload: true,
  doc:
    "Prefill speed of an engine on this host. If set, blocks that would take longer to pull " +
    "than to recompute are not pulled for engines. If unset, all blocks are pulled.",
  example: 20_000,
});

const serveNamespaces = withDefault({
  key: "serve_namespaces",
  kind: namespacesKind,
  defaultValue: "any",
  reload: true,
  doc:
    "Namespaces whose blocks are served to peers: keys separated by commas, as `hearth ctl " +
    "status` shows them. `any`: every namespace that the client can name.",
});

export const peersSection = section("Pulling blocks from other hosts, and serving them.", {
  certFile,
  keyFile,
  caFile,
  cluster,
  listenStream,
  listenQuic,
  listenRdma,
  lanesPort,
  advertise,
  peers,
  announceMs,
  summaryMs,
  transports,
  encrypt,
  cipher,
  trustedNetwork,
  bytesMax,
  peerBytesMax,
  namespaceBytesMax,
  serveBytesMax,
  itemsMax,
  progressMs,
  dialMs,
  cooldownMs,
  cooldownMaxMs,
  prefillTokensPerSecond,
  serveNamespaces,
});

/** Whether only this machine can connect; null: the transport is off. */
export function listensOnLoopback(listen: readonly (ListenAddress | "off")[]): boolean | null {
  const addresses = listen.filter((address) => address !== "off");
  return addresses.length === 0 ? null : addresses.every(({ loopback }) => loopback);
}

const PAGE_BYTES = 4096;

const enabled = withDefault({
  key: "enabled",
  kind: choiceKind(["auto", "off"]),
  defaultValue: "auto",
  reload: false,
  doc:
    "Whether to transfer blocks by RDMA. `auto` uses it if both hosts have a working device and " +
    "`peers.trusted_network` is set, because RDMA data is not encrypted; `off` opens no device.",
});

const library = optional({
  key: "library",
  kind: pathKind({ bytesMax: 4095, example: "/usr/lib64/libibverbs.so.1" }),
  reload: false,
  doc: "Path of the verbs library, if the dynamic linker does not find `libibverbs.so.1`.",
  example: "/usr/lib/x86_64-linux-gnu/libibverbs.so.1",
});

const devices = withDefault({
  key: "devices",
  kind: rdmaDevicesKind,
  defaultValue: "any",
  reload: false,
  doc:
    "Devices to use, by the names that `ibv_devices` shows, separated by commas. Leave out " +
    "devices on networks for other purposes, such as storage.",
});

const gidIndex = optional({
  key: "gid_index",
  kind: integerKind({ min: 0, max: 255 }),
  reload: false,
  doc:
    "GID index of each port. If unset: RoCE v2 is preferred, and link-local addresses are never " +
    "used.",
  example: 3,
});

const rails = withDefault({
  key: "rails",
  kind: integerKind({ min: 1, max: 8 }),
  defaultValue: 1,
  reload: false,
  doc:
    "Maximum ports over which blocks of one peer are read at the same time; each must share a " +
    "network with a port of the peer. Peers are always spread over all ports.",
});

const trafficClass = withDefault({
  key: "traffic_class",
  kind: integerKind({ min: 0, max: 255 }),
  defaultValue: 0,
  reload: false,
  doc:
    "Traffic class of sent packets, with the DSCP in its upper six bits. Use the lossless class " +
    "if the network has one (often 106).",
});

const serviceLevel = withDefault({
  key: "service_level",
  kind: integerKind({ min: 0, max: 15 }),
  defaultValue: 0,
  reload: false,
  doc: "Service level of sent packets. On InfiniBand the subnet manager defines its meaning.",
});

const timeout = withDefault({
  key: "timeout",
  kind: integerKind({ min: 8, max: 20 }),
  defaultValue: 14,
  reload: false,
  doc:
    "Exponent of the retransmission timeout: an unacknowledged packet is resent after 4.096 us " +
    "times two to this power (14: 67 ms). Devices may wait up to four times as long.",
});

const retries = withDefault({
  key: "retries",
  kind: integerKind({ min: 1, max: 6 }),
  defaultValue: 6,
  reload: false,
  doc: "Number of retransmissions before the peer counts as unreachable.",
});

const readBytes = withDefault({
  key: "read_bytes",
  kind: sizeKind({ min: 64 * 1024, max: 16 * MIB, multiple: PAGE_BYTES, example: "256KiB" }),
  defaultValue: "256KiB",
  reload: false,
  doc: "Maximum bytes of one RDMA READ; a larger block takes several.",
});

const windowBytes = withDefault({
  key: "window_bytes",
  kind: sizeKind({ min: 64 * MIB, max: 2 ** 40, example: "1GiB" }),
  defaultValue: "1GiB",
  reload: false,
  doc:
    "Maximum bytes of RAM that peers can read at a time; only blocks that are being served are " +
    "readable. If it is full, peers are asked to retry. A block larger than this uses another " +
    "transport; see `peers.serve_bytes_max`.",
});

export const rdmaSection = section("RDMA transport between hosts; see `peers.listen_rdma`.", {
  enabled,
  library,
  devices,
  gidIndex,
  rails,
  trafficClass,
  serviceLevel,
  timeout,
  retries,
  readBytes,
  windowBytes,
});
