import { join } from "node:path";
import { CUT, FAR, NEAR, type Place } from "./guest/places.ts";
import { Machine, type Wire } from "./machine.ts";
import type { Bed } from "./packages.ts";
import { type CaseResult, JOB_HELPERS, Steps } from "./steps.ts";

const BOOT_LIMIT_S = 120;
const SUITE_LIMIT_S = 480;
const MEMORY_MIB = 2_048;

/** What runs in the near guest, in this order: the last one cuts the other's power. */
const SUITES = {
  wire: "test/rdma/guest/pair-pulls.ts",
  puller: "test/rdma/guest/pair-puller.ts",
  faults: "test/rdma/guest/pair-faults.ts",
};

/** Orders are taken by a new process whenever the last one was killed. */
const FAR_JOB = `
while :; do
  host bun test/rdma/guest/far-peer.ts >> /out/far-peer.log 2>&1
  b usleep 100000
done
`;

/** Two cards a guest: the rail for RDMA, and a network for all else, which no fault touches. */
function wiresOf(folder: string, own: string, theirs: string, last: number): Wire[] {
  return ["rail", "net"].map((name, at) => ({
    name,
    own: join(folder, `${name}-${own}`),
    theirs: join(folder, `${name}-${theirs}`),
    mac: `52:54:00:77:0${at}:0${last}`,
  }));
}

function settingsOf({ rail, net }: Place): Record<string, string> {
  return { rail: "eth0", address: `${rail}/24`, net: "eth1", control: `${net}/24` };
}

/** Two guests on one wire. */
export async function runPair(
  bed: Bed,
  folder: string,
  tell: (result: CaseResult) => void,
): Promise<CaseResult[]> {
  const steps = new Steps("pair", folder, tell);
  const startMs = performance.now();
  const limitMs = (BOOT_LIMIT_S + Object.keys(SUITES).length * SUITE_LIMIT_S) * 1_000;
  const common = { bed, folder, cpus: 1, memoryMib: MEMORY_MIB, limitMs };
  await using far = new Machine({
    ...{ ...common, name: "far", job: FAR_JOB, settings: settingsOf(FAR) },
    wires: wiresOf(folder, "far", "near", 2),
  });
  const suites = Object.entries(SUITES).map(
    ([name, file]) => `suite ${name} ${SUITE_LIMIT_S} ${file}`,
  );
  await using near = new Machine({
    ...{ ...common, name: "near", settings: settingsOf(NEAR) },
    job: [JOB_HELPERS, ...suites, '[ "$failures" = 0 ]\n'].join("\n"),
    wires: wiresOf(folder, "near", "far", 1),
    onLine: (line) => {
      if (line === CUT) far.kill();
      if (line !== "up") steps.onLine(line);
    },
  });
  const up = await Promise.all([far.line("up"), near.line("up")]);
  const isUp = up.every((line) => line !== null);
  const words = isUp ? [] : [...far.tail(15), ...near.tail(15)];
  steps.add("boot", isUp, (performance.now() - startMs) / 1_000, words);
  await steps.over(near);
  return steps.results;
}
