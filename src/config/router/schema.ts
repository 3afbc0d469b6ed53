import { booleanKind, choiceKind, integerKind } from "../../core/index.ts";
import { formatListen, natsUrlKind } from "../address-kinds.ts";
import { API_CHECKS, NATS_CHECKS, type SumCheck, unless } from "../checks.ts";
import { diffBook, loadBook, type MachineFacts, type ReloadDiff } from "../load.ts";
import { type ConfigResult, type Overrides, parseBook } from "../parse.ts";
import { REMOVED_ROUTER_KEYS } from "../removed-keys.ts";
import { renderBook, renderConfigReference, renderSampleConfig } from "../render.ts";
import { apiAccessKeys, apiListen } from "../sections/api.ts";
import { natsFileKeys, natsInboxKeys } from "../sections/nats.ts";
import { logSection } from "../sections/node.ts";
import { createBook, type KeySpec, optional, optionalPath, section, withDefault } from "../spec.ts";
import { modelTables } from "./model-section.ts";
import { proxySection } from "./proxy-section.ts";
import { policiesSection, routerSection } from "./router-section.ts";
import { eventsSection, workerTables } from "./worker-section.ts";

const url = optional({
  key: "url",
  kind: natsUrlKind,
  doc:
    "NATS server for events of agents, commands to agents, and synchronisation of replicas of " +
    "this router; several servers are separated by commas, all TCP or all WebSocket. If unset, " +
    "the router uses only ZMQ events of engines and predictions.",
  example: "nats://127.0.0.1:4222",
});

const commandProof = withDefault({
  key: "command_proof",
  kind: choiceKind(["none", "subject", "signature"]),
  defaultValue: "none",
  doc:
    "How this router proves to agents that it issued a command, if their `control.issuers` " +
    "lists `router-` and its id. `subject`: it publishes on `kv-control-{worker}.{issuer}`. " +
    "`signature`: it signs with `sign_nkey_file`.",
});

const signNkeyFile = optionalPath(
  "sign_nkey_file",
  "/etc/hearth/router-sign.nk",
  "A file that holds the seed of the nkey (SU...) that signs commands. Agents have the public " +
    "key. Only the router should be able to read the file.",
);

const natsSection = section("Agents and replicas over NATS.", {
  url,
  ...natsFileKeys("router"),
  ...natsInboxKeys("router"),
  commandProof,
  signNkeyFile,
});

const apiSection = section("HTTP API: decisions, workers, health and metrics.", {
  listen: apiListen(7181, "decisions, workers, health, metrics"),
  ...apiAccessKeys(
    "`read` queries, `operate` also routes, registers workers and sets thresholds, `purge` does " +
      "the same",
  ),
  busyStatus: withDefault({
    key: "busy_status",
    kind: integerKind({ min: 400, max: 599 }),
    defaultValue: 529,
    doc: "HTTP status of a request if all workers are busy; other routers use 503.",
  }),
});

const replicasSection = section("Several routers of one fleet.", {
  sync: withDefault({
    key: "sync",
    kind: booleanKind,
    defaultValue: false,
    doc: "Whether this router exchanges its routed requests with replicas over NATS.",
  }),
  resetStates: withDefault({
    key: "reset_states",
    kind: booleanKind,
    defaultValue: false,
    doc:
      "Start with an empty index: discard earlier streams and snapshots. Use it only on the " +
      "first router of a fleet, because other routers would disagree afterwards.",
  }),
  snapshotThreshold: withDefault({
    key: "snapshot_threshold",
    kind: integerKind({ min: 1, max: Number.MAX_SAFE_INTEGER }),
    defaultValue: 1_000_000,
    doc: "Number of changes after which the index is written to `events.state_dir` early.",
  }),
});

/** Rules over several keys of a router's file. */
const ROUTER_CHECKS: readonly SumCheck<RouterConfig>[] = [
  ...NATS_CHECKS,
  ...API_CHECKS,
  {
    keys: ["replicas.sync", "nats.url"],
    find: ({ replicas, nats }) =>
      unless(
        !replicas.sync || nats.url !== null,
        "replicas need NATS, and nats.url is not set",
        "write url below [nats], or remove it",
      ),
  },
  {
    keys: ["router.id"],
    find: ({ workers }) => {
      const unnamed = workers.find(({ model, url }) => model === null && url === null);
      if (unnamed === undefined) return null;
      const instead = "set its model, or the url of an engine that reports it";
      return { what: "has neither model nor url", instead, at: ["workers", unnamed.name] };
    },
  },
  {
    keys: ["nats.command_proof", "nats.sign_nkey_file"],
    find: ({ nats: { commandProof, signNkeyFile } }) =>
      unless(
        commandProof !== "signature" || signNkeyFile !== null,
        "command_proof is signature, and sign_nkey_file is not set",
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
        `${formatListen(api.listen)} is also the address of api.listen`,
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

/** A worker in the file; `name` is its worker id. */
export type ListedWorker = { readonly name: string } & ValuesOf<typeof workerTables.keys>;

/** A model in the file; `name` is the name of its table. */
export type ListedModel = { readonly name: string } & ValuesOf<typeof modelTables.keys>;

/** A router's configuration, validated and frozen. Sizes in bytes, durations in milliseconds. */
export type RouterConfig = Sections & {
  readonly workers: readonly ListedWorker[];
  readonly models: readonly ListedModel[];
};

/** The router's configuration file. */
export const ROUTER_BOOK = createBook({
  sections: ROUTER_SCHEMA,
  named: { workers: workerTables, models: modelTables },
  removed: REMOVED_ROUTER_KEYS,
  checks: ROUTER_CHECKS,
  sample: {
    "router.mode": "How to choose a worker: by cached blocks and load, or without looking at them.",
    "events.state_dir": "Folder that stores the index across restarts.",
    "nats.url": "NATS server for events of agents and the synchronisation of replicas.",
    "api.listen": "Address of decisions, health and metrics. Other addresses need a token file.",
    "replicas.sync": "Whether this router shares load and predictions with its replicas.",
    "proxy.listen": "Address of the OpenAI- and Anthropic-compatible front; off: not served.",
    "workers.model": "The model that this worker serves, as requests name it.",
    "workers.url": "URL of its OpenAI-compatible API.",
    "models.model": "The name of a model, as clients and workers use it.",
    "models.tokenizer": "Folder of its tokenizer files; without it prompts are routed by text.",
  },
  words: {
    title: "Configuration of routers",
    sample: "Hearth: configuration of a router.",
    usage: "hearth router --config FILE",
    check: "hearth check --router FILE",
    reference: "docs/reference/config-router.md",
  },
});

/** Like `parseConfig`, for a router's file. */
export function parseRouterConfig(
  source: string,
  file: string,
  facts: MachineFacts,
  overrides: Overrides = {},
): ConfigResult<RouterConfig> {
  return parseBook<RouterConfig>(ROUTER_BOOK, source, file, facts, overrides);
}

/** Like `loadConfig`, for a router's file. */
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
