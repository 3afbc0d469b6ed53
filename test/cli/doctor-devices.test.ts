import { describe, expect, setDefaultTimeout, test } from "bun:test";
import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { lookInChild } from "../../src/cli/doctor/index.ts";
import { systemClock } from "../../src/core/index.ts";
import type { DirectFinding, GpuProbe, RdmaProbe } from "../../src/devices/index.ts";
import { describeNative, tempDir } from "../support/index.ts";
import { standIn } from "../support/stand-ins.ts";
import { hostMaker, POOL } from "./doctor-host.ts";

const { find } = hostMaker();
// Some look from processes of their own.
setDefaultTimeout(60_000);

const GPU: GpuProbe["devices"][number] = {
  ...{ index: 0, name: "NVIDIA H100", pci: "0000:3B:00.0", memoryBytes: 80 * 2 ** 30 },
  ...{ numaNode: 1, capability: 90, hasDmaBuf: true, lost: null, pageableCopies: 0 },
};
const GPUS: GpuProbe = {
  library: null,
  info: { state: "ready", driverVersion: 12_080, code: 0, hasBatches: true },
  devices: [GPU],
  registered: { ok: true },
};
const PORT: RdmaProbe["ports"][number] = {
  ...{ index: 0, device: "mlx5_0", number: 1, state: "active", gidIndex: 3, isRoceV2: true },
  ...{ lid: 0, linkLayer: "ethernet", mtu: 4096, readsOut: 16, readsIn: 16, speed: 200_000 },
  ...{ messageBytesMax: 2 ** 30, numaNode: 1, hasRelaxedOrdering: true, hasDmaBuf: true },
};
const RDMA: RdmaProbe = { library: null, state: "ready", errno: 0, ports: [PORT] };

const gpus = (found: GpuProbe) => ({ lookAtGpus: async () => ({ ok: true as const, found }) });
const rdma = (found: RdmaProbe) => ({ lookAtRdma: async () => ({ ok: true as const, found }) });

const BUS = "/sys/bus/pci/devices/0000:3b:00.0";
const NIC = "/sys/class/infiniband/mlx5_0/device";
const onBus = (folder: string, now: number, node = 1) => ({
  [`${folder}/current_link_width`]: `${now}\n`,
  [`${folder}/max_link_width`]: "16\n",
  [`${folder}/numa_node`]: `${node}\n`,
});
const allowing = (nodes: string) => ({
  "/proc/self/status": `CapEff:\t0000000000000000\nMems_allowed_list:\t${nodes}\n`,
});

describe("a GPU", () => {
  const check = (changes = {}, found = GPUS) =>
    find("GPU 0000:3B:00.0", { ...onBus(BUS, 16), ...changes }, gpus(found));

  test("a GPU without problems is reported with its model and copy path", async () => {
    expect(await check(allowing("0-3"))).toEqual({
      name: "GPU 0000:3B:00.0",
      status: "ok",
      found: "NVIDIA H100, 80GiB, PCIe x16, NUMA node 1",
      path: "DMA between GPU and registered RAM, many pieces a call",
    });
    expect((await find("CUDA", {}, gpus(GPUS))).found).toBe(
      "1 GPU (CUDA 12.8): NVIDIA H100 with 80GiB",
    );
  });

  test.each([
    ["lanes that are missing", onBus(BUS, 8), "warn", "only 8 of 16 lanes"],
    ["memory nodes that are not allowed", allowing("0,2-3"), "warn", "memory of node 1"],
    ["translation", { [`${BUS}/iommu_group/type`]: "DMA-FQ\n" }, "ok", "iommu=pt"],
    [
      "small pages",
      { "/sys/kernel/mm/transparent_hugepage/shmem_enabled": "[never]\n" },
      ...["ok", "huge pages"],
    ],
  ] as const)("%s is the one thing to better", async (_what, changes, status, says) => {
    const { status: is, advice } = await check(changes);
    expect([is, advice]).toEqual([status, expect.stringContaining(says)]);
  });

  test("an old driver copies piece by piece, which is reported before small pages", async () => {
    const old = { ...GPUS, info: { ...GPUS.info, driverVersion: 12_040, hasBatches: false } };
    const { path, advice } = await check({ [`${POOL}/free_hugepages`]: "0\n" }, old);
    expect(path).toEndWith("a call for each piece");
    expect(advice).toContain("CUDA 12.8");
  });

  test("a GPU that the NIC cannot reach is reported if the host has a NIC", async () => {
    const closed = { ...GPUS, devices: [{ ...GPU, hasDmaBuf: false }] };
    expect((await check({}, closed)).advice).toBeUndefined();
    const nic = onBus(NIC, 16);
    expect((await check(nic, closed)).advice).toContain("open kernel modules");
  });

  test("a lost GPU and unregistered memory are warnings", async () => {
    const lost = await check({}, { ...GPUS, devices: [{ ...GPU, lost: 719 }] });
    expect(lost).toMatchObject({ status: "warn", path: "none" });
    expect(lost.found).toEndWith("lost, CUDA error 719 (launch failed)");
    const registered = { ok: false, status: "device_failed", code: 2, leaked: false } as const;
    const slow = await check({}, { ...GPUS, registered });
    expect(slow).toMatchObject({ status: "warn", path: expect.stringContaining("not registered") });
  });
});

