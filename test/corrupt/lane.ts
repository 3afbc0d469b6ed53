import { tmpdir } from "node:os";
import {
  defineLane,
  flag,
  type LaneResult,
  needNative,
  progress,
  text,
  whole,
} from "../support/lane.ts";
import { runCorrupt } from "./corrupt.ts";
import { isClean, runRamLane } from "./ram-lane.ts";
import type { Tally } from "./tally.ts";

/** Violations shown at most. */
const SHOWN = 20;

interface Damage {
  readonly count: number;
  readonly seed: number;
  readonly dir: string;
}

export const lane = defineLane({
  help: `
Lets a store write blocks, damages the files (bits, sectors, pages, lengths, swapped and stale files,
files of another layer or namespace, rows and pages of the index, bits of blocks in RAM), and reads
every block: while the store is open, and across restarts. All damage must be detected and no wrong
byte be served; one block in ten stays undamaged and must be served.

  ./dev test:corrupt                         10,000 cases, about 20 s
  ./dev test:corrupt --count 100000          the long run
  ./dev test:corrupt --seed 7                the same damage again
  ./dev test:corrupt --dir /mnt/nvme         on another file system than that of temporary files
  ./dev test:corrupt --json                  the result as JSON on one line
  ./dev test:corrupt --ram --count 1000      bits flipped in the live arenas of two agent processes

With --ram each flip must lead to one miss at most and then to a valid block, for clients in
TypeScript and Python, with and without an SSD tier, and the drive must never be blamed.

padding_bit flips bits behind the payload, which no checksum covers and no client gets: the correct
answer is the right bytes.

Exit codes: 0 all damage was detected; 1 some was not, or an undamaged block was not served; 2 wrong
usage.
`,
  options: { count: whole(1, 10_000), seed: whole(0, 1), dir: text(tmpdir()), ram: flag() },
  async run({ ram, dir, ...options }, host) {
    await needNative();
    const damage = { ...options, dir: host.folder(dir) };
    const startMs = performance.now();
    const seconds = () => Number(((performance.now() - startMs) / 1_000).toFixed(1));
    return ram ? damageRam(damage, seconds) : damageFiles(damage, seconds);
  },
});

async function damageRam(damage: Damage, seconds: () => number): Promise<LaneResult> {
  const show = progress("corrupt");
  const report = await runRamLane({
    ...damage,
    onProgress: (flipped) => show(`${flipped} of ${damage.count} bits flipped`),
  });
  const lines = Object.entries(report).map(([name, value]) => `${name}: ${value}`);
  const broken = isClean(report) ? [] : ["the report has figures that must be 0"];
  return {
    violations: [...report.failures.slice(0, SHOWN), ...broken],
    json: { ...report, seconds: seconds() },
    text: lines.join("\n"),
  };
}

async function damageFiles(damage: Damage, seconds: () => number): Promise<LaneResult> {
  const show = progress("corrupt");
  const tally = await runCorrupt({
    ...damage,
    onProgress(so) {
      const bad = so.sum("unseen") + so.sum("served") + so.falseAlarms;
      show(`${so.sum("cases")} of ${damage.count}, ${bad} violations`);
    },
  });
  const { controls, falseAlarms, failures } = tally;
  const broken = tally.isClean ? [] : ["damage was not detected, or an undamaged block not served"];
  return {
    violations: [...failures.slice(0, SHOWN), ...broken],
    json: {
      cases: tally.sum("cases"),
      detected: tally.sum("detected"),
      harmless: tally.sum("harmless"),
      unseen: tally.sum("unseen"),
      served: tally.sum("served"),
      controls,
      false_alarms: falseAlarms,
      kinds: Object.fromEntries([...tally.kinds].sort()),
      failures,
      seconds: seconds(),
    },
    text: tableOf(tally),
  };
}

function tableOf(tally: Tally): string {
  const columns = ["cases", "detected", "harmless", "unseen", "served"] as const;
  const line = (name: string, cells: readonly (string | number)[]) =>
    name.padEnd(26) + cells.map((cell) => String(cell).padStart(10)).join("");
  const rows = [...tally.kinds].sort().map(([kind, counts]) => {
    return line(
      kind,
      columns.map((column) => counts[column]),
    );
  });
  const all = columns.map((column) => tally.sum(column));
  const sound = `undamaged blocks ${tally.controls}, of which not served ${tally.falseAlarms}`;
  return [line("", columns), ...rows, line("all", all), sound].join("\n");
}
