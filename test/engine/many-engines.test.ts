import { expect, test } from "bun:test";
import { join } from "node:path";
import { chain } from "../store/names.ts";
import { describeNative, waitFor } from "../support/index.ts";
import { openAgent } from "./agent-kit.ts";

const CHILD = join(import.meta.dir, "children", "traffic-child.ts");
const PROCESSES = 4;
const ENGINES_EACH = 16;
const STEPS = 150;
const SLOTS = 48;

function spawnTraffic(socketPath: string, seed: number, steps: number) {
  return Bun.spawn(
    [process.execPath, CHILD, socketPath, `${seed}`, `${ENGINES_EACH}`, `${steps}`],
    {
      stdin: "pipe",
      stdout: "pipe",
      stderr: "inherit",
    },
  );
}

/** Every name that the engines may have used. */
function allNames(): string[] {
  const letters = ["a", "b", "c", "d"];
  let names = letters;
  const all = [...letters];
  for (let depth = 1; depth < 4; depth++) {
    names = names.flatMap((name) => letters.map((letter) => `${name}/${letter}`));
    all.push(...names);
  }
  return all;
}

describeNative("64 engines at once", () => {
  test("share a small arena, some die meanwhile, and no byte is wrong", async () => {
    await using agent = await openAgent({ slots: SLOTS });
    const doomed = spawnTraffic(agent.socketPath, 99, 1_000_000);
    const children = Array.from({ length: PROCESSES }, (_, i) =>
      spawnTraffic(agent.socketPath, i, STEPS),
    );
    await waitFor(
      () => agent.server.connections === (PROCESSES + 1) * ENGINES_EACH,
      20_000,
      "every engine connected",
    );
    for (const { stdin } of [doomed, ...children]) {
      stdin.write("go\n");
      stdin.flush();
    }
    await waitFor(() => agent.store.snapshot().stats.committedBlocks > 100, 20_000, "traffic");
    doomed.kill("SIGKILL");
    const seen = await Promise.all(
      children.map(async ({ stdout, exited }) => {
        const lines = (await new Response(stdout).text()).trim().split("\n");
        expect(await exited).toBe(0);
        return JSON.parse(lines[1]!) as Record<"wrong" | "proven" | "stored", number>;
      }),
    );
    expect(seen.map(({ wrong }) => wrong)).toEqual(Array(PROCESSES).fill(0));
    for (const { proven, stored } of seen) {
      expect(proven).toBeGreaterThan(ENGINES_EACH);
      expect(stored).toBeGreaterThan(0);
    }
    await agent.untilNothingHeld();
    expect(agent.server.stats).toMatchObject({ faults: 0, cutOff: 0 });
    expect(agent.store.snapshot().stats.evictedBlocks).toBeGreaterThan(0);
    await using reader = await agent.connect("traffic");
    for (const name of allNames()) {
      const [outcome] = await reader.get(name);
      expect(["ok", "miss"]).toContain(outcome!);
    }
    expect(await reader.match(...chain("a"))).toBeLessThanOrEqual(1);
  });
});
