import { appendFileSync } from "node:fs";

/** Where `scripts/test.ts` collects what was skipped and why, for the end of its report. */
const SKIPS_FILE = "HEARTH_SKIPS_FILE";

/** Says that a suite was left out. Nothing is ever skipped without a line that tells why. */
export function noteSkip(suite: string, why: string): void {
  const line = `skipped: ${suite}: ${why}\n`;
  process.stderr.write(line);
  const file = process.env[SKIPS_FILE];
  if (file !== undefined) appendFileSync(file, line);
}
