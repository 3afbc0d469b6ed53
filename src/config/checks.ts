import { join, relative } from "node:path";
import { formatDuration, quoteText } from "../core/index.ts";
import { hostIsLoopback, type ListenAddress } from "./address-kinds.ts";
import type { MachineFacts } from "./load.ts";
import type { Config } from "./schema.ts";
import { SSD_DIR_EXAMPLE } from "./sections/kv.ts";
import { listensOnLoopback } from "./sections/peers.ts";

interface Finding {
  readonly what: string;
  readonly instead: string;
  /** The table or key in the file that is wrong; defaults to the first of the check's keys. */
  readonly at?: readonly string[];
}

/** A constraint over several keys, or over a key and the machine. */
export interface SumCheck<C = Config> {
  /** Dotted names. The finding is reported at the first one that the file sets. */
  readonly keys: readonly string[];
  find(config: C, facts: MachineFacts, value: (name: string) => unknown): Finding | null;
}

/** Null if the rule holds, else the finding. */
export function unless(holds: boolean, what: string, instead: string): Finding | null {
  return holds ? null : { what, instead };
}

/** A key that has no effect without another key of its section. `write` sets the other key. */
function needs(section: string, key: string, other: string, write = other): SumCheck<object> {
  const keys = [`${section}.${key}`, `${section}.${other}`] as const;
  return {
    keys,
    find: (_config, _facts, value) =>
      unless(
        value(keys[0]) === null || value(keys[1]) !== null,
        `has no effect without ${other}`,
        `write ${write} below [${section}], or remove it`,
      ),
  };
}

/** Keys of a section of which all or none are set. */
function setTogether(section: string, names: readonly string[], fix: string): SumCheck<object> {
  const keys = names.map((name) => `${section}.${name}`);
  return {
    keys,
    find(_config, _facts, value) {
      const set = keys.filter((key) => value(key) !== null);
      const what = `${names.join(" and ")} must be set together`;
      return unless(set.length === 0 || set.length === keys.length, what, fix);
    },
  };
}

/** Maximum bytes of one entry of the block table, all columns included. */
const TABLE_ENTRY_BYTES = 220;

/** A path, relative to `ssd_dir`, in one of the 256 folders that hold block files. */
const SHARD = /^[0-9a-f]{2}(?:\/|$)/;

type Nats = Pick<
  Config["nats"],
  "certFile" | "keyFile" | "credsFile" | "nkeyFile" | "tokenFile" | "userFile"
>;

/** Rules of [nats], for agents and routers. */
export const NATS_CHECKS: readonly SumCheck<{ readonly nats: Nats }>[] = [
  setTogether("nats", ["cert_file", "key_file"], "set both or none"),
  {
    keys: ["nats.creds_file", "nats.nkey_file", "nats.token_file", "nats.user_file"],
    find({ nats }) {
      const set = [nats.credsFile, nats.nkeyFile, nats.tokenFile, nats.userFile];
      return unless(
        set.filter((path) => path !== null).length <= 1,
        "several kinds of credentials are set",
        "keep one of creds_file, nkey_file, token_file and user_file",
      );
    },
  },
];

/** Keys of [api] that agents and routers share. */
export type AccessConfig = Omit<
  Config["api"],
  "socket" | "socketGroup" | "socketRole" | "flushByGet"
>;

/** Rules of [api], for agents and routers. */
export const API_CHECKS: readonly SumCheck<{ readonly api: AccessConfig }>[] = [
  {
    keys: ["api.listen", "api.token_file"],
    find: ({ api }) =>
      unless(
        api.listen.loopback || (api.tokenFile ?? api.tokensFile ?? api.tlsClientCaFile) !== null,
        `${api.listen.host} can be reached from other machines, and api.token_file is not set`,
        'set api.token_file (or tokens_file, or tls_client_ca_file), or listen on "127.0.0.1:7171"',
      ),
  },
  setTogether("api", ["tls_cert_file", "tls_key_file"], "set both or neither"),
  {
    keys: ["api.tls_client_ca_file", "api.tls_cert_file"],
    find: ({ api }) =>
      unless(
        api.tlsClientCaFile === null || api.tlsCertFile !== null,
        "client certificates need HTTPS, and tls_cert_file is not set",
        "set tls_cert_file and tls_key_file",
      ),
  },
];

const PORT_MAX = 65_535;

