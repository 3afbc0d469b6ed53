import { expect, test } from "bun:test";
import { existsSync, readdirSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { tempDir } from "./temp-dir.ts";

const RUNNER = join(import.meta.dir, "lane.ts");

/** Runs a lane written to a file in a process of its own. */
async function play(body: string, words: readonly string[], env: Record<string, string> = {}) {
  const folder = tempDir();
  const file = join(folder, "lane.ts");
  const imports = "defineLane, flag, LaneSkip, oneOf, runLane, text, whole";
  writeFileSync(
    file,
    `import { ${imports} } from ${JSON.stringify(RUNNER)};
import { writeFileSync } from "node:fs";
const lane = defineLane({
  help: "the help",
  options: { count: whole(1, 3), name: oneOf(["a", "b"]), dir: text(), fast: flag() },
  async run(values, host) { ${body} },
});
process.exit(await runLane("sample", lane, process.argv.slice(2)));
`,
  );
  const child = Bun.spawn([process.execPath, file, ...words], {
    env: { ...process.env, ...env },
    stdout: "pipe",
    stderr: "pipe",
  });
  const [out, err] = await Promise.all([child.stdout.text(), child.stderr.text()]);
  return { code: await child.exited, out, err, folder };
}

const ECHO = `return { violations: [], json: values, text: "fine" };`;

test("a lane gets its options with their defaults, and prints text or JSON", async () => {
  const text = await play(ECHO, []);
  expect([text.code, text.out]).toEqual([0, "fine\n"]);
  const words = ["--json", "--count", "7", "--name", "b", "--fast"];
  const json = await play(ECHO, words);
  expect(JSON.parse(json.out)).toEqual({ count: 7, name: "b", dir: null, fast: true });
  expect(json.out).not.toContain("fine");
});

test.each([
  [["--count", "0"], "--count 0: expected a whole number of at least 1"],
  [["--count", "x"], "--count x: expected a whole number"],
  [["--name", "c"], "--name c: expected one of a, b"],
  [["--nothing"], "--nothing"],
])("wrong usage %p exits 2 with the reason and the help", async (words, reason) => {
  const { code, err } = await play(ECHO, words);
  expect(code).toBe(2);
  expect(err).toContain(reason);
  expect(err).toContain("the help");
});

test("--help prints the help and exits 0", async () => {
  const { code, out } = await play(`throw new Error("ran");`, ["--help"]);
  expect([code, out]).toEqual([0, "the help\n"]);
});

test("a violation is printed and exits 1", async () => {
  const found = await play(`return { violations: ["one wrong byte"], json: {} };`, []);
  expect([found.code, found.err]).toEqual([1, "violation: one wrong byte\n"]);
});

test("a skip exits 0 with its reason, and 1 if the lane is required", async () => {
  const body = `throw new LaneSkip("no such device", "SAMPLE");`;
  const skipped = await play(body, ["--json"], { REQUIRE_SAMPLE: "0" });
  expect([skipped.code, skipped.err]).toEqual([0, "skipped: sample: no such device\n"]);
  expect(JSON.parse(skipped.out)).toEqual({ skipped: "no such device" });
  const required = await play(body, [], { REQUIRE_SAMPLE: "1" });
  expect([required.code, required.err]).toEqual([1, "required: sample: no such device\n"]);
});

test("folders of a lane are removed after it ends, after a failure and after a signal", async () => {
  const record = `const at = host.folder(values.dir);`;
  for (const end of [
    ECHO,
    `throw new Error("broken");`,
    `process.kill(process.pid, "SIGTERM"); await Bun.sleep(60_000);`,
  ]) {
    const below = tempDir();
    const note = join(tempDir(), "note");
    const body = `${record} writeFileSync(${JSON.stringify(note)}, at); ${end}`;
    await play(body, ["--dir", below]);
    expect(existsSync(note)).toBe(true);
    expect(readFileSync(note, "utf8")).toStartWith(join(below, "hearth-sample-"));
    expect(readdirSync(below)).toEqual([]);
  }
});
