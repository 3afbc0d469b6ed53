import { existsSync, mkdirSync, mkdtempSync, readdirSync, renameSync, rmSync } from "node:fs";
import { join } from "node:path";
import { TOOLCHAIN_DIR } from "./paths.ts";
import { run } from "./run.ts";

/** Debian's name of the package, and where its executable lies inside. */
const PACKAGE = "nats-server";
const INSIDE = "usr/sbin/nats-server";
const BROUGHT_DIR = join(TOOLCHAIN_DIR, "nats-server");

export type NatsServerVerdict =
  | { readonly kind: "ready"; readonly path: string }
  | { readonly kind: "skipped"; readonly why: string };

/** A nats-server that is here already: on the PATH, where Debian puts it, or brought before. */
export function findNatsServer(): NatsServerVerdict {
  const onPath = Bun.which(PACKAGE);
  const places = [onPath, `/${INSIDE}`, join(BROUGHT_DIR, INSIDE)];
  const path = places.find((place) => place !== null && existsSync(place));
  if (path !== undefined && path !== null) return { kind: "ready", path };
  const why = "no nats-server on the PATH; `./dev test` brings one where Debian's packages are";
  return { kind: "skipped", why };
}

/**
 * As `findNatsServer`; where there is none, Debian's package is fetched and unpacked below
 * `.toolchain`. Nothing is installed and no root is needed.
 */
export async function ensureNatsServer(): Promise<NatsServerVerdict> {
  const found = findNatsServer();
  if (found.kind === "ready") return found;
  for (const tool of ["apt-get", "dpkg"]) {
    if (Bun.which(tool) === null) {
      return { kind: "skipped", why: `no nats-server on the PATH, and no ${tool} to fetch it` };
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

async function bring(folder: string): Promise<NatsServerVerdict> {
  const fetched = await run(["apt-get", "download", PACKAGE], { cwd: folder });
  const file = readdirSync(folder).find((name) => name.endsWith(".deb"));
  if (!fetched.ok || file === undefined) {
    const last = fetched.output.trim().split("\n").at(-1);
    return { kind: "skipped", why: `apt-get download ${PACKAGE}: ${last}` };
  }
  const unpacked = await run(["dpkg", "-x", file, "out"], { cwd: folder });
  if (!unpacked.ok) return { kind: "skipped", why: `dpkg -x ${file}: ${unpacked.output.trim()}` };
  rmSync(BROUGHT_DIR, { recursive: true, force: true });
  renameSync(join(folder, "out"), BROUGHT_DIR);
  return findNatsServer();
}
