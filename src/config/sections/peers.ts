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
/** Addresses that stand for all of a machine's. */
const WILDCARDS = ["0.0.0.0", "::"];

/** A file that SIGHUP reads again. */
function file(key: string, example: string, doc: string) {
  const kind = pathKind({ bytesMax: PATH_BYTES_MAX, example });
  return optional({ key, kind, reload: false, doc, example });
}

function size(key: string, standard: string, doc: string) {
  const kind = sizeKind({ min: MIB, max: 2 ** 40, example: standard });
  return withDefault({ key, kind, standard, reload: true, doc });
}

function duration(key: string, limits: [min: number, max: number], standard: string, doc: string) {
  const kind = durationKind({ min: limits[0], max: limits[1], example: standard });
  return withDefault({ key, kind, standard, reload: true, doc });
}

const certFile = file(
  "cert_file",
  "/etc/hearth/peer.pem",
  "This host's certificate with those that signed it, in PEM. It names the worker in the URI " +
    "`spiffe://<cluster>/hearth/<node.id>`; `hearth ca issue` makes one. With it blocks are " +
    "pulled from other hosts and served to them; unset: they are not. SIGHUP reads it again.",
);

const keyFile = file(
  "key_file",
  "/etc/hearth/peer.key",
  "The private key of `cert_file`, in PEM. Keep it readable for the agent alone.",
);

const caFile = file(
  "ca_file",
  "/etc/hearth/peers-ca.pem",
  "Certificates, in PEM, of those who sign the certificates of this cluster's hosts. While one " +
    "replaces another, both stand here.",
);

const cluster = withDefault({
  key: "cluster",
  kind: patternKind<string>({
    name: "cluster name",
    pattern: CLUSTER_NAME,
    words: "1 to 64 small letters, digits, . - and _, the first a letter or digit",
    example: "hearth",
  }),
  standard: "hearth",
  reload: false,
  doc:
    "The trust domain in the names of certificates. Hosts of other clusters are refused even " +
    "where the same authority signed for them.",
});

const listenStream = withDefault({
  key: "listen_stream",
  kind: listenOrOffKind,
  standard: "0.0.0.0:7172",
  reload: false,
  doc:
    "Where hosts connect with TLS over TCP: requests of the fast transport. Everybody needs a " +
    "certificate of this cluster. `off` serves nobody that way.",
});

const listenQuic = withDefault({
  key: "listen_quic",
  kind: listenOrOffKind,
  standard: "0.0.0.0:7173",
  reload: false,
  doc: "Where hosts connect with QUIC, over UDP. `off` serves nobody that way.",
});

const lanesPort = withDefault({
  key: "lanes_port",
  kind: integerKind({ min: 0, max: 65_535 }),
  standard: 7174,
  reload: false,
  doc:
    "TCP port on the address of `listen_stream` for the bytes of the fast transport, sealed " +
    "record by record. 0 takes a free one: then the firewall must let all of them through.",
});

const listenRdma: KeySpec<ListenAddress | "off"> = {
  key: "listen_rdma",
  kind: listenOrOffKind,
  standard: {
    is: "derived",
    words: "port 7175 of the address of `listen_stream`, or of `listen_quic`",
    needs: ["peers.listen_stream", "peers.listen_quic"],
    from({ value }) {
      const stream = value<ListenAddress | "off">("peers.listen_stream");
      const listens = stream === "off" ? value<ListenAddress | "off">("peers.listen_quic") : stream;
      if (listens === "off") return "off";
      // Whoever takes any free port for those does not want a certain one for this.
      return Object.freeze({ ...listens, port: listens.port === 0 ? 0 : RDMA_PORT });
    },
  },
  reload: false,
  doc:
    "Where hosts connect with TLS over TCP to agree on blocks that they then read by RDMA. It is " +
    "listened on only where [rdma] has a device to use, and `trusted_network` is set. `off` " +
    "serves nobody that way.",
  example: "0.0.0.0:7175",
};

