import { type BadFile, KV, kv } from "./bad-file.ts";

function peers(...lines: string[]): string {
  return `${KV}[peers]\n${lines.join("\n")}\n`;
}

function rdma(...lines: string[]): string {
  return `${KV}[rdma]\n${lines.join("\n")}\n`;
}

const FILES = 'cert_file = "/c"\nkey_file = "/k"\nca_file = "/a"';

/** [peers]: each key alone, and those that depend on another. */
export const PEERS: readonly BadFile[] = [
  ["peer without a worker", peers('peers = "10.0.0.2:7172"'), ["4:9 peers.peers", "is not a peer"]],
  ["peer without a name", peers('peers = "@10.0.0.2:1"'), ["4:9 peers.peers", "without a worker"]],
  ["peer without a port", peers('peers = "a@10.0.0.2"'), ["4:9 peers.peers", "is not a peer"]],
  [
    "peer with no port at all",
    peers('peers = "a@10.0.0.2:"'),
    ["4:9 peers.peers", "without a port"],
  ],
  ["peer with port 0", peers('peers = "a@h:0"'), ["4:9 peers.peers", "1 to 65535"]],
  ["peer with a port too far", peers('peers = "a@h:1/65536"'), ["4:9 peers.peers", "1 to 65535"]],
  ["peer whose worker has a dot", peers('peers = "a.b@h:1"'), ["4:9 peers.peers", "a worker id"]],
  [
    "peer at half an address",
    peers('peers = "a@10.0.0:1"'),
    ["4:9 peers.peers", "invalid address"],
  ],
  ["peer at IPv6 in no brackets", peers('peers = "a@::1:1"'), ["4:9 peers.peers", "is not a peer"]],
  [
    "peer at an address with a card",
    peers('peers = "a@[fe80::1%eth0]:1"'),
    ["4:9 peers.peers", "one network only"],
  ],
  ["peer at a link-local", peers('peers = "a@[FE80::1]:1"'), ["4:9 peers.peers", "one network"]],
  ["peer at no IPv6", peers('peers = "a@[x]:1"'), ["4:9 peers.peers", "invalid address or host"]],
  [
    "listener at a card's address",
    peers('listen_stream = "[fe80::1%eth0]:7172"'),
    ["4:17 peers.listen_stream", "one network only"],
  ],
  [
    "listener at a link-local",
    peers('listen_quic = "[febf::1]:7173"'),
    ["4:15 peers.listen_quic", "one network only"],
  ],
  [
    "advertised with a card",
    peers('advertise = "fd00::1%eth0"'),
    ["4:13 peers.advertise", "one network only"],
  ],
  [
    "advertised link-local",
    peers('advertise = "fe80::1"'),
    ["4:13 peers.advertise", "one network only"],
  ],
  ["peer twice", peers('peers = "a@h:1,a@g:1"'), ["4:9 peers.peers", "names a twice"]],
  ["peers with a hole", peers('peers = "a@h:1,,b@h:1"'), ["4:9 peers.peers", "is not a peer"]],
  ["peers as an array", peers('peers = ["a@h:1"]'), ["4:9 peers.peers", "an array"]],
  ["peer with a name for a port", peers('peers = "a@h:stream"'), ["4:9 peers.peers", "not a peer"]],
  ["cluster in capitals", peers('cluster = "Hearth"'), ["4:11 peers.cluster", "cluster name"]],
  ["cluster with a slash", peers('cluster = "a/b"'), ["4:11 peers.cluster", "cluster name"]],
  ["no transport", peers('transport = "none"'), ["4:13 peers.transport", 'the string "none"']],
  ["unknown transport", peers('transport = "tcp"'), ["4:13 peers.transport", '"auto"']],
  ["transports as an array", peers('transport = ["quic"]'), ["4:13 peers.transport", "an array"]],
  ["a transport twice wrong", peers('transport = "rdma,tcp"'), ["4:13 peers.transport", "tcp"]],
  ["RDMA in the clear", peers('transport = "rdma"'), ["4:13 peers.transport", "trusted_network"]],
  ["peer with four ports", peers('peers = "a@h:1/2/3/4"'), ["4:9 peers.peers", "is not a peer"]],
  ["peer with RDMA port 0", peers('peers = "a@h:1/2/0"'), ["4:9 peers.peers", "1 to 65535"]],
  [
    "RDMA device with a slash",
    rdma('devices = "mlx5_0/1"'),
    ["4:11 rdma.devices", "not a valid device"],
  ],
  ["RDMA devices as a number", rdma("devices = 5"), ["4:11 rdma.devices", "not a string"]],
  ["no rail", rdma("rails = 0"), ["4:9 rdma.rails", "too small"]],
  ["traffic class too large", rdma("traffic_class = 256"), ["4:17 rdma.traffic_class", "large"]],
  [
    "one port for requests of two transports",
    peers('listen_rdma = "0.0.0.0:7172"', "trusted_network = true"),
    ["4:15 peers.listen_rdma", "also the port of listen_stream"],
  ],
  ["unknown cipher", peers('cipher = "rc4"'), ["4:10 peers.cipher", "aegis-128l"]],
  ["listener without a port", peers('listen_quic = "::"'), ["4:15 peers.listen_quic", '"off"']],
  ["listener as a number", peers("listen_stream = 7172"), ["4:17 peers.listen_stream", '"off"']],
  [
    "advertised with a port",
    peers('advertise = "10.0.0.1:7172"'),
    ["4:13 peers.advertise", "is not a host"],
  ],
  ["advertised number", peers("advertise = 10"), ["4:13 peers.advertise", "not a host"]],
  [
    "no port for block data",
    peers('listen_stream = "0.0.0.0:65534"'),
    ["4:17 peers.listen_stream", "at most 65533"],
  ],
  [
    "half a namespace",
    peers('serve_namespaces = "abcd"'),
    ["4:20 peers.serve_namespaces", "not a valid namespace key"],
  ],
  [
    "namespaces as an array",
    peers("serve_namespaces = []"),
    ["4:20 peers.serve_namespaces", "an array"],
  ],
  ["no time for progress", peers('progress = "1ms"'), ["4:12 peers.progress", "too small"]],
  [
    "no prefill",
    peers("prefill_tokens_per_second = 0"),
    ["4:29 peers.prefill_tokens_per_second", "small"],
  ],
  ["a word for mirror_pulls", kv('mirror_pulls = "on"'), ["3:16 kv.mirror_pulls", "not a boolean"]],
  [
    "a certificate for peers alone",
    peers('cert_file = "/c"'),
    ["4:13 peers.cert_file", "all three"],
  ],
  [
    "no authority for peers",
    peers('cert_file = "/c"', 'key_file = "/k"'),
    ["4:13 peers.cert_file", "must be set together"],
  ],
  ["unencrypted", peers('cipher = "none"'), ["4:10 peers.cipher", "trusted_network = true"]],
  [
    "one listener for all and one for nobody",
    peers('listen_quic = "127.0.0.1:1"'),
    ["4:15 peers.listen_quic", "on loopback only"],
  ],
  [
    "advertised to itself",
    peers('advertise = "localhost"'),
    ["4:13 peers.advertise", "a loopback address"],
  ],
  [
    "advertised and not listening there",
    peers('advertise = "gpu-1"', 'listen_stream = "127.0.0.1:1"', 'listen_quic = "off"'),
    ["4:13 peers.advertise", "loopback only"],
  ],
  [
    "two things wrong with peers",
    peers(FILES, 'cipher = "x"', "advertise = 10"),
    ["7:10 peers.cipher", "aegis-128l"],
    ["8:13 peers.advertise", "not a host"],
  ],
];
