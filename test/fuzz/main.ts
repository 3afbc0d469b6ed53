import { readFileSync } from "node:fs";
import { basename, join } from "node:path";
import { parseArgs } from "node:util";
import { systemRandom } from "../../src/core/index.ts";
import { fuzz, TARGETS } from "./fuzz.ts";

const HELP = `
Throws damaged frames, manifests, configurations, JSON and trace lines at their readers.

  bun run test:fuzz -- --seconds 60        all targets, the time shared evenly
  bun run test:fuzz -- --target requests   one of ${Object.keys(TARGETS).join(", ")}
  bun run test:fuzz -- --seed 7            the same inputs again
  bun run test:fuzz -- --replay FILE       one input that failed, from dist/fuzz
  bun --define HEARTH_CANARY=true test/fuzz/main.ts --seconds 20 --expect-canary
                                           with a bug planted, which must be found

The last line is JSON. Exit code 1: something was found (or the planted bug was not).`;

const { values } = parseArgs({
  options: {
    seconds: { type: "string", default: "60" },
    seed: { type: "string" },
    target: { type: "string" },
    replay: { type: "string" },
    "expect-canary": { type: "boolean", default: false },
    help: { type: "boolean", default: false },
  },
});

async function main(): Promise<number> {
  if (values.help) {
    console.log(HELP.trim());
    return 0;
  }
  if (values.replay !== undefined) {
    const name = basename(values.replay).split("-")[0]!;
    const target = TARGETS[name]!();
    target.run(new Uint8Array(readFileSync(values.replay)));
    target.settle?.();
    await target.close?.();
    console.log(`${name}: nothing happened`);
    return 0;
  }
  const result = await fuzz({
    seconds: Number(values.seconds),
    seed: values.seed === undefined ? systemRandom.u32() : Number(values.seed),
    targets: values.target === undefined ? Object.keys(TARGETS) : [values.target],
    folder: join(import.meta.dir, "../../dist/fuzz"),
    say: (line) => console.error(line),
  });
  console.log(JSON.stringify(result));
  const found = result.crashes + result.hangs > 0;
  return found === values["expect-canary"] ? 0 : 1;
}

process.exit(await main());
