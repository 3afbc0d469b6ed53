import { expect, test } from "bun:test";
import { mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { randomBelow, seededRandom } from "../../../../src/core/index.ts";
import { hostTarget } from "../../../../src/native/index.ts";
import { describeNative, tempDir } from "../../../support/index.ts";
import { LineChild } from "../line-child.ts";
import { contentsOf, readLedger } from "./ledger-kit.ts";

const ROOT = join(import.meta.dir, "../../../..");
const folders = tempDir();
const WRITER = [process.execPath, join(import.meta.dir, "writer.ts")];

/**
 * Kills a writer after some answers, or lets it end itself, and reads the remaining files. The
 * last step there.
 */
async function killAndLook(
  command: readonly string[],
  folder: string,
  first: number,
  answers: number | "to its end",
): Promise<number> {
  let acknowledged = first - 1;
  {
    await using child = new LineChild([...command, folder, String(first)]);
    expect(JSON.parse((await child.line()) ?? "null")).toEqual({ setAside: null, failing: null });
    const note = (line: string) => {
      acknowledged = Math.max(acknowledged, Number(line));
    };
    if (answers !== "to its end") {
      for (let left = answers; left > 0; left--) note((await child.line())!);
      await child.kill();
    }
    // A line that was cut off says a smaller number.
    for (let line = await child.line(); line !== null; line = await child.line()) note(line);
  }
  const { state, holds, commands, issuers } = await readLedger(folder);
  expect(state).toMatchObject({ setAside: null, failing: null });
  const through = Number(issuers[0]?.split(" ").at(-1) ?? 0);
  expect(through).toBeGreaterThanOrEqual(acknowledged);
  const steps = Array.from({ length: through }, (_, at) => at + 1);
  expect(commands).toEqual(contentsOf(steps).commands);
  expect(holds).toEqual(contentsOf(steps.slice(-30)).holds);
  return through;
}

test("kill -9 loses nothing that was committed, and leaves no half of a group", async () => {
  const random = seededRandom(11);
  const folder = join(folders, "killed");
  let through = 0;
  for (let cycle = 0; cycle < 8; cycle++) {
    through = await killAndLook(WRITER, folder, through + 1, randomBelow(random, 40));
  }
  expect(through).toBeGreaterThan(30);
});

/** The writer, compiled as the build does it: the worker is an entry point of its own. */
function compiled(name: string, ...more: string[]): string {
  const sources = join(folders, name);
  mkdirSync(join(sources, "store/index"), { recursive: true });
  const link = (path: string) => `import ${JSON.stringify(join(ROOT, path))};\n`;
  writeFileSync(join(sources, "main.ts"), link("test/store/index/retention/writer.ts"));
  writeFileSync(
    join(sources, "store/index/index-worker.ts"),
    link("src/store/index/index-worker.ts"),
  );
  const entries = ["main.ts", "store/index/index-worker.ts"].map((entry) => join(sources, entry));
  const built = join(sources, "writer");
  const target = `HEARTH_TARGET="${process.platform}-${process.arch}"`;
  const words = ["--compile", "--minify", "--bytecode", "--format=esm", "--define", target];
  const command = [process.execPath, "build", ...words, ...more, ...entries, `--outfile=${built}`];
  const build = Bun.spawnSync(command, { cwd: ROOT });
  expect(`${build.exitCode} ${build.exitCode === 0 ? "" : build.stderr}`).toBe("0 ");
  return built;
}

describeNative("a compiled executable", () => {
  test("has the ledger in the index's worker", async () => {
    const built = compiled("plain");
    const folder = join(folders, "compiled");
    const through = await killAndLook([built], folder, 1, 20);
    expect(await killAndLook([built], folder, through + 1, 20)).toBeGreaterThan(through);
  });

  test("that ends at a crash point leaves a whole number of groups", async () => {
    const library = readFileSync(join(ROOT, "dist/native", hostTarget, "libhearth.so"));
    const sha256 = new Bun.CryptoHasher("sha256").update(library).digest("hex");
    const constants = ["HEARTH_FAULTS=true", "HEARTH_COMPILED=true"];
    constants.push(`HEARTH_NATIVE_SHA256="${sha256}"`);
    const built = compiled("faults", ...constants.flatMap((one) => ["--define", one]));
    const folder = join(folders, "at-points");
    let through = 0;
    for (const point of ["row-changed", "rows-changed", "before-commit", "committed"]) {
      for (const nth of [1, 9]) {
        const plan = `HEARTH_FAULTS=ledger.${point}:${nth}:kill`;
        const before = through;
        through = await killAndLook(["env", plan, built], folder, through + 1, "to its end");
        // The first transaction has over nine changes. Committed ones count, reported or not.
        const isLater = nth === 9 && point !== "row-changed";
        if (isLater || point === "committed") expect(through).toBeGreaterThan(before);
        else expect(through).toBe(before);
      }
    }
  });
});