const NO_LIBRARY = { ...GPUS.info, state: "no_library" } as const;

describe("the driver", () => {
  const none = {
    library: null,
    info: { ...GPUS.info, hasBatches: false },
    devices: [],
    registered: null,
  };
  const state = (name: GpuProbe["info"]["state"], code = 0) =>
    gpus({ ...none, info: { ...none.info, state: name, code } });

  test.each([
    ["no library and no device", {}, state("no_library"), "absent", "no NVIDIA GPU"],
    ["a device without a library", { "/dev/nvidia0": "" }, state("no_library"), "warn", "libcuda"],
    ["a library without a device", {}, state("no_device", 100), "warn", "no /dev/nvidia*"],
    [
      ...["a device the driver does not show", { "/dev/nvidia0": "" }, state("no_device", 100)],
      ...["warn", "shows none of them"],
    ],
    ["a driver that is not ready", {}, state("not_ready", 802), "warn", "system not ready"],
    ["a driver that is too old", {}, state("too_old"), "warn", "lacks required functions"],
    ["a driver that fails", {}, state("failed", 999), "warn", "CUDA error 999"],
    [
      ...["a path that is not a library", {}, gpus({ ...none, library: "/x", info: NO_LIBRARY })],
      ...["warn", "gpu.library /x cannot be opened"],
    ],
  ] as const)("%s", async (_what, changes, look, status, says) => {
    const check = await find("CUDA", changes as Record<string, string>, look as object);
    expect([check.status, check.found]).toEqual([status, expect.stringContaining(says)]);
    if (status === "warn") expect(check.advice).toMatch(/.{10}/);
  });
});

