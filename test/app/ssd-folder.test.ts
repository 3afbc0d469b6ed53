import { expect, test } from "bun:test";
import { mkdirSync, renameSync, rmSync } from "node:fs";
import { join } from "node:path";
import { folderIdentity, replacementReason } from "../../src/app/index.ts";
import { describeNative, tempDir, waitFor, withTempDir } from "../support/index.ts";
import { AgentProcess } from "./agent-process.ts";

interface Problem {
  readonly code: string;
  readonly details: string;
}

const PATIENCE_MS = 60_000;

describeNative("an agent whose ssd_dir is replaced while it runs", () => {
  test("writes nothing, says so, and goes on once the former folder is back", async () => {
    const folder = tempDir();
    const [dir, away] = [join(folder, "ssd"), join(folder, "away")];
    const config = { kv: { ssd_dir: dir, ssd_gib: 64 / 1_024 } };
    await using agent = await AgentProcess.start({ folder, config });
    const problemOf = async () => {
      const { health } = (await agent.status()) as { health: Problem[] };
      return health.find(({ code }) => code === "KV_SSD_REPLACED") ?? null;
    };
    await using engine = await agent.connect();
    expect(await engine.put("a")).toEqual(["ok"]);
    await waitFor(async () => (await agent.status()).ssd.blocks === 1);
    renameSync(dir, away);
    const gone = await waitFor(problemOf, PATIENCE_MS, "the folder being missed");
    expect(gone!.details).toBe(`${dir} is gone`);
    mkdirSync(dir);
    await waitFor(async () => (await problemOf())?.details.endsWith("made later"), PATIENCE_MS);
    expect((await agent.status()).ssd.writes_stopped).toBe("replaced");
    // RAM serves, and what was not written is not called durable.
    expect(await engine.put("b")).toEqual(["ok"]);
    expect(await engine.get("a", "b")).toEqual(["ok", "ok"]);
    const url = (await agent.logged("api listening")).url as string;
    const persisted = await fetch(`${url}/v1/persist`, { method: "POST", keepalive: false });
    expect(await persisted.json()).toMatchObject({ durable: false });
    expect((await agent.status()).health.map(({ code }: Problem) => code)).toEqual([
      "KV_SSD_REPLACED",
    ]);
    rmSync(dir, { recursive: true });
    renameSync(away, dir);
    await waitFor(async () => (await problemOf()) === null, PATIENCE_MS);
    await waitFor(async () => {
      await fetch(`${url}/v1/persist`, { method: "POST", keepalive: false });
      return (await agent.status()).ssd.blocks === 2;
    }, PATIENCE_MS);
  });
});

test("another file system at the path is distinguished from another folder", async () => {
  await withTempDir(async (dir) => {
    const mark = folderIdentity(dir);
    expect(await replacementReason(dir, mark)).toBeNull();
    expect(await replacementReason("/proc", mark)).toBe("another file system is mounted at /proc");
    const inner = join(dir, "inner");
    mkdirSync(inner);
    expect(await replacementReason(inner, mark)).toBe(`${inner} is another folder, made later`);
    expect(await replacementReason(join(inner, "none"), mark)).toBe(
      `${join(inner, "none")} is gone`,
    );
    // A path that cannot be looked at says nothing of the folder.
    expect(await replacementReason(join(dir, "x".repeat(300)), mark)).toBeNull();
  });
});
