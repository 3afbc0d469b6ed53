import type { Round } from "./run.ts";

const MIB = 2 ** 20;
const LISTED = 4;
/** A router of this test needs no more, whatever happens. */
const RSS_MAX = 1_024 * MIB;

/** Broken promises. */
export function problemsOf(rounds: readonly Round[], withinMs: number): string[] {
  const found: string[] = [];
  for (const { number, fault, agreedMs, differences, rssBytes, pendingHashes } of rounds) {
    const where = `round ${number}, ${fault}`;
    if (agreedMs === null) found.push(`${where}: never agreed: ${shortened(differences)}`);
    else if (agreedMs > withinMs) found.push(`${where}: agreed after ${agreedMs} ms`);
    if (rssBytes > RSS_MAX) found.push(`${where}: a router takes ${mib(rssBytes)} MiB`);
    if (pendingHashes > 0) found.push(`${where}: ${pendingHashes} hashes wait for nothing`);
  }
  if (rounds.length === 0) found.push("no round was run");
  return found;
}

export function reportOf(
  rounds: readonly Round[],
  { seed, withinMs }: { readonly seed: number; readonly withinMs: number },
) {
  const problems = problemsOf(rounds, withinMs);
  return {
    ok: problems.length === 0,
    ...{ seed, within_ms: withinMs, rounds: rounds.length },
    agreed_p50_ms: quantile(rounds, 0.5),
    agreed_max_ms: quantile(rounds, 1),
    rss_first_mib: mib(rounds[0]?.rssBytes ?? 0),
    rss_max_mib: mib(Math.max(0, ...rounds.map(({ rssBytes }) => rssBytes))),
    index_blocks_max: Math.max(0, ...rounds.map(({ indexBlocks }) => indexBlocks)),
    requests_max: Math.max(0, ...rounds.map(({ requests }) => requests)),
    faults: byFault(rounds),
    problems,
  };
}

export function tableOf(rounds: readonly Round[], withinMs: number): string {
  const lines = rounds.map(({ number, fault, agreedMs, rssBytes, indexBlocks, counts }) => {
    const { gaps, ranges, snapshots, lists } = counts;
    const sums = `${gaps} gaps, ${ranges} ranges, ${snapshots} snapshots, ${lists} lists`;
    const after = agreedMs === null ? "never" : `${agreedMs} ms`;
    return [
      `${String(number).padStart(4)}  ${after.padStart(8)}  ${`${mib(rssBytes)}`.padStart(5)} MiB`,
      `${String(indexBlocks).padStart(6)} blocks  ${sums}  ${fault}`,
    ].join("  ");
  });
  const verdict =
    `${rounds.length} rounds: limit ${withinMs} ms, half of them agreed within ` +
    `${quantile(rounds, 0.5)} ms, all within ${quantile(rounds, 1)} ms`;
  return [...lines, verdict].join("\n");
}

function shortened(all: readonly string[]): string {
  const more = all.length > LISTED ? ` and ${all.length - LISTED} more` : "";
  return all.slice(0, LISTED).join("; ") + more;
}

function byFault(rounds: readonly Round[]): Record<string, readonly (number | null)[]> {
  const all: Record<string, (number | null)[]> = {};
  for (const { fault, agreedMs } of rounds) {
    all[fault] ??= [];
    all[fault].push(agreedMs);
  }
  return all;
}

function quantile(rounds: readonly Round[], share: number): number | null {
  const sorted = rounds.flatMap(({ agreedMs }) => agreedMs ?? []).sort((a, b) => a - b);
  return sorted[Math.min(sorted.length - 1, Math.floor(share * sorted.length))] ?? null;
}

function mib(bytes: number): number {
  return Math.round(bytes / MIB);
}
