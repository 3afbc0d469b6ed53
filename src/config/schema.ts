import { apiSection } from "./sections/api.ts";
import { controlSection } from "./sections/control.ts";
import { engineSection } from "./sections/engine.ts";
import { kvSection } from "./sections/kv.ts";
import { logSection } from "./sections/log.ts";
import { natsSection } from "./sections/nats.ts";
import { nodeSection } from "./sections/node.ts";
import { peersSection } from "./sections/peers.ts";
import type { KeySpec } from "./spec.ts";

/**
 * The one description of the configuration. The parser, the `Config` type, the reference page, the
 * sample file and the reload diff all come from here.
 */
export const SCHEMA = {
  node: nodeSection,
  kv: kvSection,
  engine: engineSection,
  control: controlSection,
  nats: natsSection,
  peers: peersSection,
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

/** One key of the schema with the place it has in file and config. */
export interface SchemaKey {
  readonly section: string;
  readonly field: string;
  /** Dotted, as in `kv.ram_gib`. */
  readonly name: string;
  readonly spec: KeySpec<unknown>;
}

/** Every key in the order of the sample file. */
export const SCHEMA_KEYS: readonly SchemaKey[] = Object.entries(SCHEMA).flatMap(
  ([section, { keys }]) =>
    Object.entries(keys as Readonly<Record<string, KeySpec<unknown>>>).map(([field, spec]) => ({
      section,
      field,
      name: `${section}.${spec.key}`,
      spec,
    })),
);

export const SECTION_NAMES: readonly string[] = Object.keys(SCHEMA);

/** The names a file may use inside a section, second ways to write a key among them. */
export function keyNamesOf(section: string): string[] {
  return SCHEMA_KEYS.filter((key) => key.section === section).flatMap(({ spec }) =>
    spec.also === undefined ? [spec.key] : [spec.key, spec.also.key],
  );
}

/** The value a config holds for a key of the schema. */
export function valueAt(config: Config, key: SchemaKey): unknown {
  return (config as Readonly<Record<string, Readonly<Record<string, unknown>>>>)[key.section]![
    key.field
  ];
}
