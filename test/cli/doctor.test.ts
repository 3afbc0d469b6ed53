import { describe, expect, test } from "bun:test";
import { join } from "node:path";
import { formatDoctor, runDoctor } from "../../src/cli/doctor/index.ts";
import { systemClock } from "../../src/core/index.ts";
import { GIB, GOOD_HOST, hostMaker, look, POOL, THP } from "./doctor-host.ts";

const { host, find } = hostMaker();

/** `limits` with another soft limit in one line. */
function limitsWith(name: string, soft: string): string {
  const padded = name.padEnd(26);
  return GOOD_HOST["/proc/self/limits"]!.replace(
    new RegExp(`^${name} .*$`, "m"),
    `${padded}${soft.padEnd(21)}unlimited            bytes     `,
  );
}

describe("doctor as a whole", () => {
  test("doctor on a good host has no failure and no warning", async () => {
    const report = await look(host());
    const status = Object.fromEntries(report.checks.map((check) => [check.name, check.status]));
    expect(report.ok).toBe(true);
    expect(status).toEqual({
      kernel: "ok",
      cpu: "ok",
      library: "ok",
      memory: "ok",
      memlock: "ok",
      "huge pages": "ok",
      memfd: "ok",
      "/dev/shm": "ok",
      "open files": "ok",
      NUMA: "ok",
      io_uring: "ok",
      CUDA: "absent",
      RDMA: "absent",
      "engine socket": "ok",
      NATS: "absent",
      systemd: "absent",
    });
  });

  test("doctor on an empty host reports every problem with advice", async () => {
    const root = join(host(), "empty");
    const report = await look(root, { ramBytes: null });
    expect(report.ok).toBe(false);
    for (const check of report.checks) {
      if (check.status === "warn" || check.status === "fail") expect(check.advice).toBeString();
    }
  });

  test("doctor prints an aligned table, with advice under its line and a verdict at the end", async () => {
    const report = await look(host({ "/proc/sys/vm/memfd_noexec": "2\n" }));
    const lines = formatDoctor(report).split("\n");
    const starts = lines.filter((line) => /^(ok|warn|absent) /.test(line));
    expect(starts.length).toBe(report.checks.length);
    for (const [index, line] of starts.entries()) {
      expect(line.indexOf(report.checks[index]!.found)).toBe("absent  engine socket  ".length);
    }
    const at = lines.findIndex((line) => line.includes("memfd_noexec=2"));
    expect(lines[at + 1]).toStartWith(`${" ".repeat("absent  engine socket  ".length)}-> `);
    expect(lines.at(-2)).toBe("The host is ready: 0 failed, 1 to look at.");
  });

  test("text from the host cannot break the doctor's table", async () => {
    const flags = GOOD_HOST["/proc/cpuinfo"]!.replace("Test CPU", "Evil\u001b[2J CPU");
    const text = formatDoctor(await look(host({ "/proc/cpuinfo": flags })));
    expect(text).toContain("Evil [2J CPU");
    expect(text.replaceAll("\n", "")).toMatch(/^[\x20-\x7e]*$/);
  });

  test("doctor on this machine finishes", async () => {
    const report = await runDoctor({ clock: systemClock, engineSocket: "/run/hearth/e.sock" });
    expect(report.checks.length).toBeGreaterThanOrEqual(16);
    expect(JSON.parse(JSON.stringify(report))).toEqual(report);
  });
});

describe("kernel, CPU and library", () => {
  test.each([
    ["5.2.11", "fail"],
    ["4.19.0-26-amd64", "fail"],
    ["5.3.0", "ok"],
    ["6.5.0", "ok"],
    ["10.0.1", "ok"],
  ] as const)("Linux %s is %s", async (release, status) => {
    const check = await find("kernel", { "/proc/sys/kernel/osrelease": `${release}\n` });
    expect(check).toMatchObject({ status, found: release });
  });

  test("an old CPU is reported with the instructions that it lacks", async () => {
    const cpuinfo = GOOD_HOST["/proc/cpuinfo"]!.replace("avx2 ", "").replace("pclmulqdq", "");
    const check = await find("cpu", { "/proc/cpuinfo": cpuinfo });
    expect(check).toMatchObject({ status: "fail", found: "Test CPU, lacks avx2 pclmulqdq" });
  });

  test("ARM instructions have their own names, other architectures have none", async () => {
    const cpuinfo = "processor\t: 0\nFeatures\t: fp asimd evtstrm aes pmull\n";
    expect((await find("cpu", { "/proc/cpuinfo": cpuinfo }, { arch: "arm64" })).status).toBe("ok");
    expect((await find("cpu", {}, { arch: "arm64" })).status).toBe("fail");
    expect((await find("cpu", {}, { arch: "riscv64" })).status).toBe("fail");
  });

  test("a library that does not load fails the check, and no ring is tried", async () => {
    const probeLibrary = () => {
      throw new Error("GLIBC_2.28 not found");
    };
    const check = await find("library", {}, { probeLibrary });
    expect(check).toMatchObject({ status: "fail", found: "GLIBC_2.28 not found" });
    const probeIoUring = () => {
      throw new Error("must not be called");
    };
    const ring = await find("io_uring", {}, { probeLibrary, probeIoUring });
    expect(ring.found).toBe("kernel.io_uring_disabled=0; no ring was tried");
  });
});

