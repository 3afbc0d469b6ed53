import { appendFileSync } from "node:fs";

/** File in which `scripts/test.ts` collects skips and their reasons, for the end of its report. */
const SKIPS_FILE = "HEARTH_SKIPS_FILE";

/** Reports a skipped suite. Nothing is skipped without a line with the reason. */
export function noteSkip(suite: string, why: string): void {
  const line = `skipped: ${suite}: ${why}\n`;
  process.stderr.write(line);
  const file = process.env[SKIPS_FILE];
  if (file !== undefined) appendFileSync(file, line);
}
