import { beforeAll, describe, expect, test } from "bun:test";
import { existsSync } from "node:fs";
import { HearthError } from "../../src/core/index.ts";
import { HEALTH_CODES } from "../../src/observability/index.ts";
import { chain } from "../store/names.ts";
import { describeNative, hearthExecutable, noteSkip, tempDir, waitFor } from "../support/index.ts";
import { AgentProcess, FROM_CHECKOUT } from "./agent-process.ts";

/** Both ways in which it is started; the executable is built where sources changed. */
const COMMANDS: [string, () => Promise<readonly string[]>][] = [
  ["from the checkout", async () => FROM_CHECKOUT],
  ["the executable", async () => [await hearthExecutable()]],
];
const BUILD_MS = 60_000;

describeNative("an agent", () => {
  describe.each(COMMANDS)("%s", (_name, words) => {
    let command: readonly string[] = [];
    beforeAll(async () => {
      command = await words();
    }, BUILD_MS);

    test("an agent serves, reports its state and stops within its time", async () => {
      await using agent = await AgentProcess.start({ command });
      expect(await (await agent.get("/healthz")).text()).toBe("ok\n");
      expect((await agent.get("/readyz")).status).toBe(200);
      await using engine = await agent.connect();
      await engine.put(...chain("a/b/c"));
      const held = [...(await engine.acquire("a", "a")), ...(await engine.reserve("half"))];
      expect(held.map(({ outcome }) => outcome)).toEqual(["ok", "ok", "ok"]);
      expect(await agent.status()).toMatchObject({
        state: "ready",
        arena: { bytes: 2 ** 24, ready_bytes: 2 ** 24 },
        ram: { blocks: 3, bytes: 15_000, slots: [{ slot_bytes: 8192, used: 4 }] },
        table: { blocks: 4, namespaces: 1 },
        engine: { connections: 1, slots_held: 3, slots_quarantined: 0, cut_off: 0, refused: 0 },
        counters: { committed_blocks: 3, committed_bytes: 15_000, acquire_hits: 2 },
      });
      expect(await agent.metric("cgn_kvcached_blocks", 'tier="ram"')).toBe(3);
      expect(await agent.metric("cgn_kvcached_bytes", 'tier="ram"')).toBe(15_000);
      expect(await agent.metric("cgn_kvcached_lookup_seconds_count", 'outcome="hit"')).toBe(1);
      agent.process.kill("SIGTERM");
      await agent.logged("agent stopping");
      const { status } = await waitFor(async () => {
        const response = await agent.get("/readyz");
        return response.status === 200 ? null : response;
      });
      expect(status).toBe(503);
      expect((await agent.get("/healthz")).status).toBe(200);
      expect(await agent.status()).toMatchObject({ state: "draining" });
      const refused = await engine.reserve("more").catch((error) => error);
      expect(refused).toBeInstanceOf(HearthError);
      expect(refused.text).toContain("draining");
      engine.release(held.slice(0, 2));
      expect(await engine.abort(held.slice(2))).toEqual(["ok"]);
      expect(await agent.exited()).toBe(0);
      expect(existsSync(agent.socketPath)).toBe(false);
    });

    test("agent dies", async () => {
      const folder = tempDir();
      const agent = await AgentProcess.start({ command, folder });
      const engine = await agent.connect();
      await engine.put("a");
      const [held] = await engine.acquire("a");
      await agent[Symbol.asyncDispose]();
      expect((await engine.client.closed).code).toBe("ENGINE_CLOSED");
      // Still memory, though nobody's.
      expect(engine.proves(held!)).toBe(true);
      await engine[Symbol.asyncDispose]();
      expect(existsSync(agent.socketPath)).toBe(true);
      await using next = await AgentProcess.start({ command, folder });
      await using again = await next.connect();
      expect(again.client.hello.incarnation).not.toBe(engine.client.hello.incarnation);
      expect(await again.get("a")).toEqual(["miss"]);
      expect(await again.put("a")).toEqual(["ok"]);
    });
  });

  test("a second SIGTERM does not wait for engines", async () => {
    await using agent = await AgentProcess.start();
    await using engine = await agent.connect();
    await engine.reserve("a");
    agent.process.kill("SIGTERM");
    await agent.logged("agent stopping");
    agent.process.kill("SIGTERM");
    expect(await agent.exited()).toBe(0);
    expect((await engine.client.closed).text).toContain("draining");
  });

  test("engine and agent survive each other's crash", async () => {
    await using agent = await AgentProcess.start();
    const source = `
      import { AgentProcess } from ${JSON.stringify(`${import.meta.dir}/agent-process.ts`)};
      const engine = await AgentProcess.prototype.connect.call({ socketPath: process.argv[1] });
      await engine.reserve("a");
      process.kill(process.pid, "SIGKILL");
    `;
    const words = [process.execPath, "-e", source, agent.socketPath];
    expect(await Bun.spawn(words, { stderr: "inherit" }).exited).not.toBe(0);
    await waitFor(async () => {
      const { engine } = await agent.status();
      return engine.connections === 0 && engine.slots_held + engine.slots_quarantined === 0;
    });
    expect((await agent.status()).counters.aborted_blocks).toBe(1);
  });
});

