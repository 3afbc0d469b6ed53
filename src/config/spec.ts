import type { SumCheck } from "./checks.ts";
import type { Kind, TomlLiteral } from "./kinds.ts";
import type { MachineFacts } from "./load.ts";

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

/** What a default may be worked out from. */
export interface DeriveContext {
  readonly facts: MachineFacts;
  /** The value of a key that `needs` names; of an optional one that is unset, null. */
  value<Value>(key: string): Value;
}

/** What holds where the file does not say. */
export type Standard<Value> =
  | { readonly is: "literal"; readonly literal: TomlLiteral }
  | {
      readonly is: "derived";
      readonly words: string;
      /** Dotted names of keys whose values `from` asks for. */
      readonly needs: readonly string[];
      /** Undefined where it cannot be worked out; null, of an optional key: it stays unset. */
      from(context: DeriveContext): Value | undefined;
    }
  | { readonly is: "unset" }
  | { readonly is: "required" };

/** One key: all that parser, types, reference page, sample file and reload need to know of it. */
export interface KeySpec<Value> {
  /** Its name in the file. */
  readonly key: string;
  readonly kind: Kind<Value>;
  readonly standard: Standard<Value>;
  /** Whether SIGHUP may change it; everything else waits for a restart. */
  readonly reload: boolean;
  /** One paragraph: what it does and when to change it. */
  readonly doc: string;
  readonly example: TomlLiteral;
  /** A second way to write the same value; a file uses one of the two. */
  readonly also?: {
    readonly key: string;
    readonly kind: Kind<Value>;
    readonly doc: string;
    readonly example: TomlLiteral;
  };
}

export interface SectionSpec<Keys> {
  readonly doc: string;
  readonly keys: Keys;
}

type AnyKeys = Readonly<Record<string, KeySpec<unknown>>>;

/** Gives a section its exact type while holding it to the shape of one. */
export function section<const Keys extends AnyKeys>(doc: string, keys: Keys): SectionSpec<Keys> {
  return { doc, keys };
}

type Words = Pick<KeySpec<unknown>, "key" | "doc" | "reload">;

/** A key with a default that is written in the file's own words. */
export function withDefault<Value>(
  spec: Words & { kind: Kind<Value>; standard: TomlLiteral; example?: TomlLiteral },
): KeySpec<Value> {
  return {
    ...spec,
    standard: { is: "literal", literal: spec.standard },
    example: spec.example ?? spec.standard,
  };
}

/** A key that may stay unset; its value is then null. */
export function optional<Value>(
  spec: Words & { kind: Kind<Value>; example: TomlLiteral },
): KeySpec<Value | null> {
  return { ...spec, kind: spec.kind as Kind<Value | null>, standard: { is: "unset" } };
}
