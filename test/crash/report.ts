import type { Trial, TrialFigures } from "./trial.ts";

/** What must not be, in words; nothing where all is well. */
export function violationsOf({ figures, tally }: Trial, restartP99MsMax: number): string[] {
  const found = [...tally.complaints];
  if (figures.wrong_bytes > 0) found.push(`${figures.wrong_bytes} wrong bytes`);
  if (figures.resurrected > 0) found.push(`${figures.resurrected} purged blocks came back`);
  if (figures.lost > 0) found.push(`${figures.lost} persisted blocks are gone`);
  if (figures.failed_restarts > 0) found.push(`${figures.failed_restarts} restarts failed`);
  if (figures.verified_blocks === 0) found.push("no block was verified: the run proves nothing");
  const { commands } = figures;
  if (commands !== null) {
    if (commands.double_effects > 0) found.push(`${commands.double_effects} double effects`);
    if (commands.commands === 0) found.push("no command was answered: the run proves nothing");
  }
  if (figures.restart_p99_ms > restartP99MsMax) {
    found.push(`restarts take ${figures.restart_p99_ms} ms (p99), not ${restartP99MsMax}`);
  }
  return found;
}

const LINES_EVERY = 50;

/** Tells on standard error how far a run is: one line that changes, or one now and then. */
export function progressLines(
  name: string,
  cycles: number,
): (done: number, figures: TrialFigures) => void {
  const { isTTY } = process.stderr;
  return (done, { seconds, restart_p99_ms: p99 }) => {
    const text = `${name}: ${done} of ${cycles} in ${seconds} s, restarts p99 ${p99} ms`;
    const isLast = done === cycles;
    if (isTTY) process.stderr.write(`\r${text} ${isLast ? "\n" : ""}`);
    else if (isLast || done % LINES_EVERY === 0) process.stderr.write(`${text}\n`);
  };
}

/** What commands came to, as a table for people. */
export function printCommands({ commands }: TrialFigures): void {
  if (commands === null) return;
  const rows = Object.entries(commands).flatMap(([name, value]): [string, unknown][] =>
    typeof value === "object"
      ? Object.entries(value).map(([kind, count]) => [`${name}: ${kind}`, count])
      : [[name, value]],
  );
  for (const [name, value] of rows) {
    console.log(`${name.replaceAll("_", " ").padEnd(32)}${`${value}`.padStart(10)}`);
  }
}

/** Prints what was found, figures as JSON in the last line; the exit code. */
export function report(trial: Trial, cycles: number, restartP99MsMax: number): number {
  const violations = violationsOf(trial, restartP99MsMax);
  for (const violation of violations) console.error(`violation: ${violation}`);
  console.log(JSON.stringify({ cycles, ...trial.figures }));
  return violations.length === 0 ? 0 : 1;
}