describe("io_uring", () => {
  const file = "/proc/sys/kernel/io_uring_disabled";
  const refused = (errno: number) => ({ probeIoUring: () => ({ ok: false, errno }) });

  test("io_uring passes if a ring can be created", async () => {
    expect((await find("io_uring", { [file]: "1\n" })).status).toBe("ok");
  });

  test.each([
    ["2\n", 1, "io_uring_disabled=2", "sysctl -w kernel.io_uring_disabled=0"],
    ["1\n", 1, "kept to one group", "io_uring_group"],
    ["0\n", 1, "refused", "system call filter"],
    ["0\n", 12, "failed with errno 12", "system call filter"],
    [null, 38, "not in this kernel", "CONFIG_IO_URING"],
  ] as const)("setting %p with errno %p falls back to threads", async (text, errno, says, todo) => {
    const check = await find("io_uring", { [file]: text }, refused(errno));
    expect(check.status).toBe("warn");
    expect(check.found).toContain(says);
    expect(check.found).toContain("pool of threads");
    expect(check.advice).toContain(todo);
  });
});

describe("memory", () => {
  test("the RAM tier is compared with total memory, the limit and free memory", async () => {
    const of = (changes: Record<string, string>, gib: number) =>
      find("memory", changes, { ramBytes: gib * GIB });
    expect(await of({}, 50)).toMatchObject({ status: "ok" });
    expect(await of({}, 60)).toMatchObject({ status: "warn" });
    expect(await of({}, 65)).toMatchObject({ status: "fail" });
    const limited = { "/sys/fs/cgroup/memory.max": `${8 * GIB}\n` };
    const check = await of(limited, 9);
    expect(check).toMatchObject({ status: "fail", found: expect.stringContaining("limit 8GiB") });
    expect(check.advice).toContain("MemoryMax=");
    expect(await of(limited, 7)).toMatchObject({ status: "ok" });
  });

  test("a low limit on locked memory is reported with its fix", async () => {
    const low = { "/proc/self/limits": limitsWith("Max locked memory", "8388608") };
    const check = await find("memlock", low);
    expect(check).toMatchObject({ status: "warn", found: expect.stringContaining("limit 8MiB") });
    expect(check.advice).toContain("LimitMEMLOCK=infinity");
    expect(await find("memlock", low, { ramBytes: 2 ** 20 })).toMatchObject({ status: "ok" });
    const capable = { ...low, "/proc/self/status": "CapEff:\t0000000000004000\n" };
    expect(await find("memlock", capable)).toMatchObject({ status: "ok" });
    const other = { ...low, "/proc/self/status": "CapEff:\t0000000000003fff\n" };
    expect(await find("memlock", other)).toMatchObject({ status: "warn" });
  });

  test("a low limit on open files is reported", async () => {
    const limits = limitsWith("Max open files", "256");
    const check = await find("open files", { "/proc/self/limits": limits });
    expect(check).toMatchObject({ status: "warn", found: "limit 256" });
  });

  test.each([
    ["always within_size advise [never] deny force\n", null, "0", "warn"],
    ["always within_size advise never [deny] force\n", "[always] inherit never\n", "0", "warn"],
    ["always within_size advise never deny [force]\n", "always inherit [never]\n", "0", "ok"],
    [
      "always within_size advise [never] deny force\n",
      "always [advise] inherit never\n",
      "0",
      "ok",
    ],
    ["always within_size [advise] never deny force\n", "always [inherit] never\n", "0", "ok"],
    ["always within_size [advise] never deny force\n", "always inherit [never]\n", "0", "warn"],
    ["always within_size advise [never] deny force\n", null, "8192", "ok"],
    ["always within_size advise [never] deny force\n", null, "8191", "warn"],
    [null, null, "0", "warn"],
  ] as const)("huge pages: %p, for 2 MiB %p, pool of %p: %s", async (all, own, free, status) => {
    const check = await find("huge pages", {
      [`${THP}/shmem_enabled`]: all,
      [`${THP}/hugepages-2048kB/shmem_enabled`]: own,
      [`${POOL}/free_hugepages`]: `${free}\n`,
      [`${POOL}/nr_hugepages`]: `${free}\n`,
    });
    expect(check.status).toBe(status);
    if (status === "warn") expect(check.advice).toContain("vm.nr_hugepages=8192");
  });

  test("a kernel that forbids running from a memfd is reported", async () => {
    const check = await find("memfd", { "/proc/sys/vm/memfd_noexec": "2\n" });
    expect(check).toMatchObject({ status: "warn" });
    expect((await find("memfd", { "/proc/sys/vm/memfd_noexec": null })).status).toBe("ok");
  });

  test("several memory nodes come with advice", async () => {
    const nodes = { "/sys/devices/system/node/node1/cpulist": "8-15\n" };
    const check = await find("NUMA", nodes);
    expect(check.found).toBe("2 memory nodes (node0: CPUs 0-7; node1: CPUs 8-15)");
    expect(check.advice).toContain("memory of each node");
  });
});

