import { expect, test } from "bun:test";
import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { describeNative, tempDir, waitFor } from "../support/index.ts";
import { AgentProcess, type ConfigKeys } from "./agent-process.ts";

/** Changes the file, sends SIGHUP and waits for what the agent says of it. */
async function reload(agent: AgentProcess, keys: ConfigKeys, says = "configuration reloaded") {
  const before = agent.log.length;
  agent.configure(keys);
  agent.process.kill("SIGHUP");
  return agent.logged(says, before);
}

describeNative("SIGHUP", () => {
  test("a reload applies the water marks immediately", async () => {
    const marks = { high_water: 1, policy: "lru" };
    await using agent = await AgentProcess.start({ config: { kv: marks } });
    await using engine = await agent.connect();
    const blocks = Array.from({ length: 8 }, (_, i) => ({ name: `a${i}`, bytes: 2 ** 20 }));
    expect(await engine.put(...blocks)).toEqual(Array(8).fill("ok"));
    const line = await reload(agent, { kv: { high_water: 0.3, policy: "lru" } });
    expect(line).toMatchObject({ changed: "kv.high_water" });
    await waitFor(async () => (await agent.status()).ram.blocks === 4);
    // The oldest of a request are its last.
    expect(await engine.get("a0", "a3", "a4", "a7")).toEqual(["ok", "ok", "miss", "miss"]);
    expect(await agent.metric("cgn_kvcached_evictions_total", 'tier="ram"')).toBe(4);
  });

  test("a reload applies the log level and reports keys that need a restart", async () => {
    await using agent = await AgentProcess.start();
    const debug = await reload(agent, { log: { level: "debug" }, kv: { ram_gib: 32 / 1_024 } });
    expect(debug).toMatchObject({ changed: "log.level" });
    const restart = agent.log.find(({ key }) => String(key).startsWith("kv.ram"));
    expect(restart).toMatchObject({
      level: "warn",
      message: expect.stringContaining("restart"),
    });
    expect((await agent.status()).arena.bytes).toBe(2 ** 24);
    const lines = agent.log.length;
    // From here on only errors are worth a line: neither the reload nor an engine that comes.
    agent.configure({ log: { level: "error" } });
    agent.process.kill("SIGHUP");
    const connects = async () => {
      const seen = agent.log.length;
      await using engine = await agent.connect();
      await engine.client.ping(new Uint8Array(8));
      await agent.get("/healthz");
      return agent.log.length === seen;
    };
    await waitFor(connects);
    expect(agent.log.slice(lines).every(({ level }) => level !== "error")).toBe(true);
  });

  test("an invalid file changes nothing, however often it is reloaded", async () => {
    await using agent = await AgentProcess.start();
    await using engine = await agent.connect();
    await engine.put("a");
    for (let i = 0; i < 3; i++) {
      const before = agent.log.length;
      writeFileSync(agent.configPath, `[kv]\nram = "16MiB"\nhigh_water = ${i + 2}\n`);
      agent.process.kill("SIGHUP");
      const line = await agent.logged("configuration reload failed", before);
      expect(line.level).toBe("error");
      expect(line.message).toContain("kv.high_water");
      expect(line.message).toContain(`${agent.configPath}:3`);
    }
    expect(await engine.get("a")).toEqual(["ok"]);
    expect((await agent.get("/readyz")).status).toBe(200);
    expect(await reload(agent, { kv: { high_water: 0.97 } })).toMatchObject({
      changed: "kv.high_water",
    });
    expect(await agent.kill("SIGTERM")).toBe(0);
  });

  test("a reload rereads tokens; invalid ones keep the previous tokens", async () => {
    const folder = tempDir();
    const tokens_file = join(folder, "tokens");
    const write = (text: string) => writeFileSync(tokens_file, text, { mode: 0o600 });
    write("ops purge 0123456789abcdef-a\n");
    await using agent = await AgentProcess.start({ config: { api: { tokens_file } } });
    const { url } = await agent.logged("api listening");
    const opens = async (token: string) => {
      const headers = { authorization: `Bearer ${token}` };
      return (await fetch(`${url}/v1/pins`, { headers, keepalive: false })).status === 200;
    };
    expect([await opens("0123456789abcdef-a"), await opens("0123456789abcdef-b")]).toEqual([
      ...[true, false],
    ]);
    write("ops purge 0123456789abcdef-b\n");
    agent.process.kill("SIGHUP");
    await waitFor(async () => opens("0123456789abcdef-b"));
    expect(await opens("0123456789abcdef-a")).toBe(false);
    write("ops everything 0123456789abcdef-a\n");
    agent.process.kill("SIGHUP");
    const { message } = await agent.logged("token reload failed");
    expect(message).toContain("line 1: not a role");
    expect(message).not.toContain("0123456789abcdef");
    expect(await opens("0123456789abcdef-b")).toBe(true);
    const refused = await agent.logged("API callers rejected");
    expect(refused).toMatchObject({ code: "UNAUTHORIZED", address: "127.0.0.1", count: 1 });
    expect(JSON.stringify(agent.log)).not.toContain("0123456789abcdef");
  });

  test("a reload applies the connection limit to new connections", async () => {
    await using agent = await AgentProcess.start({ config: { engine: { clients_max: 1 } } });
    await using first = await agent.connect();
    expect(agent.connect()).rejects.toThrow("engine.clients_max");
    await agent.connect().catch(() => null);
    await reload(agent, { engine: { clients_max: 2 } });
    await using second = await agent.connect();
    expect(await second.put("a")).toEqual(["ok"]);
    expect(await first.get("a")).toEqual(["ok"]);
  });
});
