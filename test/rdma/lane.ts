import { mkdtempSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { delimiter, dirname, join } from "node:path";
import { ROOT } from "../../scripts/lib/paths.ts";
import { defineLane, flag, LaneSkip, needStandIns, oneOf } from "../support/lane.ts";
import { runOne } from "./one.ts";
import { bedRefusal, KERNELS, type KernelName, prepareBed } from "./packages.ts";
import { runPair } from "./pair.ts";
import type { CaseResult } from "./steps.ts";

const CASES = { one: runOne, pair: runPair } as const;
const NAMES = Object.keys(CASES) as (keyof typeof CASES)[];
const KERNEL_NAMES = Object.keys(KERNELS) as KernelName[];

export const lane = defineLane({
  help: `
Runs the RDMA code on a real kernel's verbs without a NIC: Debian's kernel and libraries in QEMU,
with the kernel's own RDMA over Ethernet (rdma_rxe). One guest: Debian's ibv_rc_pingpong, the
doctor, the native suite and the contract of transports. Two guests on one wire: blocks between them
byte by byte, a peer that is killed, 2 % of all packets lost, a rail that fails in the middle of a
fetch, and a host that loses its power.

  ./dev test:rdma                      both, under three minutes from an empty cache
  ./dev test:rdma --case pair          one of ${NAMES.join(", ")}
  ./dev test:rdma --kernel 6.1         one of ${KERNEL_NAMES.join(", ")} (as of Debian 12)
  ./dev test:rdma --fresh              fetches the kernel and its packages again
  ./dev test:rdma --keep               keeps consoles, logs and reports, and prints their folders
  ./dev test:rdma --json               the report as one line of JSON on standard output

Packages come from Debian's archive by apt, into .toolchain/rdma-bed; nothing is installed and no
root is needed. Without QEMU it prints "skipped" and exits 0, with REQUIRE_RDMA=1 it exits 1.
Exit codes: 0 all is well, or skipped; 1 it is not; 2 wrong usage.
`,
  options: {
    case: oneOf(NAMES),
    kernel: oneOf(KERNEL_NAMES, "6.12"),
    fresh: flag(),
    keep: flag(),
  },
  async run({ case: only, kernel, fresh, keep }, host) {
    const why = bedRefusal();
    if (why !== null) throw new LaneSkip(`no guests here: ${why}`, "RDMA");
    const startMs = performance.now();
    // Guests see this checkout and cannot build in it.
    await needStandIns();
    const bed = await prepareBed(kernel, fresh, host.say);
    const cases = NAMES.filter((name) => (only ?? name) === name);
    const results: CaseResult[] = [];
    for (const name of cases) {
      const folder = keep ? mkdtempSync(join(tmpdir(), `hearth-rdma-${name}-`)) : host.folder();
      if (keep) host.say(`${name}: ${folder}`);
      prepareFolder(folder);
      const onResult = (result: CaseResult) => {
        for (const line of linesOf(result)) host.say(line);
      };
      results.push(...(await CASES[name](bed, folder, onResult)));
    }
    const tally = { ok: 0, failed: 0, skipped: 0 };
    for (const { outcome } of results) tally[outcome]++;
    const seconds = Math.round(performance.now() - startMs) / 1_000;
    const failed = results.filter(({ outcome }) => outcome === "failed");
    return {
      violations: [
        ...failed.map((result) => `${result.lane}: ${result.name}`),
        ...(tally.ok === 0 ? ["no case was run"] : []),
      ],
      json: { kernel: bed.kernel, lanes: cases, ...tally, seconds, cases: results },
      text: `${tally.ok} ok, ${tally.failed} failed, ${tally.skipped} skipped in ${seconds} s`,
    };
  },
});

/** Writes the files that guests of a case expect in the folder they share with this host. */
function prepareFolder(folder: string): void {
  const path = [dirname(process.execPath), "$PATH"].join(delimiter);
  writeFileSync(join(folder, "paths.sh"), `PATH="${path}"\ncd '${ROOT}'\n`);
  // Without the preload, which would build: HEARTH_TEST_NATIVE names the library.
  writeFileSync(join(folder, "bunfig.toml"), `[test]\nroot = "test"\n`);
}

function linesOf({ lane, name, outcome, seconds, words }: CaseResult): string[] {
  const head = `${lane}: ${outcome.padEnd(7)} ${seconds.toFixed(1)} s  ${name}`;
  return [head, ...words.map((line) => `  | ${line}`)];
}
