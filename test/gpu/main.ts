/** `bun run test:gpu`: the contract, the rates and an engine on a real GPU. */
import { join } from "node:path";
import { scriptOptions } from "../../scripts/lib/arguments.ts";
import { ensureHost, ensureStandIns, standInsFolder } from "../../scripts/lib/native-build.ts";
import { findPython } from "../../scripts/lib/python.ts";
import { hostTarget } from "../../scripts/lib/targets.ts";
import { gpuFinding, probeGpus } from "../../src/devices/index.ts";
import { loadNative } from "../../src/native/index.ts";
import {
  type CaseResult,
  checkContract,
  checkEngine,
  checkRates,
  checkTtft,
  tallyOf,
} from "./cases.ts";

const HELP = `
Opens the driver of this host's GPU and shows on it what the suite shows on the stand-in: what the
port of GPUs promises, byte by byte and between processes; rates beside a plain loop over the driver
(at least 0.9 of it from 1 MiB on, 0.6 for batches of 64 KiB); an agent with an engine in Python
whose cache comes back from RAM and SSD; with PyTorch the time to the first token of Qwen3-14B's
shapes (at least 11 times shorter restored than computed, at 15,002 tokens).

  bun run test:gpu                        everything
  bun run test:gpu -- --python FILE       an interpreter that has PyTorch
  bun run test:gpu -- --dir DIR           where the SSD tier is measured
  bun run test:gpu -- --library FILE      another libcuda.so.1 than the linker finds
  bun run test:gpu -- --stand-in          on the tests' own library, without bounds on rates
  bun run test:gpu -- --json              the report as one line of JSON on standard output

Without a GPU it says "skipped: no device" and why, and ends with 0; with REQUIRE_GPU=1 it fails, as
it does then where a part is skipped for want of Python or PyTorch.
Exit codes: 0 all is well, or skipped; 1 it is not; 2 wrong usage.
`;

const DEFAULT_LIBRARY = "libcuda.so.1";

const options = scriptOptions(HELP, {
  python: { type: "string" },
  dir: { type: "string" },
  library: { type: "string" },
  "stand-in": { type: "boolean", default: false },
  json: { type: "boolean", default: false },
});

function say(text: string): void {
  console.error(`gpu: ${text}`);
}

const isRequired = process.env.REQUIRE_GPU === "1";

function skip(why: string): never {
  console.error(`${isRequired ? "required" : "skipped"}: no device: ${why}`);
  if (options.json) console.log(JSON.stringify({ skipped: why }));
  process.exit(isRequired ? 1 : 0);
}

async function libraryToUse(): Promise<string> {
  for (const outcome of [await ensureHost(), await ensureStandIns()]) {
    if (outcome.kind === "skipped") skip(outcome.why);
    if (outcome.kind === "failed") throw new Error(`${outcome.why}\n${outcome.output}`);
  }
  const host = hostTarget();
  if (!host.ok) skip(host.why);
  if (options["stand-in"]) return join(standInsFolder(host.target), DEFAULT_LIBRARY);
  return options.library ?? DEFAULT_LIBRARY;
}

async function main(): Promise<boolean> {
  const library = await libraryToUse();
  const { info, devices } = await probeGpus(loadNative(), library);
  const named = devices.map((device) => ({ ...device, uuid: new Uint8Array() }));
  const { kind, text } = gpuFinding(info, named);
  if (kind !== "usable") skip(text);
  say(text);
  const found = findPython();
  const python = options.python ?? (found.kind === "ready" ? found.path : null);
  const bench = { library, isReal: !options["stand-in"], python, dir: options.dir ?? null };
  const results: CaseResult[] = [];
  for (const check of [checkContract, checkRates, checkEngine, checkTtft]) {
    const result = await check(bench);
    results.push(result);
    say(`${result.outcome.padEnd(7)} ${result.name}`);
    for (const line of result.words) say(`  | ${line}`);
  }
  const { isWell, ...tally } = tallyOf(results, isRequired);
  if (options.json) console.log(JSON.stringify({ device: text, ...tally, cases: results }));
  return isWell;
}

process.exit((await main()) ? 0 : 1);
