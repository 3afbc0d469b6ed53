import { createBook } from "../book.ts";
import { logSection } from "../sections/log.ts";
import type { KeySpec } from "../spec.ts";
import { ROUTER_CHECKS } from "./checks.ts";
import { eventsSection } from "./events-section.ts";
import { modelTables } from "./model-section.ts";
import { apiSection, natsSection, replicasSection } from "./other-sections.ts";
import { policiesSection } from "./policies-section.ts";
import { proxySection } from "./proxy-section.ts";
import { routerSection } from "./router-section.ts";
import { workerTables } from "./worker-section.ts";

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
