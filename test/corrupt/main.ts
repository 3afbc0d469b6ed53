/** `bun run test:corrupt`: random damage to block files, the index and blocks in RAM. */
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { scriptOptions } from "../../scripts/lib/arguments.ts";
import { ensureHost } from "../../scripts/lib/native-build.ts";
import { systemClock } from "../../src/core/index.ts";
import { runCorrupt } from "./corrupt.ts";
import { isClean, runRamLane } from "./ram-lane.ts";
import type { Tally } from "./tally.ts";

const HELP = `
Lets a store write blocks, damages what it wrote (bits, sectors, pages, lengths, swapped and stale
files, files of another layer or namespace, rows and pages of the index, bits of blocks in RAM), and
asks for every block: while the store is open, and across restarts. All damage must be seen and no
wrong byte be served; one block in ten is left sound and must be served.

  bun run test:corrupt                       10,000 cases, about 20 s
  bun run test:corrupt -- --count 100000     the long run
  bun run test:corrupt -- --seed 7           the same damage again
  bun run test:corrupt -- --dir /mnt/nvme    on another file system than that of temporary files
  bun run test:corrupt -- --json             the result as JSON on one line
  bun run test:corrupt -- --ram --count 1000 bits flipped in the live arenas of two agent processes

With --ram each flip must lead to one miss at most and then to a good block, for clients in
TypeScript and Python, with and without an SSD tier, and the drive must never be blamed.

padding_bit flips bits behind the payload, which no checksum covers and nobody is given: there the
right bytes are the right answer.

Exit codes: 0 all damage was seen; 1 some was not, or a sound block was not served; 2 wrong usage.
`;

const PROGRESS_MS = 5_000;

const options = scriptOptions(HELP, {
  count: { type: "string", default: "10000" },
  seed: { type: "string", default: "1" },
  dir: { type: "string", default: tmpdir() },
  json: { type: "boolean", default: false },
  ram: { type: "boolean", default: false },
});

function fail(text: string): never {
  console.error(text);
  process.exit(2);
}

function wholeNumber(name: "count" | "seed", min: number): number {
  const value = Number(options[name]);
  if (Number.isSafeInteger(value) && value >= min) return value;
  return fail(`--${name} ${options[name]} is no whole number from ${min}`);
}

function resultOf(tally: Tally, seconds: number) {
  const { controls, falseAlarms, failures } = tally;
  return {
    cases: tally.sum("cases"),
    detected: tally.sum("detected"),
    harmless: tally.sum("harmless"),
    unseen: tally.sum("unseen"),
    served: tally.sum("served"),
    controls,
    false_alarms: falseAlarms,
    kinds: Object.fromEntries([...tally.kinds].sort()),
    failures,
    seconds: Number(seconds.toFixed(1)),
  };
}

function printTable(tally: Tally): void {
  const columns = ["cases", "detected", "harmless", "unseen", "served"] as const;
  const line = (name: string, cells: readonly (string | number)[]) =>
    console.log(name.padEnd(26) + cells.map((cell) => String(cell).padStart(10)).join(""));
  line("", columns);
  for (const [kind, counts] of [...tally.kinds].sort()) {
    line(
      kind,
      columns.map((column) => counts[column]),
    );
  }
  line(
    "all",
    columns.map((column) => tally.sum(column)),
  );
  console.log(`sound blocks ${tally.controls}, of which not served ${tally.falseAlarms}`);
}

const count = wholeNumber("count", 1);
const seed = wholeNumber("seed", 0);
const native = await ensureHost();
if (native.kind === "failed" || native.kind === "skipped") fail(`no native library: ${native.why}`);
const dir = mkdtempSync(join(options.dir, "hearth-corrupt-"));
const startMs = systemClock.monotonicMs();
let saidMs = startMs;
async function runRam(): Promise<number> {
  const onProgress = (flipped: number) => {
    const nowMs = systemClock.monotonicMs();
    if (nowMs - saidMs < PROGRESS_MS) return;
    saidMs = nowMs;
    console.error(`corrupt: ${flipped} of ${count} bits flipped`);
  };
  const report = await runRamLane({ count, seed, dir, onProgress });
  const seconds = Number(((systemClock.monotonicMs() - startMs) / 1_000).toFixed(1));
  for (const failure of report.failures.slice(0, 20)) console.error(failure);
  if (options.json) console.log(JSON.stringify({ ...report, seconds }));
  else for (const [name, value] of Object.entries(report)) console.log(`${name}: ${value}`);
  return isClean(report) ? 0 : 1;
}

async function runAll(): Promise<number> {
  const tally = await runCorrupt({
    count,
    seed,
    dir,
    onProgress(so) {
      const nowMs = systemClock.monotonicMs();
      if (nowMs - saidMs < PROGRESS_MS) return;
      saidMs = nowMs;
      const bad = so.sum("unseen") + so.sum("served") + so.falseAlarms;
      console.error(`corrupt: ${so.sum("cases")} of ${count}, ${bad} not as they should be`);
    },
  });
  const result = resultOf(tally, (systemClock.monotonicMs() - startMs) / 1_000);
  for (const failure of tally.failures.slice(0, 20)) console.error(failure);
  if (options.json) console.log(JSON.stringify(result));
  else printTable(tally);
  return tally.isClean ? 0 : 1;
}

try {
  process.exitCode = await (options.ram ? runRam() : runAll());
} finally {
  rmSync(dir, { recursive: true, force: true });
}
process.exit();
