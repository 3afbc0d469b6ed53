import fc from "fast-check";
import { type Config, deriveBlocksMax, parseConfig } from "../../src/config/index.ts";
import { arbitraryEngineEvents, arbitraryEvents, eventsOf } from "./arbitrary-events.ts";
import { arbitraryPeers } from "./arbitrary-peers.ts";

const MIB = 2 ** 20;
const PAGE = 4096;

export const NO_FACTS = { hostname: "test-host", memoryBytes: null };

/** The configuration of `text`; throws with the problems where it is refused. */
export function configOf(
  text: string,
  facts = NO_FACTS as Parameters<typeof parseConfig>[2],
): Config {
  const result = parseConfig(text, "test.toml", facts);
  if (!result.ok) throw new Error(JSON.stringify(result.problems, null, 1));
  return result.config;
}

const word = <T extends string | number>(...words: T[]) => fc.constantFrom(...words);
const absolutePath = (max: number) =>
  fc.stringMatching(/^[ !#-~]{1,80}$/).map((tail) => `/${tail.replaceAll("/", "_").slice(0, max)}`);

const listen = fc
  .tuple(
    word("127.0.0.1", "127.8.9.10", "::1", "localhost", "0.0.0.0", "::", "gpu-1.example"),
    fc.nat(65_535),
  )
  .map(([host, port]) => ({
    host,
    port,
    loopback: host.startsWith("127.") || host === "::1" || host === "localhost",
  }));

/** Valid configurations of every shape, all sums among them. */
export const arbitraryConfig: fc.Arbitrary<Config> = fc
  .record({
    node: fc.record({ id: fc.stringMatching(/^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$/) }),
    ramPages: fc.integer({ min: MIB / PAGE, max: 2 ** 28 }),
    highWater: fc.double({ min: 0.05, max: 1, noNaN: true }),
    lockMemory: word("try", "require", "off"),
    hugePages: word("try", "require", "off"),
    ramHandover: fc.boolean(),
    policy: word("hearth", "lru"),
    ssd: fc.option(
      fc.record({
        dir: absolutePath(60),
        pages: fc.integer({ min: MIB / PAGE, max: 2 ** 30 }),
        indexDir: fc.option(absolutePath(60)),
      }),
    ),
    ssdTtlMs: word(0, 1000, 604_800_000),
    writePolicy: word("write_through", "write_through_selective", "write_back"),
    ssdIo: word("auto", "io_uring", "threads"),
    ssdWriteQueueBytes: fc.integer({ min: MIB, max: 2 ** 36 }),
    scrubBytesPerSecond: word(0, 4096, 2 ** 24),
    sessionIdleMs: fc.integer({ min: 1000, max: 86_400_000 }),
    blocks: fc.option(fc.integer({ min: 1, max: 2 ** 27 })),
    socket: absolutePath(60),
    socketGroup: fc.option(word("hearth", "_svc", "1000")),
    clientsMax: fc.integer({ min: 1, max: 4096 }),
    leaseMs: fc.integer({ min: 1000, max: 3_600_000 }),
    acquireShare: fc.double({ min: 0.001, max: 0.999, noNaN: true }),
    listen,
    tokenFile: absolutePath(80),
    access: word("none", "token", "tokens", "certificates"),
    apiRole: word("read", "operate", "purge"),
    hasTls: fc.boolean(),
    pinShares: fc
      .tuple(
        fc.double({ min: 0, max: 0.95, noNaN: true }),
        fc.double({ min: 0, max: 1, noNaN: true }),
      )
      .map(([pinShare, part]) => ({ pinShare, pinShareOwner: pinShare * part })),
    leaseTtlMaxMs: fc.integer({ min: 1_000, max: 86_400_000 }),
    warmPages: fc.integer({ min: 1, max: 2 ** 30 }),
    auditFile: fc.option(absolutePath(60)),
    natsUrl: fc.option(word("nats://a:4222", "wss://b.example/x,wss://c", "tls://u:p@d")),
    natsFile: word("none", "creds", "nkey", "token", "user"),
    hasNatsTls: fc.boolean(),
    broadcast: fc.uniqueArray(word("Warm", "Prune", "Cache", "Think", "Pause", "RenewLease")),
    natsFlag: fc.boolean(),
    peers: arbitraryPeers,
    events: arbitraryEvents,
    engineEvents: arbitraryEngineEvents,
    keyDir: fc.option(absolutePath(60)),
    gpu: fc.record({
      enabled: word("auto", "off", "require"),
      library: fc.option(absolutePath(60)),
    }),
    rdma: fc.record({
      library: fc.option(absolutePath(60)),
      devices: fc.constantFrom<Config["rdma"]["devices"]>("any", ["mlx5_0"], ["rxe0", "mlx5_1"]),
      gidIndex: fc.option(fc.nat(255)),
      rails: fc.integer({ min: 1, max: 8 }),
      trafficClass: fc.nat(255),
    }),
    level: word("error", "warn", "info", "debug"),
    format: word("text", "json"),
  })
  .map((draw) => {
    const ramBytes = draw.ramPages * PAGE;
    const ssdBytes = draw.ssd === null ? null : draw.ssd.pages * PAGE;
    return {
      node: draw.node as Config["node"],
      kv: {
        ramBytes,
        policy: draw.policy,
        highWater: draw.highWater,
        lockMemory: draw.lockMemory,
        hugePages: draw.hugePages,
        blocksMax:
          draw.blocks === null
            ? deriveBlocksMax({ ramBytes, ssdBytes })
            : Math.max(64, draw.blocks),
        ramHandover: draw.ramHandover,
        mirrorPulls: draw.natsFlag,
        ...ssdOf(draw),
        ssdBytes,
      },
      engine: {
        socket: draw.socket,
        ...{ socketGroup: draw.socketGroup, commandRole: draw.apiRole },
        clientsMax: draw.clientsMax,
        leaseMs: draw.leaseMs,
        acquireDeadlineMs: Math.max(
          1,
          Math.floor(Math.min(60_000, draw.leaseMs) * draw.acquireShare),
        ),
        sessionIdleMs: draw.sessionIdleMs,
        ...draw.engineEvents,
      },
      gpu: draw.gpu,
      namespaces: { keyDir: draw.keyDir },
      rdma: draw.rdma,
      control: {
        ...draw.pinShares,
        leaseTtlMaxMs: draw.leaseTtlMaxMs,
        warmBytesMax: draw.warmPages * PAGE,
        issuers: draw.natsFlag ? [{ name: "router-1", role: "operate" as const, key: null }] : [],
        auditFile: draw.auditFile,
      },
      nats: natsOf(draw),
      peers: draw.peers,
      events: eventsOf(draw.events, draw.natsUrl !== null, draw.engineEvents),
      api: apiOf(draw),
      log: { level: draw.level, format: draw.format },
    };
  });

interface SsdDraw {
  readonly ssd: { readonly dir: string; readonly indexDir: string | null } | null;
  readonly ssdTtlMs: number;
  readonly writePolicy: Config["kv"]["writePolicy"];
  readonly ssdIo: Config["kv"]["ssdIo"];
  readonly ssdWriteQueueBytes: number;
  readonly scrubBytesPerSecond: number;
}

function ssdOf(draw: SsdDraw) {
  const { ssdTtlMs, writePolicy, ssdIo, ssdWriteQueueBytes, scrubBytesPerSecond } = draw;
  const dir = draw.ssd?.dir ?? null;
  const indexDir = draw.ssd?.indexDir ?? null;
  return {
    ssdDir: dir,
    indexDir:
      dir === null ? null : indexDir === null || indexDir === dir ? `${dir}/index` : indexDir,
    ssdTtlMs,
    writePolicy,
    ssdIo,
    ssdWriteQueueBytes,
    scrubBytesPerSecond,
  };
}

interface ApiDraw {
  readonly listen: Config["api"]["listen"];
  readonly tokenFile: string;
  readonly access: "none" | "token" | "tokens" | "certificates";
  readonly apiRole: Config["api"]["loopbackRole"];
  readonly hasTls: boolean;
}

function apiOf({ listen, tokenFile, access, apiRole, hasTls }: ApiDraw): Config["api"] {
  const file = (isThere: boolean, end = "") => (isThere ? `${tokenFile}${end}` : null);
  const isHttps = hasTls || access === "certificates";
  return {
    listen,
    socket: hasTls ? null : `${tokenFile}.sock`,
    socketGroup: hasTls ? "ops" : null,
    socketRole: apiRole,
    loopbackRole: apiRole,
    tokenFile: file(access === "token" || (access === "none" && !listen.loopback)),
    tokensFile: file(access === "tokens"),
    tlsCertFile: file(isHttps, ".pem"),
    tlsKeyFile: file(isHttps, ".key"),
    tlsClientCaFile: file(access === "certificates"),
    tlsClientRole: apiRole,
    flushByGet: hasTls,
  };
}

interface NatsDraw {
  readonly natsUrl: string | null;
  readonly natsFile: "none" | "creds" | "nkey" | "token" | "user";
  readonly hasNatsTls: boolean;
  readonly natsFlag: boolean;
  readonly hasTls: boolean;
  readonly tokenFile: string;
  readonly apiRole: Config["nats"]["role"];
  readonly broadcast: Config["nats"]["broadcast"];
}

function natsOf(draw: NatsDraw): Config["nats"] {
  return {
    url: draw.natsUrl,
    caFile: draw.hasNatsTls ? draw.tokenFile : null,
    certFile: draw.hasNatsTls ? draw.tokenFile : null,
    keyFile: draw.hasNatsTls ? draw.tokenFile : null,
    credsFile: draw.natsFile === "creds" ? draw.tokenFile : null,
    nkeyFile: draw.natsFile === "nkey" ? draw.tokenFile : null,
    tokenFile: draw.natsFile === "token" ? draw.tokenFile : null,
    userFile: draw.natsFile === "user" ? draw.tokenFile : null,
    inboxPrefix: draw.natsFlag ? "_INBOX" : "_INBOX_w.x",
    replyPrefixes: draw.natsFlag ? ["_INBOX"] : ["_INBOX_a", "_REPLY"],
    role: draw.apiRole,
    broadcast: draw.broadcast,
    receipts: draw.natsFlag,
    commandStream: draw.natsUrl !== null && draw.hasTls ? "KV_CONTROL" : null,
    workersBucket: draw.natsUrl !== null && draw.natsFlag ? "kv-workers" : null,
  };
}
