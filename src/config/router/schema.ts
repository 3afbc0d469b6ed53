import { formatListen, natsUrlKind } from "../address-kinds.ts";
import { API_CHECKS, NATS_CHECKS, type SumCheck, unless } from "../checks.ts";
import { booleanKind, choiceKind, durationKind, integerKind, pathKind } from "../kinds.ts";
import { diffBook, loadBook, type MachineFacts, type ReloadDiff } from "../load.ts";
import { type ConfigResult, type Overrides, parseBook } from "../parse.ts";
import { renderBook, renderConfigReference, renderSampleConfig } from "../render.ts";
import { apiAccessKeys, apiLimitKeys, apiListen } from "../sections/api.ts";
import { natsFileKeys, natsInboxKeys, natsQueueKeys } from "../sections/nats.ts";
import { logSection } from "../sections/node.ts";
import { createBook, type KeySpec, optional, section, withDefault } from "../spec.ts";
import { modelTables } from "./model-section.ts";
import { proxySection } from "./proxy-section.ts";
import { policiesSection, routerSection } from "./router-section.ts";
import { eventsSection, workerTables } from "./worker-section.ts";

const PATH_BYTES_MAX = 4095;

const url = optional({
  key: "url",
  kind: natsUrlKind,
  reload: false,
  doc:
    "The NATS server over which agents tell what they hold and take commands, and replicas of " +
    "this router agree; several with commas between them, all TCP or all WebSocket. Unset: " +
    "engines' ZMQ events and predictions alone.",
  example: "nats://127.0.0.1:4222",
});

const commandProof = withDefault({
  key: "command_proof",
  kind: choiceKind(["none", "subject", "signature"]),
  standard: "none",
  reload: false,
  doc:
    "How this router proves to agents that a command is its own, where their `control.issuers` " +
    "lists `router-` and its id. `subject`: it publishes on `kv-control-{worker}.{issuer}`. " +
    "`signature`: it signs with `sign_nkey_file`.",
});

const signNkeyFile = optional({
  key: "sign_nkey_file",
  kind: pathKind({ bytesMax: PATH_BYTES_MAX, example: "/etc/hearth/router-sign.nk" }),
  reload: false,
  doc:
    "A file that holds the seed of the nkey (SU...) that signs commands. Agents have its public " +
    "half. Keep it readable for the router alone.",
  example: "/etc/hearth/router-sign.nk",
});

const natsSection = section("Agents and replicas over NATS.", {
  url,
  ...natsFileKeys("router"),
  ...natsQueueKeys("Messages"),
  ...natsInboxKeys("router"),
  commandProof,
  signNkeyFile,
});

const apiSection = section("The HTTP server for those who ask, and for monitoring.", {
  listen: apiListen(7181, "decisions, workers, health, metrics"),
  ...apiAccessKeys(
    "`read` shows and asks, `operate` also routes, registers workers and sets thresholds, " +
      "`purge` does the same",
  ),
  ...apiLimitKeys("256MiB"),
  busyStatus: withDefault({
    key: "busy_status",
    kind: integerKind({ min: 400, max: 599 }),
    standard: 529,
    reload: false,
    doc: "What a request is answered with where all workers are busy; other routers use 503.",
  }),
});

const replicasSection = section("Several routers of one fleet.", {
  sync: withDefault({
    key: "sync",
    kind: booleanKind,
    standard: false,
    reload: false,
    doc: "Whether this router tells its replicas over NATS what it routed, and hears them.",
  }),
  resetStates: withDefault({
    key: "reset_states",
    kind: booleanKind,
    standard: false,
    reload: false,
    doc:
      "Start with an empty picture: streams and snapshots of before are thrown away. For the " +
      "first router of a fleet alone: others would disagree afterwards.",
  }),
  snapshotThreshold: withDefault({
    key: "snapshot_threshold",
    kind: integerKind({ min: 1, max: Number.MAX_SAFE_INTEGER }),
    standard: 1_000_000,
    reload: false,
    doc: "Changes after which the picture is written to `events.state_dir` before its time.",
  }),
  announceMs: withDefault({
    key: "announce",
    kind: durationKind({ min: 100, max: 600_000, example: "1s" }),
    standard: "1s",
    reload: false,
    doc:
      "How often this router says that it is there and what it counts, so that replicas find out " +
      "where they differ. One that missed five is gone.",
  }),
});