/** Rules of [events], and of the events of engines. */
const EVENT_CHECKS: readonly SumCheck[] = [
  {
    keys: ["events.mode", "nats.url"],
    find: ({ events, nats }) =>
      unless(
        events.mode !== "stream" || nats.url !== null,
        "a stream needs a NATS server, and nats.url is not set",
        'write url below [nats], or use mode = "ring"',
      ),
  },
  {
    keys: ["events.zmq", "events.mode"],
    find: ({ events }) =>
      unless(
        events.zmq === null || events.mode !== "off",
        'has no effect with mode = "off"',
        'use mode = "ring", or remove it',
      ),
  },
  needs("events", "zmq_replay", "zmq"),
  {
    keys: ["events.zmq", "engine.kv_events"],
    find: ({ events, engine }) =>
      unless(
        events.zmq === null || engine.kvEvents !== null,
        "events over ZMQ carry tokens, which only the engine's own events contain",
        "set kv_events below [engine], or remove it",
      ),
  },
  ranksFit("events.zmq", ({ events }) => events.zmq),
  ranksFit("events.zmq_replay", ({ events }) => events.zmqReplay),
  ranksFit("engine.kv_events", ({ engine }) => engine.kvEvents),
  ranksFit("engine.kv_events_replay", ({ engine }) => engine.kvReplay),
  {
    keys: ["engine.kv_events", "engine.kv_events_model"],
    find: ({ engine }) =>
      unless(
        engine.kvEvents === null || engine.kvModel !== null,
        "events of an engine do not name its model, and kv_events_model is not set",
        "write kv_events_model below [engine], as requests name it",
      ),
  },
  needs("engine", "kv_events_replay", "kv_events"),
  needs("engine", "kv_events_model", "kv_events"),
];

/** Each rank needs its own port; Unix sockets do not support ranks. */
function ranksFit(key: string, pick: (config: Config) => string | null): SumCheck {
  return {
    keys: [key, "engine.kv_events_ranks"],
    find(config) {
      const endpoint = pick(config);
      const { kvRanks } = config.engine;
      if (endpoint === null || kvRanks === 1) return null;
      const port = /:([0-9]+)$/.exec(endpoint)?.[1];
      const fits = port !== undefined && Number(port) + kvRanks - 1 <= PORT_MAX;
      const what = `there are not enough ports for ${kvRanks} ranks`;
      return unless(fits, what, "use tcp:// with a lower port, or fewer kv_events_ranks");
    },
  };
}

type Peers = Config["peers"];

/** Block data of the stream transport uses the port that is this much above `listen_stream`. */
const LANES_PORT_OFFSET = 2;

/** TCP port of the block data of the stream transport; 0 if the ports are chosen freely. */
export function lanesPortOf({ port }: ListenAddress): number {
  return port === 0 ? 0 : port + LANES_PORT_OFFSET;
}

/** Keys that decide whether RDMA is used. */
const RDMA_KEYS = ["peers.transport", "peers.trusted_network"];

/** Rules of [peers]. */
const PEER_CHECKS: readonly SumCheck[] = [
  setTogether(
    "peers",
    ["cert_file", "key_file", "ca_file"],
    "set all three (hearth ca creates them), or none",
  ),
  {
    keys: ["peers.cipher", "peers.trusted_network"],
    find: ({ peers }) =>
      unless(
        peers.cipher !== "none" || peers.trustedNetwork,
        "blocks would be sent unencrypted, and trusted_network is not set",
        "set trusted_network = true if the network is private, or use another cipher",
      ),
  },
  {
    keys: RDMA_KEYS,
    find({ peers }) {
      if (peers.transports === "auto" || !peers.transports.includes("rdma")) return null;
      return unless(
        peers.trustedNetwork,
        "rdma does not encrypt blocks, and trusted_network is not set",
        "set trusted_network = true if the network is private, or leave rdma out",
      );
    },
  },
  {
    keys: ["peers.listen_stream", "peers.listen_quic"],
    find({ peers: { listenStream: stream, listenQuic: quic } }) {
      return unless(
        stream === "off" || quic === "off" || stream.loopback === quic.loopback,
        "one transport listens on loopback only, and the other does not",
        "listen on loopback with both or with none, or turn one off",
      );
    },
  },
  {
    keys: ["peers.listen_stream"],
    find: ({ peers: { listenStream } }) =>
      unless(
        listenStream === "off" || lanesPortOf(listenStream) <= PORT_MAX,
        "leaves no port for block data, which uses the port two above",
        `use a port of at most ${PORT_MAX - LANES_PORT_OFFSET}`,
      ),
  },
  {
    keys: ["peers.listen_rdma", "peers.listen_stream", ...RDMA_KEYS],
    find(config) {
      const { listenRdma, listenStream } = config.peers;
      // The default port must not conflict if RDMA is unused.
      if (!mayUseRdma(config)) return null;
      if (listenRdma === "off" || listenRdma.port === 0 || listenStream === "off") return null;
      return unless(
        listenRdma.port !== listenStream.port && listenRdma.port !== lanesPortOf(listenStream),
        `${listenRdma.port} is also the port of listen_stream, or the port of its block data`,
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
            what: `${advertise} is a loopback address, which does not lead here from other hosts`,
            instead: "write the address or name that leads here from the other hosts",
          }
        : {
            what: `other hosts cannot reach ${advertise}: this host listens on loopback only`,
            instead: 'listen on that address or on "0.0.0.0", or leave advertise out',
          };
    },
  },
  {
    keys: ["peers.advertise", "peers.listen_stream", "peers.listen_quic", "nats.url"],
    find: ({ peers, nats }) =>
      unless(
        !isAnnounced(peers, nats.url) || peers.advertise !== null,
        "is missing, and other hosts cannot resolve this machine's name",
        'write advertise = "10.0.0.1" below [peers]',
      ),
  },
];