describe("RDMA", () => {
  const check = (changes = {}, port = PORT) =>
    find("RDMA mlx5_0/1", { ...onBus(NIC, 16), ...changes }, rdma({ ...RDMA, ports: [port] }));

  test("an RDMA port without problems is reported with its device and block path", async () => {
    expect(await check()).toEqual({
      name: "RDMA mlx5_0/1",
      status: "ok",
      found: "mlx5_0/1 Ethernet 200 Gb/s, PCIe x16, NUMA node 1",
      path: "READs of other hosts' RAM into ours, RoCE v2 by GID 3, MTU 4096",
    });
    expect((await find("RDMA", {}, rdma(RDMA))).found).toBe("1 of 1 port can be used");
  });

  test.each([
    ["lanes", onBus(NIC, 4), {}, "warn", "4 of 16 lanes"],
    ["a port that is down", {}, { state: "down" }, "warn", "cable"],
    ["a port without an address", {}, { state: "no_address" }, "warn", "IP address"],
    ["a short MTU", {}, { mtu: 1024 }, "ok", "MTU to 4200"],
    ["the order of writes", {}, { hasRelaxedOrdering: false }, "ok", "relaxed ordering"],
  ] as const)("%s: the one thing to better", async (_what, changes, port, status, says) => {
    const found = await check(changes, { ...PORT, ...port });
    expect([found.status, found.advice]).toEqual([status, expect.stringContaining(says)]);
  });

  test("a configuration that does not allow RDMA uses other transports", async () => {
    const found = await find("RDMA mlx5_0/1", {}, { ...rdma(RDMA), mayUseRdma: false });
    expect(found).toMatchObject({ status: "ok", path: "TLS over TCP, and QUIC" });
    expect(found.advice).toStartWith("set peers.trusted_network");
  });

  test("an InfiniBand port is addressed by its LID", async () => {
    const found = await check({}, { ...PORT, linkLayer: "infiniband", lid: 7, isRoceV2: false });
    expect(found.path).toEndWith("LID 7, MTU 4096");
  });

  test("too little lockable memory, or only ports that are down, lead to other transports", async () => {
    const memlock = await find(
      "RDMA",
      {},
      rdma({ ...RDMA, state: "memlock", errno: 12, ports: [] }),
    );
    expect(memlock.status).toBe("warn");
    expect(memlock.advice).toContain("LimitMEMLOCK=infinity");
    expect(memlock.path).toBe("TLS over TCP, and QUIC");
    const down = { ...RDMA, ports: [{ ...PORT, state: "down" as const }] };
    expect(await find("RDMA", {}, rdma(down))).toMatchObject({
      status: "warn",
      found: "0 of 1 port can be used",
    });
  });

  test("a missing RDMA device is not a warning, a device that the verbs do not list is", async () => {
    const none = rdma({ ...RDMA, state: "no_device", ports: [] });
    expect((await find("RDMA", {}, none)).status).toBe("absent");
    const kernel = {
      "/sys/class/infiniband/mlx5_0/ports/1/state": "4: ACTIVE\n",
      "/dev/infiniband/uverbs0": "",
      "/usr/lib64/libibverbs.so.1": "",
    };
    const check = await find("RDMA", kernel, none);
    expect(check.status).toBe("warn");
    expect(check.found).toContain("lists no RDMA device");
  });
});

describe("GPUDirect", () => {
  const finding = (kind: "usable" | "broken", text: string, fix: string | null): DirectFinding => {
    return { kind, text, fix, gpu: "NVIDIA H100 at 0000:3b:00.0", port: "mlx5_0/1" };
  };
  const check = (changes: Record<string, string>, ...found: DirectFinding[]) =>
    find("GPUDirect", changes, {
      ...gpus(GPUS),
      ...rdma(RDMA),
      lookAtDirect: async () => ({ ok: true, found }),
    });

  test("a working GPUDirect needs no advice", async () => {
    const works = await check({}, finding("usable", "dma-buf works with mlx5_0/1", null));
    expect(works).toMatchObject({ status: "ok", found: "dma-buf works with 1 of 1 GPUs" });
    expect(works.advice).toBeUndefined();
  });

  test("a GPUDirect that fails is reported with the reason, and whether the older module would help", async () => {
    const broken = finding("broken", "through RAM: the driver exports no memory", "open modules");
    expect((await check({}, broken)).found).not.toContain("peermem");
    const module = { "/sys/module/nvidia_peermem/version": "1\n" };
    const check_ = await check(module, broken);
    expect(check_).toMatchObject({ status: "ok", advice: "open modules" });
    expect(check_.found).toContain("nvidia_peermem is loaded");
  });

  test("GPUDirect is not checked unless the host has a GPU and a NIC", async () => {
    const alone = find(
      "GPUDirect",
      {},
      { ...gpus(GPUS), lookAtDirect: () => expect.unreachable() },
    );
    await expect(alone).rejects.toThrow("no check GPUDirect");
  });
});

