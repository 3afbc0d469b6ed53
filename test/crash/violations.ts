import type { CrashReport } from "./crash.ts";

/** On a machine that does nothing else. */
const RESTART_P99_MS_MAX = 400;

/** What must not be, in words; nothing where all is well. */
export function violationsOf({ figures, complaints }: CrashReport): string[] {
  const found = [...complaints];
  if (figures.wrong_bytes > 0) found.push(`${figures.wrong_bytes} wrong bytes`);
  if (figures.resurrected > 0) found.push(`${figures.resurrected} purged blocks came back`);
  if (figures.lost > 0) found.push(`${figures.lost} persisted blocks are gone`);
  if (figures.failed_restarts > 0) found.push(`${figures.failed_restarts} restarts failed`);
  if (figures.verified_blocks === 0) found.push("no block was verified: the run proves nothing");
  if (figures.restart_p99_ms > RESTART_P99_MS_MAX) {
    found.push(`restarts take ${figures.restart_p99_ms} ms (p99), not ${RESTART_P99_MS_MAX}`);
  }
  return found;
}
