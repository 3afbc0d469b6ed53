import {
  type ConfigBook,
  keysOf,
  type NamedTable,
  type SchemaKey,
  tablesOf,
  valueAt,
} from "./book.ts";
import { AGENT_BOOK, type Config } from "./schema.ts";

/** One key whose value differs, with both values as the file would write them. */
export interface KeyChange {
  /** Dotted, as in `kv.high_water`. */
  readonly key: string;
  readonly from: string;
  readonly to: string;
}

export interface ReloadDiff<C = Config> {
  /** Takes effect now. */
  readonly changed: readonly KeyChange[];
  /** Waits for a restart; until then the old value holds. */
  readonly needsRestart: readonly KeyChange[];
  /** `old` with what takes effect now: the configuration to go on with. */
  readonly effective: C;
}

/** A value of a key as TOML, without secrets; "unset" where it has none. */
export function literalOf({ spec: { kind } }: SchemaKey, value: unknown): string {
  return value === null ? "unset" : JSON.stringify((kind.show ?? kind.write)(value));
}

function isSame({ spec: { kind } }: SchemaKey, a: unknown, b: unknown): boolean {
  return a === null || b === null ? a === b : kind.write(a) === kind.write(b);
}

/** What SIGHUP changes of an agent, and what it cannot. */
export function diffReload(old: Config, next: Config): ReloadDiff {
  return diffBook(AGENT_BOOK, old, next);
}

/** The same for any kind of file. Tables with names of their own take effect at once. */
export function diffBook<C extends object>(book: ConfigBook, old: C, next: C): ReloadDiff<C> {
  const changed: KeyChange[] = [];
  const needsRestart: KeyChange[] = [];
  const effective: Record<string, Record<string, unknown>> = {};
  for (const key of book.keys) {
    const [before, after] = [valueAt(old, key), valueAt(next, key)];
    if (!isSame(key, before, after)) {
      const change = { key: key.name, from: literalOf(key, before), to: literalOf(key, after) };
      (key.spec.reload ? changed : needsRestart).push(change);
    }
    effective[key.section] ??= {};
    effective[key.section]![key.field] = valueAt(key.spec.reload ? next : old, key);
  }
  for (const section of Object.values(effective)) Object.freeze(section);
  const named: Record<string, readonly NamedTable[]> = {};
  for (const section of Object.keys(book.named)) {
    changed.push(...namedChanges(book, section, tablesOf(old, section), tablesOf(next, section)));
    named[section] = tablesOf(next, section);
  }
  const whole = Object.freeze({ ...effective, ...named }) as C;
  return { changed, needsRestart, effective: whole };
}

function namedChanges(
  book: ConfigBook,
  section: string,
  old: readonly NamedTable[],
  next: readonly NamedTable[],
): KeyChange[] {
  const keys = keysOf([section], book.named[section]!);
  const shown = (table: NamedTable | undefined) => {
    if (table === undefined) return "unset";
    const pairs = keys.map((key) => `${key.spec.key} = ${literalOf(key, table[key.field])}`);
    return `{ ${pairs.filter((pair) => !pair.endsWith(" = unset")).join(", ")} }`;
  };
  const names = new Set([...old, ...next].map(({ name }) => name));
  return [...names].flatMap((name) => {
    const [from, to] = [old, next].map((list) => shown(list.find((one) => one.name === name)));
    return from === to ? [] : [{ key: `${section}.${name}`, from: from!, to: to! }];
  });
}
