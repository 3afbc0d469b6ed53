import { expect, test } from "bun:test";
import { existsSync, lstatSync, readFileSync, statSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { HearthError } from "../../src/core/index.ts";
import { describeNative, tempDir, waitFor } from "../support/index.ts";
import { openAgent } from "./agent-kit.ts";

const GENTLY = new AbortController().signal;

async function refusal(start: Promise<AsyncDisposable>): Promise<HearthError> {
  try {
    await using _ = await start;
  } catch (error) {
    if (error instanceof HearthError) return error;
    throw error;
  }
  throw new Error("it started");
}

/** Leaves a socket file without a listener, as a killed agent does. */
function staleSocket(path: string): void {
  const source =
    "Bun.listen({ unix: process.argv[1], socket: { data() {} } }); process.kill(process.pid, 9);";
  Bun.spawnSync([process.execPath, "-e", source, path]);
  if (!existsSync(path)) throw new Error("no stale socket was made");
}

describeNative("the engine socket", () => {
  test("has mode 0660 in a folder of mode 0750, and is removed when the agent stops", async () => {
    const path = join(tempDir(), "deep", "run", "engine.sock");
    {
      await using agent = await openAgent({ socketPath: path });
      expect(lstatSync(path).isSocket()).toBe(true);
      expect(statSync(path).mode & 0o777).toBe(0o660);
      expect(statSync(dirname(path)).mode & 0o777).toBe(0o750);
      await using engine = await agent.connect();
      expect(await engine.put("a")).toEqual(["ok"]);
    }
    expect(existsSync(path)).toBe(false);
  });

  test("belongs to the configured group", async () => {
    const socketGroup = process.getgid!();
    await using agent = await openAgent({ socketGroup });
    expect(statSync(agent.socketPath).gid).toBe(socketGroup);
  });

  test("left by a dead agent is replaced", async () => {
    const path = join(tempDir(), "engine.sock");
    staleSocket(path);
    await using agent = await openAgent({ socketPath: path });
    await using engine = await agent.connect();
    expect(await engine.get("a")).toEqual(["miss"]);
  });

  test("of a living agent is refused and left alone", async () => {
    const path = join(tempDir(), "engine.sock");
    await using first = await openAgent({ socketPath: path });
    const fault = await refusal(openAgent({ socketPath: path }));
    expect(fault.code).toBe("SOCKET_IN_USE");
    expect(fault.text).toContain("engine.socket");
    await using engine = await first.connect();
    expect(await engine.put("a")).toEqual(["ok"]);
  });

  test("path of an ordinary file is refused, and the file is left alone", async () => {
    const path = join(tempDir(), "notes.txt");
    writeFileSync(path, "keep me");
    expect((await refusal(openAgent({ socketPath: path }))).code).toBe("CONFIG_INVALID");
    expect(readFileSync(path, "utf8")).toBe("keep me");
  });

  test("path that is too long for the kernel is refused with a reason", async () => {
    const path = join(tempDir(), "x".repeat(100), "engine.sock");
    const fault = await refusal(openAgent({ socketPath: path }));
    expect([fault.code, fault.text]).toEqual([
      "CONFIG_INVALID",
      expect.stringContaining("engine.socket"),
    ]);
  });

  test("passes to the next agent while the old one drains", async () => {
    const path = join(tempDir(), "engine.sock");
    const old = await openAgent({ socketPath: path });
    await using holder = await old.connect();
    const held = await holder.reserve("a");
    const drained = old.server.drain(60_000, GENTLY);
    await waitFor(() => !existsSync(path));
    await using next = await openAgent({ socketPath: path });
    await holder.abort(held);
    await drained;
    await old[Symbol.asyncDispose]();
    await using engine = await next.connect();
    expect(await engine.put("a")).toEqual(["ok"]);
  });
});
