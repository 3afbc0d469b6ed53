import { describe, expect, test } from "bun:test";
import { existsSync, readFileSync, rmSync } from "node:fs";
import { join } from "node:path";
import { ROOT } from "../../scripts/lib/paths.ts";
import { seededRandom } from "../../src/core/index.ts";
import { describeNative } from "../support/index.ts";
import type { FuzzResult } from "./fuzz.ts";
import { minimise, mutate } from "./mutate.ts";
import { TARGETS } from "./targets.ts";

const PROGRAM = ["test/lanes.ts", "fuzz"];
const CANARY = ["--define", "HEARTH_CANARY=true"];

async function run(words: string[], before: string[] = [], program = PROGRAM) {
  const child = Bun.spawn([process.execPath, ...before, ...program, ...words], {
    cwd: ROOT,
    stdout: "pipe",
    stderr: "pipe",
  });
  const [out, err] = await Promise.all([
    new Response(child.stdout).text(),
    new Response(child.stderr).text(),
  ]);
  return { code: await child.exited, signal: child.signalCode, out, err };
}

function resultOf(out: string): FuzzResult {
  return JSON.parse(out.trim().split("\n").at(-1)!) as FuzzResult;
}

describeNative("the fuzzer", () => {
  test("finds nothing in a few seconds of damaged input", async () => {
    const { code, out, err } = await run(["--seconds", "6", "--seed", "11"]);
    expect(`${code} ${err}`).toStartWith("0 ");
    const result = resultOf(out);
    expect([result.crashes, result.hangs]).toEqual([0, 0]);
    expect(result.inputs).toBeGreaterThan(1000);
    expect(Object.keys(result.targets)).toEqual(Object.keys(TARGETS));
    for (const target of Object.values(result.targets)) {
      // A target gets its share of the seconds: little on a busy host.
      expect(target.inputs).toBeGreaterThan(0);
    }
    const features = Object.values(result.targets).map((target) => target.features);
    expect(Math.max(...features)).toBeGreaterThan(1);
  });

  test("finds a planted bug, and again what it saved of it", async () => {
    const found = await run(["--seconds", "20", "--seed", "11", "--expect-canary"], CANARY);
    expect(`${found.code} ${found.err}`).toStartWith("0 ");
    const [finding] = resultOf(found.out).findings;
    expect(finding).toMatchObject({ target: "requests", kind: "crash" });
    const replay = ["--replay", finding!.file];
    expect((await run(replay, CANARY)).code).toBe(1);
    expect((await run(replay)).code).toBe(0);
    rmSync(join(ROOT, finding!.file));
  });

  test("fails where no bug is planted and one is expected", async () => {
    const words = ["--seconds", "0.2", "--target", "requests", "--seed", "1", "--expect-canary"];
    expect((await run(words)).code).toBe(1);
  });

  test("saves an input that never ends", async () => {
    const program = `
      import { startWatchdog } from "./test/fuzz/watchdog.ts";
      const watchdog = startWatchdog(200);
      watchdog.begin("json", new TextEncoder().encode("fine"));
      watchdog.end();
      await Bun.sleep(600);
      watchdog.begin("json", new TextEncoder().encode("without end"));
      for (;;);`;
    const { signal, out, err } = await run([program], [], ["-e"]);
    expect(signal).toBe("SIGKILL");
    expect(err).toContain("json: hang");
    const { stuck } = JSON.parse(out) as { stuck: string };
    expect(readFileSync(join(ROOT, stuck), "utf8")).toBe("without end");
    rmSync(join(ROOT, stuck));
    expect(existsSync(join(ROOT, stuck))).toBe(false);
  });
});

describe("inputs", () => {
  test("are the same for the same seed, and no longer than they may be", () => {
    const corpus = [new Uint8Array(40), new Uint8Array(Buffer.from('{"a": 12}'))];
    const make = () => {
      const random = seededRandom(5);
      return Array.from({ length: 2_000 }, () => mutate(corpus, random, 512));
    };
    const inputs = make();
    expect(make()).toEqual(inputs);
    expect(inputs.every(({ length }) => length <= 512)).toBe(true);
    expect(inputs.some(({ length }) => length > 256)).toBe(true);
    expect(new Set(inputs.map((input) => input.toHex())).size).toBeGreaterThan(1_000);
  });

  test("are made as small as they can be", async () => {
    const input = new Uint8Array(Buffer.from("many bytes, of which x and y matter"));
    const text = (bytes: Uint8Array) => Buffer.from(bytes).toString();
    const fails = async (bytes: Uint8Array) => /x.*y/.test(text(bytes));
    expect(text(await minimise(input, fails, () => true))).toBe("xy");
    let looks = 0;
    const early = await minimise(input, fails, () => looks++ < 3);
    expect(early.length).toBeGreaterThan(2);
  });
});