function isAnnounced(peers: Peers, url: string | null): boolean {
  const listens = peers.listenStream !== "off" || peers.listenQuic !== "off";
  return peers.certFile !== null && listens && url !== null;
}

/**
 * All rules. The keys of a rule are all reloadable or none is, so that no reload can break a rule.
 */
export const SUM_CHECKS: readonly SumCheck[] = [
  {
    keys: ["control.pin_share_owner", "control.pin_share"],
    find: ({ control }) =>
      unless(
        control.pinShareOwner <= control.pinShare,
        `pin_share_owner ${control.pinShareOwner} is above pin_share ${control.pinShare}`,
        "set pin_share_owner to at most pin_share",
      ),
  },
  ...NATS_CHECKS,
  ...API_CHECKS,
  ...PEER_CHECKS,
  ...EVENT_CHECKS,
  needs("nats", "command_stream", "url"),
  needs("nats", "workers_bucket", "url"),
  {
    keys: ["engine.acquire_deadline", "engine.lease"],
    find({ engine }) {
      const deadline = formatDuration(engine.acquireDeadlineMs);
      const lease = formatDuration(engine.leaseMs);
      return unless(
        engine.acquireDeadlineMs < engine.leaseMs,
        `acquire_deadline ${deadline} is not below lease ${lease}`,
        `use less than ${lease}, or a longer lease`,
      );
    },
  },
  {
    keys: ["kv.ssd_dir", "kv.ssd_gib"],
    find: ({ kv }) =>
      unless(
        kv.ssdDir === null || kv.ssdBytes !== null,
        "an SSD tier needs a cap, and ssd_gib is not set",
        "write ssd_gib = 500 below [kv], or remove ssd_dir",
      ),
  },
  needs("kv", "ssd_gib", "ssd_dir", `ssd_dir = "${SSD_DIR_EXAMPLE}"`),
  needs("kv", "index_dir", "ssd_dir", `ssd_dir = "${SSD_DIR_EXAMPLE}"`),
  {
    keys: ["kv.index_dir", "kv.ssd_dir"],
    find({ kv: { indexDir, ssdDir } }) {
      if (indexDir === null || ssdDir === null) return null;
      const inside = relative(ssdDir, indexDir);
      return unless(
        inside !== "" && !SHARD.test(inside),
        inside === "" ? "is ssd_dir itself" : "lies in a folder that block files go into",
        `use ${quoteText(join(ssdDir, "index"))}, or a folder elsewhere`,
      );
    },
  },
  {
    keys: ["kv.ssd_gib", "kv.ssd_dir"],
    find({ kv }, facts) {
      if (kv.ssdDir === null || kv.ssdBytes === null) return null;
      const bytes = facts.fileSystemBytes?.(kv.ssdDir) ?? null;
      return unless(
        bytes === null || kv.ssdBytes <= bytes,
        `${gibUp(kv.ssdBytes)} is more than the whole file system of ssd_dir`,
        `use less than ${gibDown(bytes ?? 0)}, or another ssd_dir`,
      );
    },
  },
  {
    keys: ["kv.ram_gib"],
    find: ({ kv }, { memoryBytes }) =>
      unless(
        memoryBytes === null || kv.ramBytes <= memoryBytes,
        `${gibUp(kv.ramBytes)} is more than this machine or its control group allows`,
        `use less than ${gibDown(memoryBytes ?? 0)}, or raise the limit (MemoryMax=, container)`,
      ),
  },
  {
    keys: ["kv.blocks_max", "kv.ssd_gib", "kv.ram_gib"],
    find({ kv }, { memoryBytes }) {
      if (memoryBytes === null || kv.ramBytes > memoryBytes) return null;
      const table = kv.blocksMax * TABLE_ENTRY_BYTES;
      const beside = `${gibUp(kv.ramBytes)} for blocks and ${gibUp(table)} for the table of them`;
      return unless(
        kv.ramBytes + table <= memoryBytes,
        `${beside} are more than the ${gibDown(memoryBytes)} allowed here`,
        "lower kv.blocks_max or the RAM for blocks",
      );
    },
  },
];

function gibUp(bytes: number): string {
  return `${Math.ceil((bytes / 2 ** 30) * 100) / 100}GiB`;
}

function gibDown(bytes: number): string {
  return `${Math.floor((bytes / 2 ** 30) * 100) / 100}GiB`;
}

/** Whether `peers.transport` includes RDMA. */
export function wantsRdma({ peers: { transports } }: Pick<Config, "peers">): boolean {
  return transports === "auto" || transports.includes("rdma");
}

/** Whether the configuration allows RDMA, which transfers blocks unencrypted. */
export function mayUseRdma(config: Pick<Config, "peers">): boolean {
  return wantsRdma(config) && config.peers.trustedNetwork;
}
