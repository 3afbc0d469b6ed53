/** `bun run wheels`: the Python packages as wheels. */
import { join, relative, resolve } from "node:path";
import { scriptOptions } from "./lib/arguments.ts";
import { ROOT } from "./lib/paths.ts";
import { parseTargets } from "./lib/targets.ts";
import { buildWheels, WheelError, writeWheels } from "./lib/wheels.ts";

const HELP = `
Builds the Python packages into dist/: hearth_client for each platform with its native library, and
without one for all others; hearth_vllm, hearth_sglang and hearth_lmcache. The same sources make the
same bytes. Python and pip are not needed to build them.

  bun run wheels                          everything
  bun run wheels --target linux-x64       hearth_client with the library of one platform
  bun run wheels --out FOLDER             into another folder

Exit codes: 0 built; 1 failed; 2 wrong usage.
`;

const options = scriptOptions(HELP, {
  target: { type: "string", default: "all" },
  out: { type: "string", default: join(ROOT, "dist") },
});

try {
  const wheels = await buildWheels(parseTargets(options.target));
  for (const file of writeWheels(wheels, resolve(options.out))) {
    console.log(relative(process.cwd(), file));
  }
} catch (thrown) {
  if (!(thrown instanceof WheelError)) throw thrown;
  console.error(`wheels: ${thrown.message}`);
  process.exit(1);
}
