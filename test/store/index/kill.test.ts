import { expect, test } from "bun:test";
import { mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { randomBelow, seededRandom } from "../../../src/core/index.ts";
import { describeNative, hearthExecutable, tempDir } from "../../support/index.ts";
import { loadRows, openIndex, rowOf, textOf } from "./index-kit.ts";
import { LineChild } from "./line-child.ts";

const ROOT = join(import.meta.dir, "../../..");
const folders = tempDir();

interface Acknowledged {
  readonly flushed: number;
  readonly removed: number;
}

/** Kills a writer after some answers, amid its next changes, and reads the remaining files. */
async function killAndLook(
  command: readonly string[],
  folder: string,
  incarnation: bigint,
  answers: number,
) {
  let last: Acknowledged = { flushed: 0, removed: 0 };
  {
    await using child = new LineChild([...command, folder, String(incarnation)]);
    const opened = JSON.parse((await child.line()) ?? "null");
    expect(opened).toEqual({ begun: true, setAside: null });
    for (let left = answers; left > 0; left--) last = JSON.parse((await child.line())!);
    await child.kill();
    for (let line = await child.line(); line !== null; line = await child.line()) {
      if (line.endsWith("}")) last = JSON.parse(line);
    }
  }
  await using index = await openIndex(folder, { incarnation: incarnation + 1n });
  expect(index.state.setAside).toBeNull();
  const { previous } = index;
  expect(previous).toMatchObject({ incarnation, clean: false });
  expect(previous.flushedSequence).toBeGreaterThanOrEqual(last.flushed);
  const rows = await loadRows(index);
  // Changes after the last answer are committed whole or not at all: the sequence shows which.
  const through = previous.flushedSequence;
  for (let number = 1; number <= through; number++) {
    const [key, text] = textOf(rowOf(number));
    const found = rows.get(key);
    if (number % 10 === 0 && number <= last.removed) expect(found).toBeUndefined();
    else if (number % 10 !== 0 || number > through - 300) expect(found).toBe(text);
    rows.delete(key);
  }
  expect([...rows.keys()]).toEqual([]);
  // The next writer begins with an empty index.
  for (let number = 1; number <= through; number++) {
    index.remove(rowOf(number).digest, rowOf(number).layer);
  }
  expect(await index.close(5_000)).toBe(true);
}

test("kill -9 loses no flushed change, and the sequence shows the changes lost", async () => {
  const random = seededRandom(7);
  const folder = join(folders, "killed");
  const command = [process.execPath, join(import.meta.dir, "children/writer.ts")];
  for (let cycle = 0; cycle < 6; cycle++) {
    await killAndLook(command, folder, BigInt(cycle * 2 + 1), randomBelow(random, 12));
  }
});

describeNative("the same of a compiled executable", () => {
  test("which carries the worker at its path", async () => {
    // As the build does it: the worker is an entry point at `store/index/` below the first one's.
    const sources = join(folders, "sources");
    mkdirSync(join(sources, "store/index"), { recursive: true });
    const link = (path: string) => `import ${JSON.stringify(join(ROOT, path))};\n`;
    writeFileSync(join(sources, "main.ts"), link("test/store/index/children/writer.ts"));
    writeFileSync(
      join(sources, "store/index/index-worker.ts"),
      link("src/store/index/index-worker.ts"),
    );
    const entries = ["main.ts", "store/index/index-worker.ts"].map((name) => join(sources, name));
    const built = join(folders, "writer");
    const target = `HEARTH_TARGET="${process.platform}-${process.arch}"`;
    const words = ["--compile", "--minify", "--bytecode", "--format=esm", "--define", target];
    const command = [process.execPath, "build", ...words, ...entries, `--outfile=${built}`];
    const build = Bun.spawnSync(command, { cwd: ROOT });
    expect(`${build.exitCode} ${build.exitCode === 0 ? "" : build.stderr}`).toBe("0 ");
    for (const incarnation of [1n, 3n]) {
      await killAndLook([built], join(folders, "compiled"), incarnation, 5);
    }
  });

  test("and so does Hearth's own", async () => {
    const bytes = readFileSync(await hearthExecutable());
    expect(bytes.includes("/$bunfs/root/store/index/index-worker.js")).toBe(true);
  });
});
