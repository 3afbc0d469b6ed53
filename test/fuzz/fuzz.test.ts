import { expect, test } from "bun:test";
import { join } from "node:path";
import { describeNative } from "../support/index.ts";

const MAIN = join(import.meta.dir, "main.ts");

async function run(words: string[], defines: string[] = []) {
  const child = Bun.spawn([process.execPath, ...defines, MAIN, ...words], {
    stdout: "pipe",
    stderr: "pipe",
  });
  const [out, err] = await Promise.all([
    new Response(child.stdout).text(),
    new Response(child.stderr).text(),
  ]);
  return { code: await child.exited, out, err };
}

describeNative("the fuzzer", () => {
  test("finds nothing in a few seconds of damaged input", async () => {
    const { code, out, err } = await run(["--seconds", "4", "--seed", "11"]);
    expect(`${code} ${err}`).toStartWith("0 ");
    const result = JSON.parse(out.trim().split("\n").at(-1)!);
    expect([result.crashes, result.hangs]).toEqual([0, 0]);
    expect(result.inputs).toBeGreaterThan(1000);
  }, 60_000);

  test("finds a planted bug", async () => {
    const words = ["--seconds", "20", "--target", "requests", "--seed", "11", "--expect-canary"];
    const { code, err } = await run(words, ["--define", "HEARTH_CANARY=true"]);
    expect(`${code} ${err}`).toStartWith("0 ");
    expect(err).toContain("crash");
  }, 60_000);
});
