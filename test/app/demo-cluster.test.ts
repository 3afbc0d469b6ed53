import { expect, test } from "bun:test";
import { existsSync, readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { describeNative, describeNats, tempDir, waitFor } from "../support/index.ts";
import { FROM_CHECKOUT } from "./agent-process.ts";

/** Processes whose command line names `path`: all of the demo name their folders there. */
function processesWith(path: string): string[] {
  const lines = readdirSync("/proc").filter((name) => /^[0-9]+$/.test(name));
  return lines.flatMap((id) => {
    try {
      const words = readFileSync(`/proc/${id}/cmdline`, "utf8").replaceAll("\0", " ");
      return words.includes(path) ? [words] : [];
    } catch {
      // Gone since the folder was read.
      return [];
    }
  });
}

function startDemo(TMPDIR: string, ...more: string[]) {
  const words = ["demo", "--cluster", "--json", "--block-bytes", "4KiB", ...more];
  return Bun.spawn([...FROM_CHECKOUT, ...words], {
    env: { ...process.env, TMPDIR },
    stdin: "ignore",
    stdout: "pipe",
    stderr: "pipe",
  });
}

async function summaryOf(demo: ReturnType<typeof startDemo>) {
  const [printed, said] = await Promise.all([
    new Response(demo.stdout).text(),
    new Response(demo.stderr).text(),
  ]);
  expect([await demo.exited, said]).toEqual([0, said]);
  return JSON.parse(printed.trim().split("\n").at(-1)!);
}

describeNats("the demo of a cluster over NATS", () => {
  test("kv comes near one large cache, proves each byte, and leaves nothing behind", async () => {
    const folder = tempDir();
    const summary = await summaryOf(startDemo(folder, "--ram-blocks", "1500"));
    expect(summary).toMatchObject({ requests: 1000, workers: 4, over: "nats", wrong_bytes: 0 });
    const { hit_ratio: ratio, pooled_hit_ratio: pooled } = summary;
    expect(ratio.kv).toBeGreaterThanOrEqual(0.9 * pooled);
    expect(ratio.kv).toBeGreaterThan(ratio.random);
    expect(ratio.kv).toBeGreaterThan(ratio["round-robin"]);
    expect(summary.load_spread.kv).toBeLessThan(1.5);
    expect(readdirSync(folder)).toEqual([]);
    expect(processesWith(folder)).toEqual([]);
  });

  test.each(["SIGINT", "SIGTERM"] as const)(
    "on %s it leaves nothing behind",
    async (signal) => {
      const folder = tempDir();
      const demo = startDemo(folder, "--ram-blocks", "300");
      const routers = () => processesWith(folder).filter((words) => words.includes(" router "));
      await waitFor(() => routers().length === 1, 60_000, "the demo's router");
      expect(processesWith(folder).length).toBe(1 + 4 + 1);
      demo.kill(signal);
      expect(await demo.exited).toBe(130);
      expect(readdirSync(folder)).toEqual([]);
      expect(processesWith(folder)).toEqual([]);
    },
    90_000,
  );
});

describeNative("the demo of a cluster without NATS", () => {
  test("has agents and router in one process", async () => {
    const folder = tempDir();
    const more = ["--ram-blocks", "300", "--requests", "300", "--workers", "3", "--in-process"];
    const summary = await summaryOf(startDemo(folder, ...more));
    expect(summary).toMatchObject({ requests: 300, workers: 3, over: "in-process" });
    expect(summary.wrong_bytes).toBe(0);
    expect(summary.hit_ratio.kv).toBeGreaterThanOrEqual(0.9 * summary.pooled_hit_ratio);
    expect(readdirSync(folder)).toEqual([]);
    expect(processesWith(folder)).toEqual([]);
  });

  test("on SIGINT it leaves nothing behind either", async () => {
    const folder = tempDir();
    const demo = startDemo(folder, "--ram-blocks", "300", "--in-process");
    const sockets = () =>
      readdirSync(folder).filter((name) => existsSync(join(folder, name, "engine.sock")));
    await waitFor(() => sockets().length === 4, 60_000, "four agents");
    demo.kill("SIGINT");
    expect(await demo.exited).toBe(130);
    expect(readdirSync(folder)).toEqual([]);
    expect(processesWith(folder)).toEqual([]);
  });
});
