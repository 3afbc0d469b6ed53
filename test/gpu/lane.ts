import { join } from "node:path";
import { standInsFolder } from "../../scripts/lib/native-build.ts";
import { findPython } from "../../scripts/lib/python.ts";
import { hostTarget } from "../../scripts/lib/targets.ts";
import { gpuFinding, probeGpus } from "../../src/devices/index.ts";
import { loadNative } from "../../src/native/index.ts";
import { defineLane, flag, LaneSkip, needStandIns, text } from "../support/lane.ts";
import {
  type CaseResult,
  checkContract,
  checkEngine,
  checkRates,
  checkTtft,
  tallyOf,
} from "./cases.ts";

const DEFAULT_LIBRARY = "libcuda.so.1";

export const lane = defineLane({
  help: `
Opens the driver of this host's GPU and checks on it what the suite checks on the stand-in: the
contract of the GPU port, byte by byte and between processes; rates beside a plain loop over the
driver (at least 0.9 of it from 1 MiB on, 0.6 for batches of 64 KiB); an agent with an engine in
Python whose cache returns from RAM and SSD; with PyTorch the time to the first token of Qwen3-14B's
shapes (at least 11 times shorter restored than computed, at 15,002 tokens).

  ./dev test:gpu                        everything
  ./dev test:gpu --python FILE          an interpreter that has PyTorch
  ./dev test:gpu --dir DIR              where the SSD tier is measured
  ./dev test:gpu --library FILE         another libcuda.so.1 than the linker finds
  ./dev test:gpu --stand-in             on the tests' own library, without bounds on rates
  ./dev test:gpu --json                 the report as one line of JSON on standard output

Without a GPU it prints "skipped" with the reason and exits 0; with REQUIRE_GPU=1 it exits 1, also if
a part is skipped for lack of Python or PyTorch.
Exit codes: 0 all is well, or skipped; 1 it is not; 2 wrong usage.
`,
  options: { python: text(), dir: text(), library: text(), "stand-in": flag() },
  async run({ python, dir, library: given, "stand-in": isStandIn }, host) {
    const target = hostTarget();
    if (!target.ok) throw new LaneSkip(`no device: ${target.why}`, "GPU");
    await needStandIns();
    const library = isStandIn
      ? join(standInsFolder(target.target), DEFAULT_LIBRARY)
      : (given ?? DEFAULT_LIBRARY);
    const { info, devices } = await probeGpus(loadNative(), library);
    const named = devices.map((device) => ({ ...device, uuid: new Uint8Array() }));
    const { kind, text: device } = gpuFinding(info, named);
    if (kind !== "usable") throw new LaneSkip(`no device: ${device}`, "GPU");
    host.say(device);
    const found = findPython();
    const interpreter = python ?? (found.kind === "ready" ? found.path : null);
    const bench = { library, isReal: !isStandIn, python: interpreter, dir };
    const results: CaseResult[] = [];
    for (const check of [checkContract, checkRates, checkEngine, checkTtft]) {
      const result = await check(bench);
      results.push(result);
      host.say(`${result.outcome.padEnd(7)} ${result.name}`);
      for (const line of result.words) host.say(`  | ${line}`);
    }
    const { isWell, ...tally } = tallyOf(results, process.env.REQUIRE_GPU === "1");
    const failed = results.filter(({ outcome }) => outcome !== "ok").map(({ name }) => name);
    return {
      violations: isWell ? [] : failed,
      json: { device, ...tally, cases: results },
    };
  },
});
