/** `bun run check:verbs`: what zig/rdma/ says of libibverbs, against libibverbs' own header. */
import { mkdirSync, mkdtempSync, readdirSync, rmSync } from "node:fs";
import { join } from "node:path";
import { scriptOptions } from "./lib/arguments.ts";
import { ROOT, TOOLCHAIN_DIR } from "./lib/paths.ts";
import { isRequired } from "./lib/required.ts";
import { run } from "./lib/run.ts";
import { findZig, runZig, zigEnvironment } from "./lib/zig.ts";

const HELP = `
Compares every struct, constant and call of zig/rdma/verbs.zig and symbols.zig with a header.

  bun run check:verbs                     with that of Debian's package libibverbs-dev
  bun run check:verbs --include FOLDER    with FOLDER/infiniband/verbs.h

Where there is neither a header nor Debian's packages it says so and skips; REQUIRE_VERBS_HEADER=1
makes that a failure. The first run takes a minute: it builds Zig's translator.

Exit codes: 0 equal, or skipped; 1 different, or failed; 2 wrong usage.
`;

const PACKAGE = "libibverbs-dev";
const HEADER = "infiniband/verbs.h";
const LAYOUT = join(ROOT, "zig/rdma/check_layout.zig");

type Verdict = { readonly kind: "equal" | "skipped" | "failed"; readonly text: string };

const lastLine = (text: string) => text.trim().split("\n").at(-1) ?? "";

/** The folder of the header; null where it cannot be had here, and why. */
async function bring(folder: string): Promise<{ include: string | null; why: string }> {
  for (const tool of ["apt-get", "dpkg-deb"]) {
    if (Bun.which(tool) === null) return { include: null, why: `no ${tool} to fetch it` };
  }
  const fetched = await run(["apt-get", "download", PACKAGE], { cwd: folder });
  const file = readdirSync(folder).find((name) => name.endsWith(".deb"));
  if (!fetched.ok || file === undefined) {
    return { include: null, why: `apt-get download ${PACKAGE}: ${lastLine(fetched.output)}` };
  }
  const unpacked = await run(["dpkg-deb", "-x", file, "."], { cwd: folder });
  if (!unpacked.ok) return { include: null, why: `dpkg-deb -x: ${lastLine(unpacked.output)}` };
  return { include: join(folder, "usr/include"), why: file };
}

async function compare(zig: string, include: string, folder: string): Promise<Verdict> {
  const source = join(folder, "verbs.h");
  await Bun.write(source, `#include <${HEADER}>\n`);
  const header = join(folder, "header.zig");
  const translator = Bun.spawn([zig, "translate-c", "-lc", "-I", include, source], {
    env: zigEnvironment(),
    stdin: "ignore",
    stdout: Bun.file(header),
    stderr: "pipe",
  });
  const said = await new Response(translator.stderr).text();
  if ((await translator.exited) !== 0) return { kind: "failed", text: said };
  // Without names for a debugger, which would have to be of calls that nobody links here.
  const words = ["test", "-fstrip", "-lc", "--dep", "header", `-Mroot=${LAYOUT}`];
  const compared = await runZig(zig, [...words, `-Mheader=${header}`]);
  const counts = compared.output.match(/\d+ structs.*calls/)?.[0];
  if (!compared.ok || counts === undefined) return { kind: "failed", text: compared.output };
  return { kind: "equal", text: counts };
}

async function check(include: string | undefined): Promise<Verdict> {
  const zig = findZig();
  if (zig === undefined) return { kind: "skipped", text: "no Zig in node_modules" };
  mkdirSync(TOOLCHAIN_DIR, { recursive: true });
  const folder = mkdtempSync(join(TOOLCHAIN_DIR, "verbs-"));
  try {
    const found = include === undefined ? await bring(folder) : { include, why: include };
    if (found.include === null) return { kind: "skipped", text: found.why };
    const verdict = await compare(zig, found.include, folder);
    if (verdict.kind !== "equal") return verdict;
    return { kind: "equal", text: `${verdict.text}, equal to those of ${found.why}` };
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
}

const options = scriptOptions(HELP, { include: { type: "string" } });
const verdict = await check(options.include);
console.error(`check:verbs: ${verdict.kind === "equal" ? "" : `${verdict.kind}: `}${verdict.text}`);
const failed = verdict.kind === "failed";
process.exit(failed || (verdict.kind === "skipped" && isRequired("VERBS_HEADER")) ? 1 : 0);
