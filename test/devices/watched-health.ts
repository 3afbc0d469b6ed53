import { Health, type HealthCode, type LogFields } from "../../src/observability/index.ts";
import { ManualClock } from "../support/index.ts";

export interface Line {
  readonly level: string;
  readonly message: string;
  readonly fields: LogFields;
}

/** Health and log as the agent has them, with what they were told. */
export function watchedHealth() {
  const clock = new ManualClock();
  const lines: Line[] = [];
  const log = (level: string, message: string, fields: LogFields = {}) =>
    void lines.push({ level, message, fields });
  const health = new Health({ clock, log: { log } });
  const details = (code: HealthCode) =>
    health.list().find((problem) => problem.code === code)?.details ?? null;
  return { clock, lines, log, health, details };
}
