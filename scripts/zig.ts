/** `./dev zig ARGS`: the pinned Zig with its caches in the checkout. */
import { findZig, zigEnvironment } from "./lib/zig.ts";

const zig = findZig();
if (zig === undefined) {
  console.error(`no Zig for ${process.platform}-${process.arch} in node_modules: run bun install`);
  process.exit(1);
}
const child = Bun.spawn([zig, ...process.argv.slice(2)], {
  env: zigEnvironment(),
  stdio: ["inherit", "inherit", "inherit"],
});
process.on("SIGINT", () => undefined);
process.exit(await child.exited);
