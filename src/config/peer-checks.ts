import { formatDuration } from "../core/index.ts";
import { exactBytes } from "./kinds.ts";
import { hostIsLoopback } from "./listen-address.ts";
import { mayUseRdma } from "./rdma-use.ts";
import type { Config } from "./schema.ts";
import { listensOnLoopback } from "./sections/peers.ts";
import { type SumCheck, unless } from "./sum-check.ts";

type Peers = Config["peers"];

/** What says whether RDMA is used. */
const RDMA_KEYS = ["peers.transport", "peers.trusted_network", "rdma.enabled"];

/** Rules of [peers]. */
export const PEER_CHECKS: readonly SumCheck[] = [
  {
    keys: ["peers.cert_file", "peers.key_file", "peers.ca_file"],
    find({ peers }) {
      const set = [peers.certFile, peers.keyFile, peers.caFile].filter((path) => path !== null);
      return unless(
        set.length === 0 || set.length === 3,
        "cert_file, key_file and ca_file belong together",
        "set all three (hearth ca makes them), or none",
      );
    },
  },
  {
    keys: ["peers.encrypt", "peers.trusted_network"],
    find: ({ peers }) =>
      unless(
        peers.encrypt || peers.trustedNetwork,
        "blocks would go over the network in the clear, and trusted_network is not set",
        "set trusted_network = true where nobody else is on it, or leave encrypt on",
      ),
  },
  {
    keys: RDMA_KEYS,
    find({ peers, rdma }) {
      if (peers.transports === "auto" || !peers.transports.includes("rdma")) return null;
      if (rdma.enabled === "off")
        return {
          what: "rdma is asked for, and rdma.enabled is off",
          instead: 'leave rdma out, or set enabled = "auto" below [rdma]',
        };
      return unless(
        peers.trustedNetwork,
        "rdma carries blocks in the clear, and trusted_network is not set",
        "set trusted_network = true where nobody else is on it, or leave rdma out",
      );
    },
  },
  {
    keys: ["peers.listen_stream", "peers.listen_quic"],
    find({ peers: { listenStream: stream, listenQuic: quic } }) {
      return unless(
        stream === "off" || quic === "off" || stream.loopback === quic.loopback,
        "one transport is for this machine alone, and the other for all",
        "listen on loopback with both or with none, or turn one off",
      );
    },
  },
  {
    keys: ["peers.lanes_port", "peers.listen_stream"],
    find: ({ peers: { lanesPort, listenStream } }) =>
      unless(
        listenStream === "off" || lanesPort === 0 || lanesPort !== listenStream.port,
        `${lanesPort} is the port of listen_stream, too`,
        "requests and payload need a TCP port each: use another one, or 0",
      ),
  },
  {
    keys: ["peers.listen_rdma", "peers.lanes_port", "peers.listen_stream", ...RDMA_KEYS],
    find(config) {
      const { listenRdma, listenStream, lanesPort } = config.peers;
      // Its standard must be in nobody's way who has no use for it.
      if (!mayUseRdma(config)) return null;
      if (listenRdma === "off" || listenRdma.port === 0 || listenStream === "off") return null;
      return unless(
        listenRdma.port !== listenStream.port && listenRdma.port !== lanesPort,
        `${listenRdma.port} is the port of listen_stream or lanes_port, too`,
        'use another one, or "off"',
      );
    },
  },
  {
    keys: ["peers.advertise", "peers.listen_stream", "peers.listen_quic"],
    find({ peers: { advertise, listenStream, listenQuic } }) {
      const loopback = listensOnLoopback([listenStream, listenQuic]);
      if (advertise === null || loopback === null) return null;
      const isHere = hostIsLoopback(advertise);
      if (isHere === loopback) return null;
      return isHere
        ? {
            what: `${advertise} means the other host itself wherever it is read elsewhere`,
            instead: "write the address or name that leads here from the other hosts",
          }
        : {
            what: `nobody reaches ${advertise} here: this host listens on loopback alone`,
            instead: 'listen on that address or on "0.0.0.0", or leave advertise out',
          };
    },
  },
  {
    keys: ["peers.advertise", "peers.listen_stream", "peers.listen_quic", "nats.url"],
    find: ({ peers, nats }) =>
      unless(
        !isAnnounced(peers, nats.url) || peers.advertise !== null,
        "is missing, and this machine's name is none that others could look up",
        'write advertise = "10.0.0.1" below [peers], or announce = "off"',
      ),
  },
  notAbove("peer_bytes_max", (peers) => peers.peerBytesMax),
  notAbove("namespace_bytes_max", (peers) => peers.namespaceBytesMax),
  {
    keys: ["peers.cooldown", "peers.cooldown_max"],
    find({ peers }) {
      const [first, last] = [peers.cooldownMs, peers.cooldownMaxMs].map(formatDuration);
      return unless(
        peers.cooldownMs <= peers.cooldownMaxMs,
        `cooldown ${first} is above cooldown_max ${last}`,
        `use at most ${last}, or a longer cooldown_max`,
      );
    },
  },
];

function isAnnounced(peers: Peers, url: string | null): boolean {
  const listens = peers.listenStream !== "off" || peers.listenQuic !== "off";
  return peers.certFile !== null && listens && url !== null && peers.announceMs > 0;
}

function notAbove(key: string, pick: (peers: Peers) => number): SumCheck {
  return {
    keys: [`peers.${key}`, "peers.bytes_max"],
    find({ peers }) {
      const [part, all] = [exactBytes(pick(peers)), exactBytes(peers.bytesMax)];
      return unless(
        pick(peers) <= peers.bytesMax,
        `${key} ${part} is above bytes_max ${all}`,
        `use at most ${all}, or a larger bytes_max`,
      );
    },
  };
}
