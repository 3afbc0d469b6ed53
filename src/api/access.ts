import type { AccessConfig } from "../config/index.ts";
import type { Access } from "./gate.ts";
import { readTls } from "./tls.ts";
import { readTokens } from "./token-files.ts";
import { Tokens } from "./tokens.ts";

/** Who may do what, as the configuration and the files that it names have it. */
export interface ReadAccess {
  readonly access: Access;
  /** What an operator should know of the files, a line each. */
  readonly warnings: readonly string[];
  /**
   * Reads the tokens again: those that are gone open nothing any more. Returns warnings as above.
   * Throws CONFIG_INVALID and changes nothing where a file is refused.
   */
  reload(): Promise<readonly string[]>;
}

type Limits = "connectionsMax" | "bodyBudgetBytes" | "bodyTimeoutMs";

/** Throws CONFIG_INVALID where a file cannot be read, or holds something else. */
export async function readAccess(config: Omit<AccessConfig, Limits>): Promise<ReadAccess> {
  const list = await readTokens(config);
  const tokens = list === null ? null : new Tokens(list.entries);
  const tls = await readTls(config);
  const { loopbackRole, tlsClientRole: clientRole } = config;
  return {
    access: { tokens, tls, loopbackRole, clientRole },
    warnings: list?.warnings ?? [],
    async reload() {
      const next = await readTokens(config);
      if (tokens === null || next === null) return [];
      tokens.replace(next.entries);
      return next.warnings;
    },
  };
}
