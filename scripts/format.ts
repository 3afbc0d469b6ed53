/** `bun run format`: rewrites TypeScript and Zig sources in the house's layout. */
import { run } from "./lib/run.ts";
import { biome, zigSources } from "./lib/tools.ts";
import { findZig, zigEnvironment } from "./lib/zig.ts";

const formatted = await run(biome("check", "--write", "."), { echo: true });
let failed = !formatted.ok;

const zig = findZig();
if (zig === undefined) {
  console.error("skipped: Zig sources: no Zig in node_modules");
} else {
  const result = await run([zig, "fmt", ...zigSources()], { env: zigEnvironment(), echo: true });
  failed ||= !result.ok;
}
process.exit(failed ? 1 : 0);
