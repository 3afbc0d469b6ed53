/** `bun run demo`: the demo of the compiled executable, built when the sources changed. */
import { BuildError, ensureHostExecutable } from "./lib/executable.ts";

async function executable(): Promise<string> {
  try {
    return await ensureHostExecutable();
  } catch (thrown) {
    if (!(thrown instanceof BuildError)) throw thrown;
    console.error(`demo: ${thrown.message}`);
    process.exit(1);
  }
}

const child = Bun.spawn([await executable(), "demo", ...process.argv.slice(2)], {
  stdio: ["inherit", "inherit", "inherit"],
});
// The demo removes what it made; so it gets the signal and this waits until it is done.
process.on("SIGINT", () => child.kill("SIGINT"));
process.on("SIGTERM", () => child.kill("SIGTERM"));
process.on("SIGHUP", () => child.kill("SIGHUP"));
process.exit(await child.exited);
