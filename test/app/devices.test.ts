import { expect, setDefaultTimeout, test } from "bun:test";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { kernelRdmaDevices } from "../../src/devices/index.ts";
import { describeNative, makeCluster, noteSkip, tempDir, waitFor } from "../support/index.ts";
import { standIn } from "../support/stand-ins.ts";
import { AgentProcess, type ConfigKeys } from "./agent-process.ts";

const MIB = 2 ** 20;
// Each test starts agents.
setDefaultTimeout(60_000);
/** What the agent says of GPUs, whatever it is. */
const OF_GPUS = /GPU/;
const OF_RDMA = /RDMA/;
type Gpu = ConfigKeys["gpu"];
const NO_GPU: Gpu = { enabled: "off" };

describeNative("an agent's GPUs", () => {
  const cuda = standIn("libcuda.so.1");

  /** An agent on GPUs of this plan. */
  const start = (plan: string, gpu: ConfigKeys["gpu"] = { library: cuda.path }) =>
    AgentProcess.start({ config: { gpu }, environment: { STANDIN_CUDA: plan } });

  const said = (agent: AgentProcess) =>
    agent.log.filter(({ message }) => OF_GPUS.test(message) && message !== "arena complete");

  test("GPUs are shown in the status and RAM is registered as it grows", async () => {
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
    expect(await agent.metric("hearth_gpu_bytes_total")).toBe(0);
    expect(said(agent).map(({ level }) => level)).toEqual(["info"]);
    expect(await agent.kill("SIGTERM")).toBe(0);
    expect(agent.log.filter(({ level }) => level !== "info")).toEqual([]);
  });

  const CASES: [what: string, plan: string, library: string, level: string, says: string][] = [
    ["a path that is no library", "", "/nowhere/cuda.so", "warn", "/nowhere/cuda.so cannot be"],
    ["a driver without a device", "init=100", cuda.path, "info", "the driver lists no GPU"],
    ["a driver that is not ready", "init=802", cuda.path, "warn", "system not ready"],
  ];
  test.each(CASES)(
    "%s: the fault is logged once and engines are served",
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

  // Where the linker finds a driver there is one.
  const cache = readFileSync("/etc/ld.so.cache", "latin1");
  const hasDriver = cache.includes("libcuda.so.1\0");
  if (hasDriver) noteSkip("an agent without a driver", "this host has libcuda.so.1");

  test.skipIf(hasDriver)("no driver: one line, and engines are served", async () => {
    await using agent = await start("", {});
    const [line, ...others] = said(agent);
    expect([line?.level, others]).toEqual(["info", []]);
    expect(line?.message).toContain("no NVIDIA driver installed");
    expect((await agent.status()).health).toEqual([]);
    await using engine = await agent.connect();
    expect(await engine.put("a")).toEqual(["ok"]);
  });

  test("required but unusable GPUs refuse the start with a fix", async () => {
    const gpu = { enabled: "require", library: cuda.path };
    const environment = { STANDIN_CUDA: "init=802" };
    await using agent = new AgentProcess({ config: { gpu }, environment });
    expect(await agent.exited()).toBe(4);
    expect(agent.words.join("\n")).toContain("CUDA error 802 (system not ready)");
    expect(agent.words.join("\n")).toContain('set gpu.enabled to "auto"');
  });

  test("disabled GPUs are not probed", async () => {
    await using agent = await start("", { enabled: "off", library: cuda.path });
    expect((await agent.status()).gpu).toBeNull();
    expect(said(agent)).toEqual([]);
  });
});

describeNative("an agent's RDMA", () => {
  const verbs = standIn("libibverbs.so.1");
  const folder = tempDir();
  const { certFile, keyFile, caFile } = makeCluster(join(folder, "ca")).files("gpu-01");
  const trusted = {
    ...{ cert_file: certFile, key_file: keyFile, ca_file: caFile, cluster: "test" },
    ...{ listen_stream: "127.0.0.1:0", listen_quic: "off", listen_rdma: "127.0.0.1:0" },
    ...{ summaries: "off", trusted_network: true },
  };

  /** An agent with peers on RDMA devices of this plan. */
  const start = (plan: string, peers: ConfigKeys["peers"] = trusted, gpu: Gpu = NO_GPU) =>
    AgentProcess.start({
      config: { node: { id: "gpu-01" }, gpu, rdma: { library: verbs.path }, peers },
      environment: { STANDIN_VERBS: `dir=${folder};${plan}` },
    });

  const said = (agent: AgentProcess) => agent.log.filter(({ message }) => OF_RDMA.test(message));

  test("RDMA is shown in the status with its ports", async () => {
    await using agent = await start("");
    const { rdma, health } = await agent.status();
    expect(rdma).toMatchObject({ found: "usable", fix: null });
    expect(rdma.ports).toMatchObject([{ state: "active", gbit_per_second: 100 }]);
    expect(health).toEqual([]);
    expect(await agent.metric("hearth_rdma_ports", 'state="active"')).toBe(1);
    expect(said(agent).map(({ level }) => level)).toEqual(["info"]);
    expect(await agent.kill("SIGTERM")).toBe(0);
  });

  const CASES: [what: string, plan: string, level: string, says: string, code: string | null][] = [
    ["no device", "no-device", "info", "lists no RDMA device", null],
    ["too little memory to lock", "memlock", "warn", "LimitMEMLOCK", "RDMA_MEMLOCK"],
    ["a device that may not be used", "reg=13", "warn", "errno 13", "RDMA_DEVICE"],
  ];
  test.each(CASES)(
    "%s: the fault is logged once and peers keep working",
    async (_, plan, level, says, code) => {
      await using agent = await start(plan);
      const lines = said(agent);
      expect(lines.map((line) => line.level)).toEqual([level]);
      expect(`${lines[0]?.message} ${lines[0]?.details}`).toContain(says);
      const { rdma, health } = await agent.status();
      expect(rdma.ports).toEqual([]);
      expect(health.map((problem: { code: string }) => problem.code)).toEqual(code ? [code] : []);
      expect(agent.log.some(({ message }) => message === "listening for peers")).toBe(true);
    },
  );

  test("a port that is down raises a health code and peers keep working", async () => {
    await using agent = await start("port=down");
    const { rdma, health } = await agent.status();
    expect(rdma.ports).toMatchObject([{ state: "down" }]);
    expect(health.map(({ code }: { code: string }) => code)).toEqual(["RDMA_PORT_DOWN"]);
    expect(await agent.metric("hearth_health", 'code="RDMA_PORT_DOWN"')).toBe(1);
  });

  test("access to GPU memory is reported, or the reason it fails", async () => {
    const library = standIn("libcuda.so.1").path;
    await using agent = await start("", trusted, { library });
    const { rdma } = await agent.status();
    expect(rdma.direct).toMatchObject([{ port: "standin0/1", works: true, fix: null }]);
    await using without = await start("dmabuf=off", trusted, { library });
    const { direct } = (await without.status()).rdma;
    expect(direct).toMatchObject([{ works: false, text: expect.stringContaining("through RAM") }]);
    const lines = [agent, without].flatMap(({ log }) => log);
    const said = lines.filter(({ message }) => /^NICs? access/.test(message));
    expect(said.map(({ level }) => level)).toEqual(["info", "info"]);
  });

  test("RDMA is not opened on an untrusted network or without peers", async () => {
    await using shared = await start("", { ...trusted, trusted_network: false });
    expect((await shared.status()).rdma).toBeNull();
    await using alone = await start("", {});
    expect((await alone.status()).rdma).toBeNull();
    const ofNics = said(shared).filter(({ message }) => message.includes("not encrypted"));
    expect(ofNics.length).toBe(kernelRdmaDevices().length > 0 ? 1 : 0);
    expect([...said(shared), ...said(alone)]).toEqual(ofNics);
  });

  test("RDMA is not opened if the transports leave it out", async () => {
    await using agent = await start("", { ...trusted, transport: "stream,quic" });
    expect((await agent.status()).rdma).toBeNull();
    expect(said(agent)).toEqual([]);
  });
});
