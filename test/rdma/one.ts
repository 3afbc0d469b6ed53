import { existsSync } from "node:fs";
import { join } from "node:path";
import { ROOT } from "../../scripts/lib/paths.ts";
import { Machine } from "./machine.ts";
import type { Bed } from "./packages.ts";
import { type CaseResult, JOB_HELPERS, Steps } from "./steps.ts";

/** Suites that run on the guest's own verbs as they run on the stand-in elsewhere. */
export const SUITES = {
  device: "test/rdma/guest/device.ts",
  native: "test/native/rdma.test.ts",
  contract: "test/peers/transports/rdma.test.ts",
} as const;

const ADDRESS = "10.77.0.1";
const BOOT_LIMIT_S = 120;
const SUITE_LIMIT_S = 480;

/** Debian's own programs speak over the device: if they cannot, no case of ours means anything. */
const PINGPONG = `
pingpong() {
  /usr/bin/ibv_rc_pingpong -d rxe0 -g 1 -n 200 &
  tries=0
  until /usr/bin/ibv_rc_pingpong -d rxe0 -g 1 -n 200 ${ADDRESS}; do
    tries=$((tries + 1))
    if [ "$tries" -gt 100 ]; then return 1; fi
    b usleep 50000
  done
  wait
}
say "begin pingpong"
pingpong > /out/pingpong.log 2>&1
say "end pingpong $?"
`;

/** What somebody with such a device is told. */
const DOCTOR = `
say "begin doctor"
host bun src/main.ts doctor > /out/doctor.log 2>&1
b grep -q 'ok  *RDMA rxe0/1' /out/doctor.log
say "end doctor $?"
`;

/** One guest, both ends of every queue pair in it. */
export async function runOne(
  bed: Bed,
  folder: string,
  tell: (result: CaseResult) => void,
): Promise<CaseResult[]> {
  const steps = new Steps("one", folder, tell);
  const [there, missing] = [true, false].map((isThere) =>
    Object.entries(SUITES).filter(([, file]) => existsSync(join(ROOT, file)) === isThere),
  ) as [[string, string][], [string, string][]];
  for (const [name, file] of missing) steps.add(name, false, 0, [`there is no ${file}`]);
  const suites = there.map(([name, file]) => `suite ${name} ${SUITE_LIMIT_S} ${file}`);
  const startMs = performance.now();
  await using machine = new Machine({
    ...{ bed, name: "one", folder, cpus: 2, memoryMib: 3_072, wires: [] },
    settings: { rail: "dummy0", address: `${ADDRESS}/24` },
    job: [JOB_HELPERS, PINGPONG, DOCTOR, ...suites, '[ "$failures" = 0 ]\n'].join("\n"),
    limitMs: (BOOT_LIMIT_S + suites.length * SUITE_LIMIT_S) * 1_000,
    onLine: (line) => {
      if (line === "up") steps.add("boot", true, (performance.now() - startMs) / 1_000, []);
      else steps.onLine(line);
    },
  });
  await steps.over(machine);
  return steps.results;
}
