import { ensureHostExecutable } from "../../scripts/lib/executable.ts";

export { withAgent } from "../../scripts/lib/agent.ts";

/**
 * Path of the compiled executable of these sources, `dist/hearth`; built when they changed. For
 * tests that must see what ships: those that kill it, and those that run it where no checkout is.
 */
export function hearthExecutable(): Promise<string> {
  return ensureHostExecutable();
}
