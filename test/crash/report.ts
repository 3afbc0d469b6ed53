import { progress } from "../support/lane.ts";
import type { Trial, TrialFigures } from "./trial.ts";

/** Broken promises; empty if all is well. */
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

/** Shows the progress of a run on standard error. */
export function progressLines(
  name: string,
  cycles: number,
): (done: number, figures: TrialFigures) => void {
  const show = progress(name);
  return (done, { seconds, restart_p99_ms: p99 }) => {
    show(`${done} of ${cycles} in ${seconds} s, restarts p99 ${p99} ms`, done === cycles);
  };
}

/** Outcomes of commands as a table for people; null if no commands were sent. */
export function commandTable({ commands }: TrialFigures): string | null {
  if (commands === null) return null;
  const rows = Object.entries(commands).flatMap(([name, value]): [string, unknown][] =>
    typeof value === "object"
      ? Object.entries(value).map(([kind, count]) => [`${name}: ${kind}`, count])
      : [[name, value]],
  );
  return rows
    .map(([name, value]) => `${name.replaceAll("_", " ").padEnd(32)}${`${value}`.padStart(10)}`)
    .join("\n");
}
