import { type Kind, pathKind, type TomlLiteral } from "../core/index.ts";
import type { SumCheck } from "./checks.ts";
import type { MachineFacts } from "./load.ts";

/** One key of a schema, with its location in the file and in the configuration. */
export interface SchemaKey {
  /** Path of its table: one part, or two in named tables. */
  readonly path: readonly string[];
  readonly section: string;
  readonly field: string;
  /** Dotted, as in `kv.ram_gib`. */
  readonly name: string;
  readonly spec: KeySpec<unknown>;
}

type AnyKeys = Readonly<Record<string, KeySpec<unknown>>>;

export interface SectionSpec<Keys = AnyKeys> {
  readonly doc: string;
  readonly keys: Keys;
}

/** Named tables of one shape: `[workers.gpu-01]`. */
export interface NamedSection extends SectionSpec {
  readonly nameKind: Kind<string>;
  readonly nameExample: string;
  /** Maximum number of tables. */
  readonly most: number;
}

/** One kind of configuration file, as the parser, the reference page and the reload use it. */
export interface ConfigBook {
  readonly sections: Readonly<Record<string, SectionSpec>>;
  /** Named tables. The configuration holds each as a list of objects with a `name`. */
  readonly named: Readonly<Record<string, NamedSection>>;
  /** Every key of `sections` in the order of the sample file. */
  readonly keys: readonly SchemaKey[];
  readonly sectionNames: readonly string[];
  /**
   * Keys of earlier releases by dotted name, each with the value that applies now or the key to set
   * instead.
   */
  readonly removed: Readonly<Record<string, string>>;
  readonly checks: readonly SumCheck<never>[];
  /** Keys of the sample file by dotted name, each with one line about it. */
  readonly sample: Readonly<Record<string, string>>;
  readonly words: {
    /** Title of the reference page. */
    readonly title: string;
    /** First line of the sample file. */
    readonly sample: string;
    /** Command line that uses the file. */
    readonly usage: string;
    readonly check: string;
    /** File of the reference page. */
    readonly reference: string;
  };
}

export function keysOf(
  path: readonly string[],
  { keys }: SectionSpec,
  section = path[0],
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

/** The key names that a file may use inside a section. */
export function keyNamesOf({ sections, named }: ConfigBook, section: string): string[] {
  const keys = sections[section]?.keys ?? named[section]?.keys ?? {};
  return Object.values(keys).map(({ key }) => key);
}

/** The value of a key in a configuration. */
export function valueAt(config: object, key: SchemaKey): unknown {
  return (config as Readonly<Record<string, Readonly<Record<string, unknown>>>>)[key.section][
    key.field
  ];
}

/** One named table in a configuration. */
export type NamedTable = Readonly<Record<string, unknown>> & { readonly name: string };

export function tablesOf(config: object, section: string): readonly NamedTable[] {
  return (config as Readonly<Record<string, readonly NamedTable[]>>)[section] ?? [];
}

/** Inputs of a derived default. */
export interface DeriveContext {
  readonly facts: MachineFacts;
  /** The value of a key that `needs` names; null if it is optional and unset. */
  value<Value>(key: string): Value;
}

/** The value of a key that the file does not set. */
export type DefaultValue<Value> =
  | { readonly is: "literal"; readonly literal: TomlLiteral }
  | {
      readonly is: "derived";
      readonly words: string;
      /** Dotted names of the keys that `from` reads. */
      readonly needs: readonly string[];
      /** Undefined if there is no value; null leaves an optional key unset. */
      from(context: DeriveContext): Value | undefined;
    }
  | { readonly is: "unset" }
  | { readonly is: "required" };

/** One key, as the parser, types, reference page, sample file and reload use it. */
export interface KeySpec<Value> {
  /** Name in the file. */
  readonly key: string;
  readonly kind: Kind<Value>;
  readonly defaultValue: DefaultValue<Value>;
  /** Whether SIGHUP applies a change; other keys need a restart. */
  readonly reload?: boolean;
  /** One paragraph: the effect of the key, and when to change it. */
  readonly doc: string;
  readonly example: TomlLiteral;
}

/** Infers the exact type of a section. */
export function section<const Keys extends AnyKeys>(doc: string, keys: Keys): SectionSpec<Keys> {
  return { doc, keys };
}

type Words = Pick<KeySpec<unknown>, "key" | "doc" | "reload">;

/** A key with a default in TOML notation. */
export function withDefault<Value>(
  spec: Words & { kind: Kind<Value>; defaultValue: TomlLiteral; example?: TomlLiteral },
): KeySpec<Value> {
  return {
    ...spec,
    defaultValue: { is: "literal", literal: spec.defaultValue },
    example: spec.example ?? spec.defaultValue,
  };
}

/** A key without a default; its value is null if it is unset. */
export function optional<Value>(
  spec: Words & { kind: Kind<Value>; example: TomlLiteral },
): KeySpec<Value | null> {
  return { ...spec, kind: spec.kind as Kind<Value | null>, defaultValue: { is: "unset" } };
}

/** Linux PATH_MAX without the terminating NUL. */
const PATH_BYTES_MAX = 4095;

/** The path of a file or folder; null if it is unset. */
export function optionalPath(
  key: string,
  example: string,
  doc: string,
  bytesMax = PATH_BYTES_MAX,
): KeySpec<string | null> {
  return optional({ key, kind: pathKind({ bytesMax, example }), doc, example });
}