describeNative("an agent that cannot start", () => {
  async function refusal(options: ConstructorParameters<typeof AgentProcess>[0]) {
    await using agent = new AgentProcess(options);
    const code = await agent.exited();
    return { code, words: agent.words.join("\n"), agent };
  }

  test("an invalid configuration is refused with file, line and key", async () => {
    const { code, words, agent } = await refusal({ config: { kv: { high_watr: 0.5 } } });
    expect(code).toBe(3);
    expect(words).toContain(`${agent.configPath}:4`);
    expect(words).toContain("kv.high_watr");
  });

  test("unavailable memory is refused with the limit to raise", async () => {
    const huge = await refusal({ config: { kv: { ram_gib: 1, huge_pages: "require" } } });
    // A host that has so many huge pages is a host that can.
    if (huge.code !== 0) {
      expect([huge.code, huge.words]).toEqual([4, expect.stringContaining("vm.nr_hugepages")]);
    }
    const more = await refusal({ config: { kv: { ram_gib: 60 * 1_024 } } });
    expect(more.code).toBe(3);
    expect(more.words).toContain("kv.ram_gib");
  });

  // Root may lock what it likes, unless that one right is taken from it.
  const isRoot = process.getuid!() === 0;
  const canLimit = !isRoot || Bun.which("setpriv") !== null;
  if (!canLimit) noteSkip("memory that may not be locked", "no setpriv on the PATH");
  const drop = isRoot ? ["setpriv", "--bounding-set", "-ipc_lock"] : [];
  const limited = [...drop, "sh", "-c", 'ulimit -l 64; exec "$@"', "sh", ...FROM_CHECKOUT];

  test.skipIf(!canLimit)(
    "memory that cannot be locked is refused with the limit to raise",
    async () => {
      const config = { kv: { lock_memory: "require" } };
      const { code, words } = await refusal({ command: limited, config });
      expect([code, words]).toEqual([4, expect.stringContaining("LimitMEMLOCK")]);
      await using anyway = await AgentProcess.start({
        command: limited,
        config: { kv: { lock_memory: "try" } },
      });
      const line = await anyway.logged(HEALTH_CODES.KV_LIMITS.meaning);
      expect(line).toMatchObject({ level: "warn", code: "KV_LIMITS" });
      expect(line.details).toContain("RAM is not locked");
      const { arena, health } = await anyway.status();
      expect(arena.locked_bytes).toBe(0);
      expect(health).toMatchObject([{ code: "KV_LIMITS", severity: "warn" }]);
      expect((await anyway.get("/readyz")).status).toBe(200);
      expect(await anyway.metric("hearth_health", 'code="KV_LIMITS"')).toBe(1);
    },
  );

  test("a second agent refuses to start and leaves the first one running", async () => {
    await using first = await AgentProcess.start();
    const config = { engine: { socket: first.socketPath } };
    const { code, words } = await refusal({ config });
    expect(code).toBe(1);
    expect(words).toContain("engine.socket");
    await using engine = await first.connect();
    expect(await engine.put("a")).toEqual(["ok"]);
  });

  test("a failed start because of a used port leaves nothing behind", async () => {
    const server = Bun.serve({ port: 0, hostname: "127.0.0.1", fetch: () => new Response() });
    const folder = tempDir();
    const config = { api: { listen: `127.0.0.1:${server.port}` } };
    const { code, words, agent } = await refusal({ config, folder });
    await server.stop(true);
    expect(code).toBe(1);
    expect(words).toContain(`${server.port}`);
    expect(existsSync(agent.socketPath)).toBe(false);
  });
});
