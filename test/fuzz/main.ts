/** `bun run test:fuzz`: damaged input for everything that reads what others wrote. */
import { readFileSync } from "node:fs";
import { scriptOptions } from "../../scripts/lib/arguments.ts";
import { ensureHost } from "../../scripts/lib/native-build.ts";
import { messageOf, systemRandom } from "../../src/core/index.ts";
import { targetOfFile } from "./findings.ts";
import { fuzz } from "./fuzz.ts";
import { TARGETS } from "./targets.ts";
import { startWatchdog } from "./watchdog.ts";

const NAMES = Object.keys(TARGETS);
const HELP = `
Throws damaged frames, conversations, manifests, configurations, JSON and trace lines at what reads
them. Allowed are refusals; anything else that is thrown, more than 100 ms for one input (20 ms for
templates and chat bodies), memory that grows without bound and answers that contradict each other
are findings.

  bun run test:fuzz -- --seconds 60        all targets, the time shared evenly
  bun run test:fuzz -- --target requests   one of ${NAMES.slice(0, 4).join(", ")},
                                           ${NAMES.slice(4).join(", ")}
  bun run test:fuzz -- --seed 7            the same inputs again
  bun run test:fuzz -- --replay FILE       one input that failed, from dist/fuzz
  bun --define HEARTH_CANARY=true test/fuzz/main.ts --seconds 20 --expect-canary
                                           with a bug planted, which must be found

The last line of the output is JSON. Exit codes: 0 nothing was found (or the planted bug was);
1 something was found (or the planted bug was not); 2 wrong usage.
`;

const options = scriptOptions(HELP, {
  seconds: { type: "string", default: "60" },
  seed: { type: "string" },
  target: { type: "string" },
  replay: { type: "string" },
  "expect-canary": { type: "boolean", default: false },
});

function fail(text: string): never {
  console.error(text);
  process.exit(2);
}

/** Runs one saved input; what it throws goes on. */
async function replay(file: string): Promise<number> {
  const name = targetOfFile(file);
  const make = TARGETS[name] ?? fail(`${file}: the name does not begin with a target`);
  const target = make();
  const start = Bun.nanoseconds();
  try {
    await target.run(new Uint8Array(readFileSync(file)), (feature) => console.log(feature));
    target.settle?.();
    console.log(`${name}: nothing in ${((Bun.nanoseconds() - start) / 1e6).toFixed(2)} ms`);
    return 0;
  } catch (error) {
    console.error(error instanceof Error ? error.stack : messageOf(error));
    return 1;
  } finally {
    await target.close?.();
  }
}

async function run(): Promise<number> {
  const seconds = Number(options.seconds);
  const seed = options.seed === undefined ? systemRandom.u32() : Number(options.seed);
  const names = options.target === undefined ? NAMES : [options.target];
  if (!(seconds > 0)) fail(`--seconds ${options.seconds} is no time`);
  if (!Number.isSafeInteger(seed)) fail(`--seed ${options.seed} is no whole number`);
  if (names.some((name) => TARGETS[name] === undefined)) fail(`--target is one of ${NAMES}`);
  using watchdog = startWatchdog();
  const result = await fuzz({
    seconds,
    seed,
    targets: names,
    watchdog,
    untilFound: options["expect-canary"],
    say: (line) => console.error(line),
  });
  console.log(JSON.stringify(result));
  return result.findings.length > 0 === options["expect-canary"] ? 0 : 1;
}

const native = await ensureHost();
if (native.kind === "failed" || native.kind === "skipped") fail(`no native library: ${native.why}`);
process.exit(await (options.replay === undefined ? run() : replay(options.replay)));