/** Rules over several keys of a router's file. */
const ROUTER_CHECKS: readonly SumCheck<RouterConfig>[] = [
  ...NATS_CHECKS,
  ...API_CHECKS,
  {
    keys: ["events.stale_beats", "events.gone_beats"],
    find: ({ events: { staleBeats, goneBeats } }) =>
      unless(
        staleBeats < goneBeats,
        `stale_beats ${staleBeats} is not below gone_beats ${goneBeats}`,
        `use less than ${goneBeats}, or more gone_beats`,
      ),
  },
  {
    keys: ["replicas.sync", "nats.url"],
    find: ({ replicas, nats }) =>
      unless(
        !replicas.sync || nats.url !== null,
        "replicas speak over NATS, and nats.url is not set",
        "write url below [nats], or remove it",
      ),
  },
  {
    keys: ["router.id"],
    find: ({ workers }) => {
      const unnamed = workers.find(({ model, url }) => model === null && url === null);
      if (unnamed === undefined) return null;
      const instead = "name its model, or the url of an engine that says it";
      return { what: "has neither model nor url", instead, at: ["workers", unnamed.name] };
    },
  },
  {
    keys: ["proxy.body_limit", "proxy.body_budget"],
    find: ({ proxy: { bodyBytesMax, bodyBudgetBytes } }) =>
      unless(
        bodyBytesMax <= bodyBudgetBytes,
        `one body of ${bodyBytesMax} bytes is more than body_budget has for all of them`,
        "lower body_limit, or raise body_budget",
      ),
  },
  {
    keys: ["nats.command_proof", "nats.sign_nkey_file"],
    find: ({ nats: { commandProof, signNkeyFile } }) =>
      unless(
        commandProof !== "signature" || signNkeyFile !== null,
        "commands are to be signed, and sign_nkey_file is not set",
        'write sign_nkey_file below [nats], or use command_proof = "none"',
      ),
  },
  {
    keys: ["proxy.listen", "api.listen"],
    find: ({ proxy, api }) =>
      unless(
        proxy.listen === "off" ||
          proxy.listen.port === 0 ||
          formatListen(proxy.listen) !== formatListen(api.listen),
        `${formatListen(api.listen)} is where api.listen is, too`,
        "give the proxy a port of its own",
      ),
  },
];

export { readListedWorker } from "./worker-section.ts";

const ROUTER_SCHEMA = {
  router: routerSection,
  events: eventsSection,
  nats: natsSection,
  api: apiSection,
  replicas: replicasSection,
  policies: policiesSection,
  proxy: proxySection,
  log: logSection,
} as const;

type ValueOf<Spec> = Spec extends KeySpec<infer Value> ? Value : never;

type ValuesOf<Keys> = { readonly [Field in keyof Keys]: ValueOf<Keys[Field]> };

type Sections = {
  readonly [Section in keyof typeof ROUTER_SCHEMA]: ValuesOf<
    (typeof ROUTER_SCHEMA)[Section]["keys"]
  >;
};

/** A worker of the file; `name` is its worker id. */
export type ListedWorker = { readonly name: string } & ValuesOf<typeof workerTables.keys>;

/** What the file says of a model; `name` is that of its table. */
export type ListedModel = { readonly name: string } & ValuesOf<typeof modelTables.keys>;

/** A router's configuration, validated and frozen. Sizes in bytes, durations in milliseconds. */
export type RouterConfig = Sections & {
  readonly workers: readonly ListedWorker[];
  readonly models: readonly ListedModel[];
};

/** The router's file. */
export const ROUTER_BOOK = createBook({
  sections: ROUTER_SCHEMA,
  named: { workers: workerTables, models: modelTables },
  checks: ROUTER_CHECKS,
  words: {
    title: "Configuration of routers",
    sample: "Hearth: configuration of a router.",
    usage: "hearth router --config FILE",
    check: "hearth check --router FILE",
  },
});

/** As `parseConfig`, of a router's file. */
export function parseRouterConfig(
  source: string,
  file: string,
  facts: MachineFacts,
  overrides: Overrides = {},
): ConfigResult<RouterConfig> {
  return parseBook<RouterConfig>(ROUTER_BOOK, source, file, facts, overrides);
}

/** As `loadConfig`, of a router's file. */
export function loadRouterConfig(
  path: string,
  facts: MachineFacts,
  overrides: Overrides = {},
): Promise<ConfigResult<RouterConfig>> {
  return loadBook<RouterConfig>(ROUTER_BOOK, path, facts, overrides);
}

export function diffRouterReload(old: RouterConfig, next: RouterConfig): ReloadDiff<RouterConfig> {
  return diffBook(ROUTER_BOOK, old, next);
}

export const renderRouterConfig = (config: RouterConfig) => renderBook(ROUTER_BOOK, config);

export const renderRouterSample = () => renderSampleConfig(ROUTER_BOOK);

export const renderRouterReference = () => renderConfigReference(ROUTER_BOOK);
