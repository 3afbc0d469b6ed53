import { SUM_CHECKS } from "./checks.ts";
import { REMOVED_AGENT_KEYS } from "./removed-keys.ts";
import { apiSection } from "./sections/api.ts";
import { controlSection, namespacesSection } from "./sections/control.ts";
import { engineSection } from "./sections/engine.ts";
import { eventsSection } from "./sections/events.ts";
import { kvSection } from "./sections/kv.ts";
import { natsSection } from "./sections/nats.ts";
import { gpuSection, logSection, nodeSection } from "./sections/node.ts";
import { peersSection, rdmaSection } from "./sections/peers.ts";
import type { KeySpec } from "./spec.ts";
import { createBook, type SchemaKey } from "./spec.ts";

/**
 * The description of the configuration. The parser, the `Config` type, the reference page, the
 * sample file and the reload diff are derived from it.
 */
export const SCHEMA = {
  node: nodeSection,
  kv: kvSection,
  engine: engineSection,
  gpu: gpuSection,
  namespaces: namespacesSection,
  control: controlSection,
  nats: natsSection,
  peers: peersSection,
  rdma: rdmaSection,
  events: eventsSection,
  api: apiSection,
  log: logSection,
} as const;

type Schema = typeof SCHEMA;
type ValueOf<Spec> = Spec extends KeySpec<infer Value> ? Value : never;

/** The configuration, validated and frozen. Sizes in bytes, durations in milliseconds. */
export type Config = {
  readonly [Section in keyof Schema]: {
    readonly [Field in keyof Schema[Section]["keys"]]: ValueOf<Schema[Section]["keys"][Field]>;
  };
};

/** The agent's configuration file. */
export const AGENT_BOOK = createBook({
  sections: SCHEMA,
  removed: REMOVED_AGENT_KEYS,
  checks: SUM_CHECKS,
  sample: {
    "kv.ram_gib": "Memory for blocks in GiB. Leave room for the engine's own pinned memory.",
    "kv.ssd_dir": "Folder for blocks on SSD, preferably on its own NVMe file system.",
    "kv.ssd_gib": "Space of that folder in GiB. Leave a tenth of the file system free.",
    "engine.socket_group": "Group whose members may connect engines to the socket.",
    "control.audit_file": "A file that records each command: time, issuer and result.",
    "nats.url": "NATS server for commands, events and the discovery of peers.",
    "peers.cert_file": "This host's certificate, for blocks from and to other hosts (`hearth ca`).",
    "peers.key_file": "Its private key.",
    "peers.ca_file": "The authority that signs the certificates of all hosts.",
    "api.listen": "Address of health, metrics and status. Other addresses need a token file.",
  },
  words: {
    title: "Configuration",
    sample: "Hearth: configuration of one agent.",
    usage: "hearth agent --config FILE",
    check: "hearth check FILE",
    reference: "docs/reference/config-agent.md",
  },
});

/** Every key in the order of the sample file. */
export const SCHEMA_KEYS: readonly SchemaKey[] = AGENT_BOOK.keys;
