/** `bun run test:rdma`: RDMA over Ethernet in software, in guests that QEMU emulates. */
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { delimiter, dirname, join } from "node:path";
import { scriptOptions } from "../../scripts/lib/arguments.ts";
import { ensureHost, ensureStandIns } from "../../scripts/lib/native-build.ts";
import { ROOT } from "../../scripts/lib/paths.ts";
import { seconds } from "../../scripts/lib/run.ts";
import { messageOf } from "../../src/core/index.ts";
import type { CaseResult } from "./lane.ts";
import { runOne } from "./one.ts";
import { bedRefusal, KERNELS, type KernelName, prepareBed } from "./packages.ts";
import { runPair } from "./pair.ts";

const LANES = { one: runOne, pair: runPair } as const;
type LaneName = keyof typeof LANES;

const NAMES = Object.keys(LANES) as LaneName[];
const KERNEL_NAMES = Object.keys(KERNELS) as KernelName[];

const HELP = `
Runs what speaks RDMA on a real kernel's verbs, with no NIC: Debian's kernel and libraries in QEMU,
with the kernel's own RDMA over Ethernet (rdma_rxe). One guest: Debian's ibv_rc_pingpong, the
doctor, the native suite and the contract of transports. Two guests on one wire: blocks between them
byte by byte, a peer that is killed, 2 % of all packets lost, a rail that goes down in the middle of
a pull, and a host that loses its power.

  bun run test:rdma                      both, under three minutes from an empty cache
  bun run test:rdma -- --case pair       one of ${NAMES.join(", ")}
  bun run test:rdma -- --kernel 6.1      one of ${KERNEL_NAMES.join(", ")} (as of Debian 12)
  bun run test:rdma -- --fresh           fetches the kernel and its packages again
  bun run test:rdma -- --keep            leaves consoles, logs and reports, and says where
  bun run test:rdma -- --json            the report as one line of JSON on standard output

Packages come from Debian's archive by apt, into .toolchain/rdma-bed; nothing is installed and no
root is needed. Without QEMU it says so and ends with 0, with REQUIRE_RDMA=1 it fails.
Exit codes: 0 all is well, or skipped; 1 it is not; 2 wrong usage.
`;

const options = scriptOptions(HELP, {
  case: { type: "string" },
  kernel: { type: "string", default: "6.12" },
  fresh: { type: "boolean", default: false },
  keep: { type: "boolean", default: false },
  json: { type: "boolean", default: false },
});

function refuse(option: string, names: readonly string[]): never {
  console.error(`--${option} is one of ${names.join(", ")}`);
  process.exit(2);
}

const kernel = options.kernel as KernelName;
if (!KERNEL_NAMES.includes(kernel)) refuse("kernel", KERNEL_NAMES);
const lanes = NAMES.filter((name) => (options.case ?? name) === name);
if (lanes.length === 0) refuse("case", NAMES);

function say(text: string): void {
  console.error(`rdma: ${text}`);
}

function tell({ lane, name, outcome, seconds, words }: CaseResult): void {
  say(`${lane}: ${outcome === "ok" ? "ok     " : outcome} ${seconds.toFixed(1)} s  ${name}`);
  for (const line of words) say(`  | ${line}`);
}

const why = bedRefusal();
if (why !== null) {
  const isRequired = process.env.REQUIRE_RDMA === "1";
  console.error(`${isRequired ? "required" : "skipped"}: no guests here: ${why}`);
  if (options.json) console.log(JSON.stringify({ skipped: why }));
  process.exit(isRequired ? 1 : 0);
}

/** Guests see the checkout as it is here and cannot build in it. */
async function buildNative(): Promise<void> {
  for (const outcome of [await ensureHost(), await ensureStandIns()]) {
    if (outcome.kind === "skipped" || outcome.kind === "failed") throw new Error(outcome.why);
  }
}

/** What guests of a lane share with this host. */
function newFolder(lane: LaneName): string {
  const folder = mkdtempSync(join(tmpdir(), `hearth-rdma-${lane}-`));
  process.on("exit", () => {
    if (options.keep) say(`${lane}: ${folder}`);
    else rmSync(folder, { recursive: true, force: true });
  });
  const path = [dirname(process.execPath), "$PATH"].join(delimiter);
  writeFileSync(join(folder, "paths.sh"), `PATH="${path}"\ncd '${ROOT}'\n`);
  // Without the preload, which would build: HEARTH_TEST_NATIVE tells what it would find.
  writeFileSync(join(folder, "bunfig.toml"), `[test]\nroot = "test"\n`);
  return folder;
}

async function main(): Promise<boolean> {
  const startMs = performance.now();
  await buildNative();
  const bed = await prepareBed(kernel, options.fresh, say);
  const results: CaseResult[] = [];
  for (const lane of lanes) {
    results.push(...(await LANES[lane](bed, newFolder(lane), tell)));
  }
  const tally = { ok: 0, failed: 0, skipped: 0 };
  for (const { outcome } of results) tally[outcome]++;
  const took = performance.now() - startMs;
  const report = { kernel: bed.kernel, lanes, ...tally, seconds: Math.round(took) / 1_000 };
  if (options.json) console.log(JSON.stringify({ ...report, cases: results }));
  say(`${tally.ok} ok, ${tally.failed} failed, ${tally.skipped} skipped in ${seconds(took)}`);
  return tally.failed === 0 && tally.ok > 0;
}

process.on("SIGINT", () => process.exit(130));
process.on("SIGTERM", () => process.exit(143));
try {
  process.exitCode = (await main()) ? 0 : 1;
} catch (thrown) {
  say(messageOf(thrown));
  process.exitCode = 1;
}
process.exit();
