const UNDER_BENCH = [
  "core",
  "native",
  "http",
  "devices",
  "config",
  "observability",
  "events",
  "bus",
  "blocks",
  "identity",
  "traces",
  "kvb",
  "index",
  "leases",
  "tiers",
  "peers",
  "engine",
  "control",
  "client",
  "zmtp",
  "kvevents",
  "feed",
  "router",
  "proxy",
  "replay",
];

/**
 * Who may import whom inside `src/`. Bottom first: a folder may name only folders above its own
 * line, so the table cannot hold a circle. Rooms that are not built yet have their doors planned
 * here.
 */
export const FOLDERS: Readonly<Record<string, readonly string[]>> = {
  core: [],
  native: ["core"],
  config: ["core"],
  observability: ["core"],
  events: ["core"],
  bus: ["core"],
  blocks: ["core"],
  identity: ["core", "native"],
  traces: ["core"],
  http: ["core"],
  devices: ["core", "native", "observability"],
  kvb: ["core", "native"],
  index: ["core", "blocks", "native", "kvb"],
  leases: ["core", "blocks", "index", "events"],
  tiers: [
    "core",
    "blocks",
    "kvb",
    "index",
    "leases",
    "native",
    "identity",
    "observability",
    "events",
  ],
  peers: ["core", "native", "observability", "events", "bus", "blocks", "identity", "tiers"],
  engine: ["core", "tiers", "leases", "blocks", "identity", "native", "observability", "events"],
  control: ["core", "tiers", "leases", "index", "peers", "bus", "events", "observability"],
  client: ["core", "bus", "control"],
  zmtp: ["core"],
  kvevents: ["core", "events", "native", "identity", "zmtp"],
  feed: [
    "core",
    "native",
    "identity",
    "events",
    "bus",
    "zmtp",
    "kvevents",
    "tiers",
    "observability",
  ],
  router: ["core", "events", "bus", "native", "identity", "zmtp", "kvevents", "observability"],
  proxy: ["core", "http", "zmtp", "router", "observability"],
  replay: ["core", "tiers", "engine", "traces", "identity", "native", "kvb"],
  bench: UNDER_BENCH,
  api: [
    "core",
    "native",
    "http",
    "config",
    "tiers",
    "peers",
    "leases",
    "control",
    "events",
    "engine",
    "router",
    "proxy",
    "observability",
  ],
  app: [...UNDER_BENCH, "bench", "api"],
  cli: [...UNDER_BENCH, "bench", "api", "app"],
};

/** The one file outside the folders; it starts the command line and nothing else. */
export const MAIN = "src/main.ts";
export const MAIN_MAY_IMPORT: readonly string[] = ["cli", "core"];

/** Where a package is at home: what it speaks stops at that folder's door. */
export const PACKAGE_HOMES: Readonly<Record<string, readonly string[]>> = {
  "bun:ffi": ["native"],
  "bun:sqlite": ["index"],
  "drizzle-orm": ["index"],
  elysia: ["api"],
  "@elysiajs/openapi": ["api"],
  "prom-client": ["observability"],
  "smol-toml": ["config"],
  "@msgpack/msgpack": ["control", "kvevents"],
  "@huggingface/tokenizers": ["proxy"],
  "nats.ws": ["bus"],
  "@nats-io/transport-node": ["bus"],
  "@nats-io/jetstream": ["bus"],
  "@nats-io/kv": ["bus"],
  "@nats-io/obj": ["bus"],
  "@nats-io/services": ["bus"],
};

/** Time, chance and timers come in as parameters; these spellings are for `src/core` only. */
export const SEAM: Readonly<Record<string, RegExp>> = {
  "Date.now": /\bDate\.now\b/,
  "new Date()": /\bnew Date\(\s*\)/,
  "Math.random": /\bMath\.random\b/,
  "performance.now": /\bperformance\.now\b/,
  setTimeout: /\bsetTimeout\b/,
  setInterval: /\bsetInterval\b/,
  setImmediate: /\bsetImmediate\b/,
  "Bun.sleep": /\bBun\.sleep(?:Sync)?\b/,
  "AbortSignal.timeout": /\bAbortSignal\.timeout\b/,
  "crypto.randomUUID": /\brandomUUID\b/,
};

/** Exceptions to the seam: path of a file to the spellings it may use, each with its reason. */
export const SEAM_EXCEPTIONS: Readonly<Record<string, readonly string[]>> = {};

/** Only the command line ends the process; everything else throws or returns. */
export const MAY_EXIT: readonly string[] = ["src/cli/", MAIN];
