import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { ensureHostExecutable } from "./executable.ts";

const START_MS = 10_000;
const STOP_MS = 12_000;

/**
 * Small on purpose: it must start on any host on which tests run, also under a low memlock limit.
 */
function configFor(socket: string): string {
  return [
    "[kv]",
    "ram_gib = 0.0625",
    "[engine]",
    `socket = ${JSON.stringify(socket)}`,
    "[api]",
    'listen = "127.0.0.1:0"',
    "",
  ].join("\n");
}

async function answers(socket: string): Promise<boolean> {
  try {
    const connection = await Bun.connect({ unix: socket, socket: { data: () => undefined } });
    connection.end();
    return true;
  } catch {
    // Not listening yet.
    return false;
  }
}

/**
 * Runs `use` with the engine socket of an agent: the compiled executable in a folder of its own,
 * stopped and removed afterwards. Throws with what the agent printed when it does not start.
 */
export async function withAgent<T>(use: (socket: string) => Promise<T>): Promise<T> {
  const executable = await ensureHostExecutable();
  const folder = mkdtempSync(join(tmpdir(), "hearth-"));
  const socket = join(folder, "engine.sock");
  const config = join(folder, "hearth.toml");
  writeFileSync(config, configFor(socket));
  const child = Bun.spawn([executable, "agent", "--config", config], {
    cwd: folder,
    stdin: "ignore",
    stdout: Bun.file(join(folder, "out")),
    stderr: Bun.file(join(folder, "err")),
  });
  const kill = setTimeout(() => child.kill("SIGKILL"), START_MS);
  try {
    while (!(await answers(socket))) {
      if (child.exitCode !== null || child.signalCode !== null) {
        const printed = await Promise.all(
          ["out", "err"].map((name) => Bun.file(join(folder, name)).text()),
        );
        throw new Error(`the agent did not start:\n${printed.join("")}`);
      }
      await Bun.sleep(10);
    }
    clearTimeout(kill);
    return await use(socket);
  } finally {
    clearTimeout(kill);
    child.kill("SIGTERM");
    const stubborn = setTimeout(() => child.kill("SIGKILL"), STOP_MS);
    await child.exited;
    clearTimeout(stubborn);
    rmSync(folder, { recursive: true, force: true });
  }
}
