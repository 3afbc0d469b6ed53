import type { MachineFacts } from "./facts.ts";
import type { Config } from "./schema.ts";

export interface Finding {
  readonly what: string;
  readonly instead: string;
  /** The table or key in the file that is wrong; left out: the first of the check's keys. */
  readonly at?: readonly string[];
}

/** A rule over several keys, or over a key and the machine. */
export interface SumCheck<C = Config> {
  /** Dotted names; the finding is placed at the first one that the file sets. */
  readonly keys: readonly string[];
  find(config: C, facts: MachineFacts): Finding | null;
}

/** Null where the rule holds. */
export function unless(holds: boolean, what: string, instead: string): Finding | null {
  return holds ? null : { what, instead };
}
