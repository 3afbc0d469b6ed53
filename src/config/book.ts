import type { Kind } from "./kinds.ts";
import type { KeySpec } from "./spec.ts";
import type { SumCheck } from "./sum-check.ts";

/** One key of a schema with the place it has in file and config. */
export interface SchemaKey {
  /** The table it stands in: one part, two in tables that have names of their own. */
  readonly path: readonly string[];
  readonly section: string;
  readonly field: string;
  /** Dotted, as in `kv.ram_gib`. */
  readonly name: string;
  readonly spec: KeySpec<unknown>;
}

interface AnySection {
  readonly doc: string;
  readonly keys: Readonly<Record<string, KeySpec<unknown>>>;
}

/** Tables of one shape, each with a name of its own: `[workers.gpu-01]`. */
export interface NamedSection extends AnySection {
  readonly nameKind: Kind<string>;
  readonly nameExample: string;
  /** So many tables at most. */
  readonly most: number;
}

/** One kind of configuration file: all that parser, reference page and reload need to know. */
export interface ConfigBook {
  readonly sections: Readonly<Record<string, AnySection>>;
  /** In the config they are lists of what the tables hold, each with its `name`. */
  readonly named: Readonly<Record<string, NamedSection>>;
  /** Every key of `sections` in the order of the sample file. */
  readonly keys: readonly SchemaKey[];
  readonly sectionNames: readonly string[];
  readonly checks: readonly SumCheck<never>[];
  readonly words: {
    /** Of the reference page. */
    readonly title: string;
    /** First line of the sample file. */
    readonly sample: string;
    /** How the file is named on the command line. */
    readonly usage: string;
    readonly check: string;
  };
}

export function keysOf(
  path: readonly string[],
  { keys }: AnySection,
  section = path[0]!,
): readonly SchemaKey[] {
  return Object.entries(keys).map(([field, spec]) => ({
    path,
    section,
    field,
    name: [...path, spec.key].join("."),
    spec,
  }));
}

export function createBook(
  book: Omit<ConfigBook, "keys" | "sectionNames" | "named"> & Partial<Pick<ConfigBook, "named">>,
): ConfigBook {
  const { sections, named = {} } = book;
  return {
    ...book,
    named,
    keys: Object.entries(sections).flatMap(([name, section]) => keysOf([name], section)),
    sectionNames: [...Object.keys(sections), ...Object.keys(named)],
  };
}

/** The names a file may use inside a section, second ways to write a key among them. */
export function keyNamesOf({ sections, named }: ConfigBook, section: string): string[] {
  const keys = sections[section]?.keys ?? named[section]?.keys ?? {};
  return Object.values(keys).flatMap((spec) =>
    spec.also === undefined ? [spec.key] : [spec.key, spec.also.key],
  );
}

/** What a config holds for a key of its book. */
export function valueAt(config: object, key: SchemaKey): unknown {
  return (config as Readonly<Record<string, Readonly<Record<string, unknown>>>>)[key.section]![
    key.field
  ];
}

/** One table of a named section, as a config holds it. */
export type NamedTable = Readonly<Record<string, unknown>> & { readonly name: string };

export function tablesOf(config: object, section: string): readonly NamedTable[] {
  return (config as Readonly<Record<string, readonly NamedTable[]>>)[section] ?? [];
}