describe("devices", () => {
  const driver = { "/usr/lib/x86_64-linux-gnu/libcuda.so.1": "" };
  const cached = { "/etc/ld.so.cache": "glibc-ld.so.cache1.1\0libcuda.so.1\0/opt/libcuda.so.1\0" };
  const gpus = { "/dev/nvidia0": "", "/dev/nvidia1": "", "/dev/nvidiactl": "" };

  test("CUDA needs the devices and the driver's library", async () => {
    const version = {
      "/proc/driver/nvidia/version":
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5\n",
    };
    expect(await find("CUDA", { ...gpus, ...driver, ...version })).toEqual({
      name: "CUDA",
      status: "ok",
      found: "2 GPUs, driver 550.54.15",
    });
    expect((await find("CUDA", { ...gpus, ...cached })).status).toBe("ok");
    expect((await find("CUDA", gpus)).found).toContain("libcuda.so.1 is not found");
    expect((await find("CUDA", driver)).found).toContain("no /dev/nvidia*");
    expect((await find("CUDA", { "/dev/nvidiactl": "" })).status).toBe("absent");
  });

  const port = "/sys/class/infiniband/mlx5_0/ports/1";
  const card = {
    [`${port}/state`]: "4: ACTIVE\n",
    [`${port}/link_layer`]: "Ethernet\n",
    [`${port}/rate`]: "100 Gb/sec (4X EDR)\n",
  };
  const verbs = { "/dev/infiniband/uverbs0": "", "/usr/lib64/libibverbs.so.1": "" };

  test("RDMA needs an active port, its device and the library", async () => {
    expect(await find("RDMA", { ...card, ...verbs })).toEqual({
      name: "RDMA",
      status: "ok",
      found: "mlx5_0/1 ACTIVE Ethernet 100 Gb/sec (4X EDR)",
    });
    const down = { ...card, ...verbs, [`${port}/state`]: "1: DOWN\n" };
    expect((await find("RDMA", down)).advice).toContain("bring a port up");
    expect((await find("RDMA", card)).found).toContain("uverbs");
    const noLibrary = { ...card, "/dev/infiniband/uverbs0": "" };
    expect((await find("RDMA", noLibrary)).found).toContain("libibverbs.so.1 is not found");
  });
});

describe("systemd", () => {
  test("a unit, a shell on a systemd host, and a host without", async () => {
    const unit = await find("systemd", {}, { notifySocket: "/run/systemd/notify" });
    expect(unit).toMatchObject({
      status: "ok",
      found: "readiness is reported to /run/systemd/notify",
    });
    const shell = await find("systemd", { "/run/systemd/system/.keep": "" });
    expect(shell.advice).toContain("config/hearth.service");
    expect((await find("systemd")).status).toBe("absent");
  });
});
