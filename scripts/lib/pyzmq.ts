import { existsSync, mkdirSync, mkdtempSync, readdirSync, renameSync, rmSync } from "node:fs";
import { join } from "node:path";
import { TOOLCHAIN_DIR } from "./paths.ts";
import { run } from "./run.ts";

/** Debian's own Python: its packages are made for no other. */
const PYTHON = "/usr/bin/python3";
const PACKAGE = "python3-zmq";
const BROUGHT_DIR = join(TOOLCHAIN_DIR, PACKAGE);
const KINDS_LEFT_OUT = [
  "recommends",
  "suggests",
  "conflicts",
  "breaks",
  "replaces",
  "enhances",
].map((kind) => `--no-${kind}`);

/** How to run a Python that has ZeroMQ: with `env` beside what is inherited. */
export type PyzmqVerdict =
  | { readonly kind: "ready"; readonly path: string; readonly env: Record<string, string> }
  | { readonly kind: "skipped"; readonly why: string };

/** Python with pyzmq that is here already: installed, or brought before. */
export function findPyzmq(): PyzmqVerdict {
  if (!existsSync(PYTHON)) return { kind: "skipped", why: `no ${PYTHON}` };
  for (const env of [{}, broughtEnvironment()]) {
    const asked = Bun.spawnSync([PYTHON, "-c", "import zmq; zmq.Context()"], {
      env: { ...process.env, ...env },
    });
    if (asked.success) return { kind: "ready", path: PYTHON, env };
  }
  const why = `${PYTHON} has no zmq; \`./dev test\` brings it where Debian's packages are`;
  return { kind: "skipped", why };
}

function broughtEnvironment(): Record<string, string> {
  const folder = join(BROUGHT_DIR, "usr/lib");
  const libraries = existsSync(folder) ? readdirSync(folder) : [];
  const machine = libraries.find((name) => name.endsWith("-linux-gnu")) ?? "";
  return {
    PYTHONPATH: join(folder, "python3/dist-packages"),
    LD_LIBRARY_PATH: join(folder, machine),
  };
}

/**
 * As `findPyzmq`; where it is missing, Debian's packages are fetched and unpacked below
 * `.toolchain`. Nothing is installed and no root is needed.
 */
export async function ensurePyzmq(): Promise<PyzmqVerdict> {
  const found = findPyzmq();
  if (found.kind === "ready") return found;
  for (const tool of ["apt-get", "apt-cache", "dpkg"]) {
    if (Bun.which(tool) === null) {
      return { kind: "skipped", why: `${found.why}; there is no ${tool} to fetch it` };
    }
  }
  mkdirSync(TOOLCHAIN_DIR, { recursive: true });
  const folder = mkdtempSync(join(TOOLCHAIN_DIR, "fetch-"));
  try {
    return await bring(folder);
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
}

async function bring(folder: string): Promise<PyzmqVerdict> {
  const fetched = await run(["apt-get", "download", ...(await missingPackages())], { cwd: folder });
  const files = readdirSync(folder).filter((name) => name.endsWith(".deb"));
  if (!fetched.ok) {
    const last = fetched.output.trim().split("\n").at(-1);
    return { kind: "skipped", why: `apt-get download ${PACKAGE}: ${last}` };
  }
  for (const file of files) {
    const unpacked = await run(["dpkg", "-x", file, "out"], { cwd: folder });
    if (!unpacked.ok) return { kind: "skipped", why: `dpkg -x ${file}: ${unpacked.output.trim()}` };
  }
  rmSync(BROUGHT_DIR, { recursive: true, force: true });
  renameSync(join(folder, "out"), BROUGHT_DIR);
  return findPyzmq();
}

/** The package and all that it needs and that is not installed. */
async function missingPackages(): Promise<string[]> {
  const needed = await run(["apt-cache", "depends", "--recurse", ...KINDS_LEFT_OUT, PACKAGE]);
  const names = needed.output.split("\n").filter((line) => /^[a-z0-9][a-z0-9.+-]*$/.test(line));
  const format = "--showformat=$" + "{Package} $" + "{db:Status-Status}\\n";
  const status = await run(["dpkg-query", "--show", format, ...names]);
  const installed = new Set(status.output.match(/^\S+(?= installed$)/gm) ?? []);
  const missing = names.filter((name) => !installed.has(name));
  return missing.includes(PACKAGE) ? missing : [PACKAGE, ...missing];
}
