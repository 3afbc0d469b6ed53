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

/** A value of a key as TOML; "unset" where it has none. */
export function literalOf(key: SchemaKey, value: unknown): string {
  return value === null ? "unset" : JSON.stringify(key.spec.kind.write(value));
}

/** What SIGHUP changes, and what it cannot. */
export function diffReload(old: Config, next: Config): ReloadDiff {
  const changed: KeyChange[] = [];
  const needsRestart: KeyChange[] = [];
  const effective: Record<string, Record<string, unknown>> = {};
  for (const key of SCHEMA_KEYS) {
    const from = literalOf(key, valueAt(old, key));
    const to = literalOf(key, valueAt(next, key));
    if (from !== to) (key.spec.reload ? changed : needsRestart).push({ key: key.name, from, to });
    effective[key.section] ??= {};
    effective[key.section]![key.field] = valueAt(key.spec.reload ? next : old, key);
  }
  for (const section of Object.values(effective)) Object.freeze(section);
  return { changed, needsRestart, effective: Object.freeze(effective) as Config };
}