describe("a check in another process", () => {
  const look = (...command: string[]) => lookInChild(command, systemClock, 20_000);

  test("a check in another process returns the result that it prints", async () => {
    expect(await look("echo", '{"a":1}')).toEqual({ ok: true, found: { a: 1 } });
  });

  test("a check process that crashes or exits without output is reported", async () => {
    const crashed = await look("sh", "-c", "kill -SEGV $$");
    expect(crashed).toEqual({ ok: false, why: expect.stringContaining("SIGSEGV") });
    expect(await look("false")).toEqual({ ok: false, why: expect.stringContaining("(1)") });
    expect(await look("true")).toEqual({ ok: false, why: expect.stringContaining("JSON") });
  });

  test("a check process that hangs is stopped, and the doctor reports it", async () => {
    const late = await lookInChild(["sleep", "60"], systemClock, 50);
    expect(late).toEqual({ ok: false, why: "does not answer for 0.05 s" });
    const check = await find("CUDA", {}, { lookAtGpus: async () => late as never });
    expect(check).toMatchObject({ status: "warn", found: "the driver does not answer for 0.05 s" });
  });
});

describeNative("the doctor on stand-ins", () => {
  const MAIN = join(import.meta.dir, "../../src/main.ts");
  const folder = tempDir();
  const config = join(folder, "hearth.toml");
  const libraryOf = (name: "libcuda.so.1" | "libibverbs.so.1") =>
    `library = ${JSON.stringify(standIn(name).path)}`;
  const lines = ["[kv]", "ram_gib = 1", "[gpu]", libraryOf("libcuda.so.1")];
  const rdma = ["[rdma]", libraryOf("libibverbs.so.1")];
  const trusted = ["[peers]", "trusted_network = true"];
  writeFileSync(config, [...lines, ...rdma, ...trusted].join("\n"));

  async function diagnose(environment: Record<string, string>) {
    const command = [process.execPath, MAIN, "doctor", "--config", config, "--json"];
    const verbs = `dir=${folder};${environment.STANDIN_VERBS ?? ""}`;
    const env = { ...process.env, ...environment, STANDIN_VERBS: verbs };
    const child = Bun.spawn(command, { stdout: "pipe", stderr: "inherit", env });
    const { checks } = JSON.parse(await new Response(child.stdout).text());
    const ofDevices = /^(CUDA|GPU|RDMA)/;
    return checks.filter(({ name }: { name: string }) => ofDevices.test(name));
  }

  test("doctor reports each device with its model and block path", async () => {
    expect(await diagnose({ STANDIN_CUDA: "devices=2" })).toMatchObject([
      { name: "CUDA", status: "ok" },
      { name: "GPU 0000:3b:00.0", path: expect.stringContaining("DMA between GPU and registered") },
      { name: "GPU 0000:3c:00.0", path: expect.stringContaining("many pieces a call") },
      { name: "RDMA", status: "ok", found: "1 of 1 port can be used" },
      { name: "RDMA standin0/1", path: expect.stringContaining("READs") },
      { name: "GPUDirect", status: "ok", found: "dma-buf works with 2 of 2 GPUs" },
    ]);
  });

  test("doctor reports why a NIC does not reach a GPU, and the fix", async () => {
    const checks = await diagnose({ STANDIN_CUDA: "dma-buf=off" });
    expect(checks.at(-1)).toMatchObject({
      name: "GPUDirect",
      found: expect.stringContaining("through RAM: the driver cannot export GPU memory"),
      path: expect.stringContaining("RAM"),
      advice: expect.stringContaining("open kernel modules"),
    });
  });

  test("doctor reports an unready driver and locked memory in one check each", async () => {
    const amiss = { STANDIN_CUDA: "init=802", STANDIN_VERBS: "memlock" };
    expect(await diagnose(amiss)).toMatchObject([
      { name: "CUDA", status: "warn", advice: expect.stringContaining("fabricmanager") },
      { name: "RDMA", status: "warn", advice: expect.stringContaining("LimitMEMLOCK=infinity") },
    ]);
  });
});
