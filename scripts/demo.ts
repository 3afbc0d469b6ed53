/**
 * `bun run demo`: the demo of the compiled executable, built when the sources changed. With
 * `--engine`, a demo with a real engine, which runs from the sources.
 */
import { join } from "node:path";
import { BuildError, ensureHostExecutable } from "./lib/executable.ts";
import { ROOT } from "./lib/paths.ts";

const ENGINE_DEMO = [join(ROOT, "test/lanes.ts"), "demo-engines"];

async function executable(): Promise<string> {
  try {
    return await ensureHostExecutable();
  } catch (thrown) {
    if (!(thrown instanceof BuildError)) throw thrown;
    console.error(`demo: ${thrown.message}`);
    process.exit(1);
  }
}

const given = process.argv.slice(2);
const isEngine = given.some((word) => word === "--engine" || word.startsWith("--engine="));
const command = isEngine ? [process.execPath, ...ENGINE_DEMO] : [await executable(), "demo"];
const child = Bun.spawn([...command, ...given], {
  stdio: ["inherit", "inherit", "inherit"],
});
// The demo removes what it made; so it gets the signal and this waits until it is done.
process.on("SIGINT", () => child.kill("SIGINT"));
process.on("SIGTERM", () => child.kill("SIGTERM"));
process.on("SIGHUP", () => child.kill("SIGHUP"));
process.exit(await child.exited);
