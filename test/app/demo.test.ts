import { expect, test } from "bun:test";
import { existsSync, readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { describeNative, tempDir, waitFor } from "../support/index.ts";
import { FROM_CHECKOUT } from "./agent-process.ts";

/** Processes whose command line names `path`: the demo's agent names its folder there. */
function processesWith(path: string): number[] {
  const ids = readdirSync("/proc").filter((name) => /^[0-9]+$/.test(name));
  return ids.map(Number).filter((id) => {
    try {
      return readFileSync(`/proc/${id}/cmdline`, "utf8").includes(path);
    } catch {
      // Gone since the folder was read.
      return false;
    }
  });
}

/** The demo with a temporary folder of its own, small and as fast as it goes. */
function startDemo(TMPDIR: string, ...more: string[]) {
  const words = ["demo", "--json", "--block-bytes", "4KiB", "--ram-blocks", "300", ...more];
  return Bun.spawn([...FROM_CHECKOUT, ...words], {
    env: { ...process.env, TMPDIR },
    stdin: "ignore",
    stdout: "pipe",
    stderr: "pipe",
  });
}

describeNative("the demo", () => {
  test("ends with one line of JSON and leaves nothing behind", async () => {
    const folder = tempDir();
    const demo = startDemo(folder);
    const printed = await new Response(demo.stdout).text();
    expect(await demo.exited).toBe(0);
    const summary = JSON.parse(printed.trim().split("\n").at(-1)!);
    expect(summary).toMatchObject({ requests: 1000, blocks_asked: 19_686, wrong_bytes: 0 });
    expect(summary.blocks_written).toBe(12_207);
    // 0.3799 where the host is quiet; on a busy one reads from SSD that come late are misses.
    expect(summary.hit_ratio).toBeGreaterThan(0.35);
    expect(summary.hit_ratio).toBeLessThanOrEqual(0.3799);
    expect(summary.hits_ram + summary.hits_ssd).toBe(summary.blocks_hit);
    expect(summary.hits_ssd).toBeGreaterThan(1_000);
    expect(summary.hit_ratio_after_restart).toBeGreaterThanOrEqual(0.97);
    expect(summary.hit_ratio_after_kill).toBeGreaterThanOrEqual(0.97);
    expect(readdirSync(folder)).toEqual([]);
    expect(processesWith(folder)).toEqual([]);
  });

  test.each(["SIGINT", "SIGTERM"] as const)("on %s neither", async (signal) => {
    const folder = tempDir();
    const demo = startDemo(folder);
    const isServing = () =>
      readdirSync(folder).some((name) => existsSync(join(folder, name, "engine.sock")));
    await waitFor(isServing, 15_000, "the demo's agent");
    expect(processesWith(folder)).toHaveLength(1);
    demo.kill(signal);
    expect(await demo.exited).toBe(130);
    expect(readdirSync(folder)).toEqual([]);
    expect(processesWith(folder)).toEqual([]);
  });
});

describeNative("the demo of two hosts", () => {
  test("the second has what the first had, also while the first is killed", async () => {
    const folder = tempDir();
    const demo = startDemo(folder, "--peers", "--requests", "200");
    const printed = await new Response(demo.stdout).text();
    expect(await demo.exited).toBe(0);
    const summary = JSON.parse(printed.trim().split("\n").at(-1)!);
    expect(summary).toMatchObject({ requests: 200, requests_around_kill: 100, wrong_bytes: 0 });
    expect(summary.hits_peer).toBeGreaterThan(0);
    expect(summary.hit_ratio).toBeGreaterThanOrEqual(summary.hit_ratio_single - 0.01);
    expect(summary.hit_ratio_around_kill).toBeGreaterThan(0);
    expect(readdirSync(folder)).toEqual([]);
    expect(processesWith(folder)).toEqual([]);
  });

  test("interrupted, it leaves nothing behind", async () => {
    const folder = tempDir();
    const demo = startDemo(folder, "--peers", "--requests", "300");
    const agents = () =>
      readdirSync(folder).filter((name) => existsSync(join(folder, name, "engine.sock")));
    await waitFor(() => agents().length === 2, 60_000, "two agents");
    demo.kill("SIGINT");
    expect(await demo.exited).toBe(130);
    expect(readdirSync(folder)).toEqual([]);
    expect(processesWith(folder)).toEqual([]);
  });
});
