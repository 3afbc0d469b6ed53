import { expect, test } from "bun:test";
import { describeNative, waitFor } from "../support/index.ts";
import { standIn } from "../support/stand-ins.ts";
import { AgentProcess, type ConfigKeys } from "./agent-process.ts";

const MIB = 2 ** 20;
/** What the agent says of GPUs, whatever it is. */
const OF_GPUS = /GPU/;

describeNative("an agent's GPUs", () => {
  const cuda = standIn("libcuda.so.1");

  /** An agent on GPUs of this plan. */
  const start = (plan: string, gpu: ConfigKeys["gpu"] = { library: cuda.path }) =>
    AgentProcess.start({ config: { gpu }, environment: { STANDIN_CUDA: plan } });

  const said = (agent: AgentProcess) =>
    agent.log.filter(({ message }) => OF_GPUS.test(message) && message !== "arena complete");

  test("are shown, and RAM is registered with them as it grows", async () => {
    await using agent = await start("devices=2;memory=64m");
    await waitFor(async () => (await agent.status()).gpu.registered_bytes === 16 * MIB);
    const { gpu, health } = await agent.status();
    expect(gpu).toMatchObject({ found: "usable", fix: null, driver: "12.8", batches: true });
    expect(gpu.devices.map(({ name }: { name: string }) => name)).toEqual([
      ...["Stand-in GPU 0", "Stand-in GPU 1"],
    ]);
    expect(health).toEqual([]);
    expect(await agent.metric("hearth_gpus", 'state="ok"')).toBe(2);
    expect(await agent.metric("hearth_gpu_registered_bytes")).toBe(16 * MIB);
    expect(said(agent).map(({ level }) => level)).toEqual(["info"]);
    expect(await agent.kill("SIGTERM")).toBe(0);
    expect(agent.log.filter(({ level }) => level !== "info")).toEqual([]);
  });

  const CASES: [what: string, plan: string, library: string, level: string, says: string][] = [
    ["no driver", "", "/nowhere/libcuda.so.1", "info", "no NVIDIA driver is installed"],
    ["a driver without a device", "init=100", cuda.path, "info", "the driver shows no GPU"],
    ["a driver that is not ready", "init=802", cuda.path, "warn", "system not ready"],
  ];
  test.each(CASES)(
    "%s: one line, and engines are served",
    async (_, plan, library, level, says) => {
      await using agent = await start(plan, { library });
      const lines = said(agent);
      expect(lines.map((line) => line.level)).toEqual([level]);
      expect(`${lines[0]?.message} ${lines[0]?.details}`).toContain(says);
      expect(lines[0]?.fix).toBeString();
      expect((await agent.status()).gpu).toMatchObject({ devices: [], registered_bytes: 0 });
      await using engine = await agent.connect();
      expect(await engine.put("a")).toEqual(["ok"]);
    },
  );

  test("that are required and cannot be used refuse the start with what to do", async () => {
    const gpu = { enabled: "require", library: cuda.path };
    const environment = { STANDIN_CUDA: "init=802" };
    await using agent = new AgentProcess({ config: { gpu }, environment });
    expect(await agent.exited()).toBe(4);
    expect(agent.words.join("\n")).toContain("CUDA error 802 (system not ready)");
    expect(agent.words.join("\n")).toContain('set gpu.enabled to "auto"');
  });

  test("that are off are not looked for", async () => {
    await using agent = await start("", { enabled: "off", library: cuda.path });
    expect((await agent.status()).gpu).toBeNull();
    expect(said(agent)).toEqual([]);
  });
});
