import { existsSync, renameSync, rmSync } from "node:fs";
import { homedir } from "node:os";
import { dirname, join } from "node:path";

const PACKAGES = ["redis==8.1.0", "hiredis==3.5.0"];
const INSTALL_MS = 120_000;

/** An interpreter, and why it may lack the client of Redis. */
export interface Interpreter {
  readonly path: string;
  readonly why: string | null;
}

function cacheFolder(): string {
  const caches = process.env.XDG_CACHE_HOME ?? join(homedir(), ".cache");
  return join(caches, "hearth/client-bench");
}

/**
 * `python3` in a virtual environment with redis-py and hiredis, which is made once, from PyPI, in
 * the user's cache folder. Without a network or without venv: `python3` as it is.
 */
export function interpreterWithRedis(): Interpreter {
  const folder = cacheFolder();
  const own = join(folder, "bin/python");
  if (existsSync(own)) return { path: own, why: null };
  const unfinished = `${folder}.${process.pid}`;
  const run = (words: string[]) =>
    Bun.spawnSync(words, { stdout: "ignore", stderr: "pipe", timeout: INSTALL_MS });
  try {
    Bun.spawnSync(["mkdir", "-p", dirname(folder)]);
    const made = run(["python3", "-m", "venv", unfinished]);
    if (!made.success) return { path: "python3", why: lastLine(made.stderr) };
    const pip = [join(unfinished, "bin/python"), "-m", "pip", "install", "--quiet", ...PACKAGES];
    const installed = run(pip);
    if (!installed.success) return { path: "python3", why: lastLine(installed.stderr) };
    renameSync(unfinished, folder);
    return { path: own, why: null };
  } finally {
    rmSync(unfinished, { recursive: true, force: true });
  }
}

function lastLine(output: Buffer): string {
  return output.toString().trim().split("\n").at(-1) ?? "no output";
}