const advertise: KeySpec<string | null> = {
  key: "advertise",
  kind: hostKind as KeySpec<string | null>["kind"],
  standard: {
    is: "derived",
    words: "the address that is listened on; of all addresses, the host name",
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
    "The address or name under which other hosts reach this one; it goes out with " +
    "announcements. Set it where the host name does not lead here from elsewhere.",
  example: "10.0.0.1",
};

const peers = optional({
  key: "peers",
  kind: peerListKind,
  reload: true,
  doc:
    "Hosts that blocks may be pulled from: `worker@host:stream/quic/rdma` with commas between " +
    "them, where a host without one of the transports leaves out its port (`:7172`, `:/7173`, " +
    "`:7172//7175`). Hosts that announce themselves over NATS need not stand here.",
  example: "gpu-02@10.0.0.2:7172/7173/7175",
});

const announceMs = withDefault({
  key: "announce",
  kind: orOff(durationKind({ min: 500, max: 5 * MINUTE_MS, example: "5s" })),
  standard: "5s",
  reload: false,
  doc:
    "How often this host says over NATS that it is there, and where. One not heard of for three " +
    "times as long as it promised is forgotten. `off` neither announces nor listens.",
});

const summaryMs = withDefault({
  key: "summaries",
  kind: orOff(durationKind({ min: 200, max: 10 * MINUTE_MS, example: "3s" })),
  standard: "3s",
  reload: false,
  doc:
    "How often hosts are asked, in the background, what they have come to hold: a summary for " +
    "each namespace, 1.5 to 2 bytes a block and 8MiB at most, and nothing where nothing came. " +
    "`off`: engines get blocks only from hosts that the router names.",
});

const transports = withDefault({
  key: "transport",
  kind: transportsKind,
  standard: "auto",
  reload: false,
  doc:
    "How blocks travel: `rdma`, `stream` (TLS, then sealed TCP), `quic`, or some of them in the " +
    "order in which they are tried. `auto` goes by what both hosts have, then by what was " +
    "measured.",
});

const encrypt = withDefault({
  key: "encrypt",
  kind: booleanKind,
  standard: true,
  reload: false,
  doc:
    "Whether the bytes of the fast transport are sealed. Off needs `trusted_network`: whoever is " +
    "on the way then reads prompts and can change them. Requests are under TLS in any case.",
});

const cipher = withDefault({
  key: "cipher",
  kind: cipherKind,
  standard: "aegis-128l",
  reload: false,
  doc: "What seals them. AES-128-GCM is slower, and what some policies ask for.",
});

const trustedNetwork = withDefault({
  key: "trusted_network",
  kind: booleanKind,
  standard: false,
  reload: false,
  doc:
    "Says that nobody else is on the network between the hosts; see `encrypt`. RDMA, which " +
    "nothing seals, is used only with it.",
});

const bytesMax = size(
  "bytes_max",
  "1GiB",
  "Bytes on their way to this host at a time. Never more than half of RAM, whatever stands here.",
);

const peerBytesMax = size(
  "peer_bytes_max",
  "256MiB",
  "Of them, from one peer: what is in flight when it hangs waits for the deadline.",
);

const namespaceBytesMax = size(
  "namespace_bytes_max",
  "512MiB",
  "Of them, for one namespace, so that one model's warm-up leaves room for the others.",
);

const serveBytesMax = size(
  "serve_bytes_max",
  "1GiB",
  "Bytes lent to other hosts at a time, which cannot be evicted meanwhile; beyond it they are " +
    "answered `busy`. Never more than half of RAM.",
);

const itemsMax = withDefault({
  key: "items_max",
  kind: integerKind({ min: 1, max: 256 }),
  standard: 64,
  reload: true,
  doc:
    "Blocks asked for in one request to a peer. Fewer make each of them come sooner, more take " +
    "fewer requests.",
});

const progressMs = duration(
  "progress",
  [50, MINUTE_MS],
  "2s",
  "A pull in which no byte comes for so long is given up, and tried elsewhere.",
);

const dialMs = duration(
  "dial",
  [50, MINUTE_MS],
  "2s",
  "How long a connection to a peer may take to come about, certificates and all.",
);

const cooldownMs = duration(
  "cooldown",
  [50, 10 * MINUTE_MS],
  "1s",
  "How long a peer that failed is left alone at first; twice as long each time it fails again.",
);

const cooldownMaxMs = duration(
  "cooldown_max",
  [50, 60 * MINUTE_MS],
  "1m",
  "How long a peer is left alone at the most. At least `cooldown`.",
);

const prefillTokensPerSecond = optional({
  key: "prefill_tokens_per_second",
  kind: integerKind({ min: 1, max: 100_000_000 }),
  reload: true,
  doc:
    "What an engine here computes in prefill. Blocks that would take longer to come than to " +
    "compute are then not pulled for engines. Unset: all are pulled.",
  example: 20_000,
});

const serveNamespaces = withDefault({
  key: "serve_namespaces",
  kind: namespacesKind,
  standard: "any",
  reload: true,
  doc:
    "Namespaces whose blocks other hosts may have: keys with commas between them, as `hearth ctl " +
    "status` shows them. `any`: those that the asker can name.",
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

/** Whether this machine alone can connect; null: nobody can. */
export function listensOnLoopback(listen: readonly (ListenAddress | "off")[]): boolean | null {
  const addresses = listen.filter((address) => address !== "off");
  return addresses.length === 0 ? null : addresses.every(({ loopback }) => loopback);
}

const PAGE_BYTES = 4096;

const enabled = withDefault({
  key: "enabled",
  kind: choiceKind(["auto", "off"]),
  standard: "auto",
  reload: false,
  doc:
    "Whether blocks go between hosts by RDMA. `auto` does it where both have a device that works " +
    "and `peers.trusted_network` is set, since what is read goes over the network in the clear; " +
    "`off` opens no device.",
});

const library = optional({
  key: "library",
  kind: pathKind({ bytesMax: 4095, example: "/usr/lib64/libibverbs.so.1" }),
  reload: false,
  doc: "The verbs' library, where the dynamic linker does not find `libibverbs.so.1` by itself.",
  example: "/usr/lib/x86_64-linux-gnu/libibverbs.so.1",
});

const devices = withDefault({
  key: "devices",
  kind: rdmaDevicesKind,
  standard: "any",
  reload: false,
  doc:
    "Devices that may be used, by the names that `ibv_devices` shows, with commas between them. " +
    "Leave out those on networks for something else, such as storage.",
});

const gidIndex = optional({
  key: "gid_index",
  kind: integerKind({ min: 0, max: 255 }),
  reload: false,
  doc:
    "Which of a port's addresses is used. Unset: RoCE v2 before others, and never one that is " +
    "good within one network alone.",
  example: 3,
});

const rails = withDefault({
  key: "rails",
  kind: integerKind({ min: 1, max: 8 }),
  standard: 1,
  reload: false,
  doc:
    "Ports that one peer's blocks are read over at the same time, each of a network that the " +
    "peer has a port in, too. Peers are spread over all ports in any case.",
});

const trafficClass = withDefault({
  key: "traffic_class",
  kind: integerKind({ min: 0, max: 255 }),
  standard: 0,
  reload: false,
  doc:
    "Traffic class of what is sent, DSCP in its upper six bits: that of the lossless class, " +
    "where the network has one (often 106).",
});

const serviceLevel = withDefault({
  key: "service_level",
  kind: integerKind({ min: 0, max: 15 }),
  standard: 0,
  reload: false,
  doc: "Service level of what is sent: on InfiniBand the subnet manager gives it a meaning.",
});

const timeout = withDefault({
  key: "timeout",
  kind: integerKind({ min: 8, max: 20 }),
  standard: 14,
  reload: false,
  doc:
    "After 4.096 us times two to the power of this a packet that was not answered is sent again: " +
    "14 are 67 ms. Devices wait up to four times as long.",
});

const retries = withDefault({
  key: "retries",
  kind: integerKind({ min: 1, max: 6 }),
  standard: 6,
  reload: false,
  doc: "How often it is sent again before the peer counts as gone.",
});

const readBytes = withDefault({
  key: "read_bytes",
  kind: sizeKind({ min: 64 * 1024, max: 16 * MIB, multiple: PAGE_BYTES, example: "256KiB" }),
  standard: "256KiB",
  reload: false,
  doc: "One read asks for so much of a block at most; a longer block takes several.",
});

const windowBytes = withDefault({
  key: "window_bytes",
  kind: sizeKind({ min: 64 * MIB, max: 2 ** 40, example: "1GiB" }),
  standard: "1GiB",
  reload: false,
  doc:
    "Bytes of RAM that peers can read at a time: the blocks that are lent to them just then, and " +
    "nothing beside. Where it is full they are told to come again, and a longer block never goes " +
    "this way; see `peers.serve_bytes_max`.",
});

export const rdmaSection = section("Blocks between hosts by RDMA; see `peers.listen_rdma`.", {
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
