import { booleanKind, durationKind, integerKind, orOff, sizeKind } from "../../core/index.ts";
import { isHostName, type ListenAddress } from "../address-kinds.ts";
import {
  cipherKind,
  hostKind,
  listenOrOffKind,
  namespacesKind,
  peerListKind,
  rdmaDevicesKind,
  transportsKind,
} from "../peer-kinds.ts";
import { type KeySpec, optional, optionalPath, section, withDefault } from "../spec.ts";
import { clusterNameKind } from "./node.ts";

const MIB = 2 ** 20;
const MINUTE_MS = 60_000;
const RDMA_PORT = 7175;
/** Wildcard addresses. */
const WILDCARDS = ["0.0.0.0", "::"];

function size(key: string, defaultValue: string, doc: string) {
  const kind = sizeKind({ min: MIB, max: 2 ** 40, example: defaultValue });
  return withDefault({ key, kind, defaultValue, reload: true, doc });
}

const cluster = withDefault({
  key: "cluster",
  kind: clusterNameKind,
  defaultValue: "hearth",
  doc:
    "The name that agents and routers of one cluster share: the trust domain in the names of " +
    "certificates, and part of NATS subjects. Hosts of other clusters are refused, even if the " +
    "same authority signed their certificates.",
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

const transports = withDefault({
  key: "transport",
  kind: transportsKind,
  defaultValue: "auto",
  doc:
    "Transports for blocks: `rdma`, `stream` (TLS for control, encrypted TCP for data) and " +
    "`quic`, in the order to try them. `auto` chooses by what both hosts support, then by " +
    "measured speed. No RDMA device is opened if the list leaves out `rdma`.",
});

const cipher = withDefault({
  key: "cipher",
  kind: cipherKind,
  defaultValue: "aegis-128l",
  doc:
    "Cipher of block data on the stream transport. AES-128-GCM is slower; some security policies " +
    "require it. `none` requires `trusted_network`: anyone on the path can then read and modify KV " +
    "data. Control messages always use TLS.",
});

const bytesMax = size(
  "bytes_max",
  "1GiB",
  "Maximum bytes in flight from peers to this host, and from this host to peers; each is capped " +
    "at half of RAM. Pulls from one peer may use a quarter of it, those of one namespace a half.",
);

export const peersSection = section("Pulling blocks from other hosts, and serving them.", {
  certFile: optionalPath(
    "cert_file",
    "/etc/hearth/peer.pem",
    "This host's certificate chain in PEM. It names the worker in the URI " +
      "`spiffe://<cluster>/hearth/<node.id>`; `hearth ca issue` creates one. If set, the agent " +
      "pulls blocks from other hosts and serves blocks to them. SIGHUP reloads it.",
  ),
  keyFile: optionalPath(
    "key_file",
    "/etc/hearth/peer.key",
    "The private key of `cert_file` in PEM. Only the agent should be able to read it.",
  ),
  caFile: optionalPath(
    "ca_file",
    "/etc/hearth/peers-ca.pem",
    "CA certificates in PEM that sign the certificates of this cluster's hosts. During a rotation " +
      "the file holds both the old and the new one.",
  ),
  cluster,
  listenStream: withDefault({
    key: "listen_stream",
    kind: listenOrOffKind,
    defaultValue: "0.0.0.0:7172",
    doc:
      "Listen address of the stream transport (TLS over TCP). Peers need a certificate of this " +
      "cluster. Block data uses the port two above (7174), encrypted record by record; a firewall " +
      "must allow both. `off` does not serve this transport.",
  }),
  listenQuic: withDefault({
    key: "listen_quic",
    kind: listenOrOffKind,
    defaultValue: "0.0.0.0:7173",
    doc: "Listen address of the QUIC transport (UDP). `off` does not serve this transport.",
  }),
  listenRdma,
  advertise,
  peers,
  summaryMs: withDefault({
    key: "summaries",
    kind: orOff(durationKind({ min: 200, max: 10 * MINUTE_MS, example: "3s" })),
    defaultValue: "3s",
    doc:
      "Interval at which the agent fetches residency summaries from peers in the background: one " +
      "for each namespace, 1.5 to 2 bytes per block and at most 8MiB, nothing if unchanged. " +
      "`off`: engines get blocks only from hosts that the router names.",
  }),
  transports,
  cipher,
  trustedNetwork: withDefault({
    key: "trusted_network",
    kind: booleanKind,
    defaultValue: false,
    doc:
      "Declares that the network between the hosts is private; see `cipher`. Required for RDMA, " +
      "which is never encrypted.",
  }),
  bytesMax,
  progressMs: withDefault({
    key: "progress",
    kind: durationKind({ min: 50, max: MINUTE_MS, example: "2s" }),
    defaultValue: "2s",
    reload: true,
    doc:
      "Timeout of connecting to a peer, and of a pull without progress; after it another peer is " +
      "tried. Raise it on a slow or lossy network.",
  }),
  cooldownMaxMs: withDefault({
    key: "cooldown_max",
    kind: durationKind({ min: 50, max: 60 * MINUTE_MS, example: "1m" }),
    defaultValue: "1m",
    reload: true,
    doc:
      "Maximum time for which a peer is avoided after failures: 1 s after the first one, doubled at " +
      "each further failure. A peer that has recovered is used again within this time.",
  }),
  prefillTokensPerSecond: optional({
    key: "prefill_tokens_per_second",
    kind: integerKind({ min: 1, max: 100_000_000 }),
    reload: true,
    doc:
      "Prefill speed of an engine on this host. If set, blocks that would take longer to pull " +
      "than to recompute are not pulled for engines. If unset, all blocks are pulled.",
    example: 20_000,
  }),
  serveNamespaces: withDefault({
    key: "serve_namespaces",
    kind: namespacesKind,
    defaultValue: "any",
    reload: true,
    doc:
      "Namespaces whose blocks are served to peers: keys separated by commas, as `hearth ctl " +
      "status` shows them. `any`: every namespace that the client can name.",
  }),
});

/** Whether only this machine can connect; null: the transport is off. */
export function listensOnLoopback(listen: readonly (ListenAddress | "off")[]): boolean | null {
  const addresses = listen.filter((address) => address !== "off");
  return addresses.length === 0 ? null : addresses.every(({ loopback }) => loopback);
}

const library = optionalPath(
  "library",
  "/usr/lib/x86_64-linux-gnu/libibverbs.so.1",
  "Path of the verbs library, if the dynamic linker does not find `libibverbs.so.1`.",
);

export const rdmaSection = section("RDMA transport between hosts; see `peers.listen_rdma`.", {
  library,
  devices: withDefault({
    key: "devices",
    kind: rdmaDevicesKind,
    defaultValue: "any",
    doc:
      "Devices to use, by the names that `ibv_devices` shows, separated by commas. Leave out " +
      "devices on networks for other purposes, such as storage.",
  }),
  gidIndex: optional({
    key: "gid_index",
    kind: integerKind({ min: 0, max: 255 }),
    doc:
      "GID index of each port. If unset: RoCE v2 is preferred, and link-local addresses are never " +
      "used.",
    example: 3,
  }),
  rails: withDefault({
    key: "rails",
    kind: integerKind({ min: 1, max: 8 }),
    defaultValue: 1,
    doc:
      "Maximum ports over which blocks of one peer are read at the same time; each must share a " +
      "network with a port of the peer. Peers are always spread over all ports.",
  }),
  trafficClass: withDefault({
    key: "traffic_class",
    kind: integerKind({ min: 0, max: 255 }),
    defaultValue: 0,
    doc:
      "Traffic class of sent packets, with the DSCP in its upper six bits. Use the lossless class " +
      "if the network has one (often 106).",
  }),
});
