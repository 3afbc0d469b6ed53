import type { ChaosFigures, ChaosResult } from "./chaos.ts";
import type { Finding } from "./oracle.ts";
import type { StreamResult } from "./stream.ts";

/** The printed report; microseconds, milliseconds and MiB by their names. */
export interface Figures extends ChaosFigures {
  readonly kills: number;
  readonly freezes: number;
  readonly double_effects: number;
  readonly lost: number;
  readonly ratio: number;
  readonly reconnects: number;
  readonly reconnect_ms_p50: number;
  readonly reconnect_ms_max: number;
  readonly stream: StreamResult["figures"] | null;
  readonly seconds: number;
}

/** Runs shorter than this have too few windows: their reads are told and not judged. */
const JUDGED_KILLS_MIN = 50;
const RATIO_MAX = 2;
/**
 * 65,536 commands that are remembered with their receipts, 64 MiB that may wait unread, and
 * garbage: an agent that carries out 200,000 commands stays below.
 */
const RSS_GROWTH_MB_MAX = 96 + 64 + 128;

export function figuresOf(
  { log, figures, oracle }: ChaosResult,
  stream: StreamResult | null,
  seconds: number,
): Figures {
  const sum = (kind: Finding["kind"]) => oracle.count(kind) + (stream?.oracle.count(kind) ?? 0);
  const times = log.reconnectMs.map(Math.round).sort((a, b) => a - b);
  const { p99_calm_us: calm, p99_chaos_us: chaos } = figures;
  return {
    kills: log.kills,
    freezes: log.freezes,
    ...figures,
    double_effects: sum("double"),
    lost: sum("lost"),
    ratio: calm === 0 ? 0 : Math.round((chaos / calm) * 100) / 100,
    reconnects: times.length,
    reconnect_ms_p50: times[times.length >> 1] ?? 0,
    reconnect_ms_max: times.at(-1) ?? 0,
    stream: stream?.figures ?? null,
    seconds: Math.round(seconds),
  };
}

/** Broken promises; empty if all is well. */
export function violationsOf(figures: Figures, findings: readonly Finding[]): string[] {
  const found = findings.map(({ kind, what }) => `${kind}: ${what}`);
  const { ratio, agent_rss_max_mb: most, agent_rss_start_mb: start } = figures;
  const never: readonly (readonly [number, string])[] = [
    [figures.commands_acknowledged, "no command was acknowledged"],
    [figures.duplicates_answered, "no copy of a command came"],
    [figures.poison_counted, "no poison came"],
    [figures.reads, "nothing was read"],
    [figures.reconnects, "the agent never came back"],
  ];
  for (const [count, words] of never) {
    if (count === 0) found.push(`${words}: the run proves nothing`);
  }
  if (figures.kills >= JUDGED_KILLS_MIN && ratio > RATIO_MAX) {
    const { p99_calm_us: calm, p99_chaos_us: chaos } = figures;
    found.push(`reads from RAM take ${chaos} us (p99), ${calm} us in calm: ${ratio} times`);
  }
  if (most - start > RSS_GROWTH_MB_MAX) {
    found.push(`the agent's memory grew from ${start} to ${most} MiB`);
  }
  return found;
}

export function tableOf(figures: Figures): string {
  const { stream, ...plain } = figures;
  const rows = Object.entries({ ...plain, ...stream });
  return rows.map(([name, value]) => `${name.padEnd(24)}${String(value).padStart(10)}`).join("\n");
}
