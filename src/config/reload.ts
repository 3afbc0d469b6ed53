import { type Config, SCHEMA_KEYS, type SchemaKey, valueAt } from "./schema.ts";

/** One key whose value differs, with both values as the file would write them. */
export interface KeyChange {
  /** Dotted, as in `kv.high_water`. */
  readonly key: string;
  readonly from: string;
  readonly to: string;
}

export interface ReloadDiff {
  /** Takes effect now. */
  readonly changed: readonly KeyChange[];
  /** Waits for a restart; until then the old value holds. */
  readonly needsRestart: readonly KeyChange[];
  /** `old` with what takes effect now: the configuration to go on with. */
  readonly effective: Config;
}

/** A value of a key as TOML, without secrets; "unset" where it has none. */
export function literalOf({ spec: { kind } }: SchemaKey, value: unknown): string {
  return value === null ? "unset" : JSON.stringify((kind.show ?? kind.write)(value));
}

function isSame({ spec: { kind } }: SchemaKey, a: unknown, b: unknown): boolean {
  return a === null || b === null ? a === b : kind.write(a) === kind.write(b);
}

/** What SIGHUP changes, and what it cannot. */
export function diffReload(old: Config, next: Config): ReloadDiff {
  const changed: KeyChange[] = [];
  const needsRestart: KeyChange[] = [];
  const effective: Record<string, Record<string, unknown>> = {};
  for (const key of SCHEMA_KEYS) {
    const [before, after] = [valueAt(old, key), valueAt(next, key)];
    if (!isSame(key, before, after)) {
      const change = { key: key.name, from: literalOf(key, before), to: literalOf(key, after) };
      (key.spec.reload ? changed : needsRestart).push(change);
    }
    effective[key.section] ??= {};
    effective[key.section]![key.field] = valueAt(key.spec.reload ? next : old, key);
  }
  for (const section of Object.values(effective)) Object.freeze(section);
  return { changed, needsRestart, effective: Object.freeze(effective) as Config };
}
