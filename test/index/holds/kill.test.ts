import { expect, test } from "bun:test";
import { mkdirSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { randomBelow, seededRandom } from "../../../src/core/index.ts";
import { describeNative, tempDir } from "../../support/index.ts";
import { LineChild } from "../line-child.ts";
import { contentsOf, readLedger } from "./ledger-kit.ts";

const ROOT = join(import.meta.dir, "../../..");
const folders = tempDir();
const WRITER = [process.execPath, join(import.meta.dir, "writer.ts")];

/** Kills a writer after some of its answers, and looks at what is left. The last step there. */
async function killAndLook(
  command: readonly string[],
  folder: string,
  first: number,
  answers: number,
): Promise<number> {
  let acknowledged = first - 1;
  {
    await using child = new LineChild([...command, folder, String(first)]);
    expect(JSON.parse((await child.line()) ?? "null")).toEqual({ setAside: null, failing: null });
    const note = (line: string) => {
      acknowledged = Math.max(acknowledged, Number(line));
    };
    for (let left = answers; left > 0; left--) note((await child.line())!);
    await child.kill();
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
}, 60_000);

describeNative("the same of a compiled executable", () => {
  test("in which the index's worker has the ledger", async () => {
    const sources = join(folders, "sources");
    mkdirSync(join(sources, "index"), { recursive: true });
    const link = (path: string) => `import ${JSON.stringify(join(ROOT, path))};\n`;
    writeFileSync(join(sources, "main.ts"), link("test/index/holds/writer.ts"));
    writeFileSync(join(sources, "index/index-worker.ts"), link("src/index/index-worker.ts"));
    const entries = ["main.ts", "index/index-worker.ts"].map((name) => join(sources, name));
    const built = join(folders, "writer");
    const target = `HEARTH_TARGET="${process.platform}-${process.arch}"`;
    const words = ["--compile", "--minify", "--bytecode", "--format=esm", "--define", target];
    const command = [process.execPath, "build", ...words, ...entries, `--outfile=${built}`];
    const build = Bun.spawnSync(command, { cwd: ROOT });
    expect(`${build.exitCode} ${build.exitCode === 0 ? "" : build.stderr}`).toBe("0 ");
    const folder = join(folders, "compiled");
    const through = await killAndLook([built], folder, 1, 20);
    expect(await killAndLook([built], folder, through + 1, 20)).toBeGreaterThan(through);
  }, 60_000);
});
