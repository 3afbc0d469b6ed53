import { describe, expect, test } from "bun:test";
import { mkdirSync, statfsSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import {
  CONFIG_BYTES_MAX,
  formatProblem,
  loadConfig,
  readMachineFacts,
  readMemoryFacts,
} from "../../src/config/index.ts";
import { tempDir } from "../support/index.ts";
import { NO_FACTS } from "./arbitrary-config.ts";

const dir = tempDir();

function write(path: string, content: string | Uint8Array): string {
  const full = join(dir, path);
  mkdirSync(dirname(full), { recursive: true });
  writeFileSync(full, content);
  return full;
}

async function problemsOf(path: string): Promise<string[]> {
  const result = await loadConfig(path, NO_FACTS);
  return result.ok
    ? []
    : result.problems.map((problem) => formatProblem(problem).replace(path, "F"));
}

describe("loading a file", () => {
  test("a good file loads", async () => {
    const result = await loadConfig(write("good.toml", "[kv]\nram_gib = 2\n"), NO_FACTS);
    expect(result.ok && result.config.kv.ramBytes).toBe(2 ** 31);
  });

  test("problems name the file as it was given", async () => {
    const path = write("bad.toml", "[kv]\nram_gib = 2\nx = 1\n");
    expect((await problemsOf(path))[0]).toStartWith("F:3:1 kv.x: unknown key; ");
  });

  test("a file that is not there", async () => {
    expect((await problemsOf(join(dir, "none.toml")))[0]).toMatch(/^F: cannot be read: .*ENOENT/);
  });

  test("a folder, a device and a pipe without a writer", async () => {
    expect((await problemsOf(dir))[0]).toMatch(/^F: (is not a regular file|cannot be read)/);
    expect((await problemsOf("/dev/zero"))[0]).toStartWith("F: is not a regular file");
    const pipe = join(dir, "pipe");
    expect(Bun.spawnSync(["mkfifo", pipe]).exitCode).toBe(0);
    expect((await problemsOf(pipe))[0]).toStartWith("F: is not a regular file");
  });

  test("a file of exactly the allowed size, and one byte more", async () => {
    const text = "[kv]\nram_gib = 2\n#".padEnd(CONFIG_BYTES_MAX, "x");
    expect(await problemsOf(write("full.toml", text))).toEqual([]);
    expect((await problemsOf(write("over.toml", `${text}x`)))[0]).toStartWith("F: is larger than");
  });

  test("bytes that are not UTF-8 are refused at their place", async () => {
    const bytes = Buffer.concat([
      Buffer.from('[kv]\nram_gib = 2\npolicy = "'),
      Buffer.from([0xff, 0x22]),
    ]);
    expect(await problemsOf(write("latin.toml", bytes))).toEqual([
      "F:3:11: holds bytes that are not UTF-8; save the file as UTF-8",
    ]);
  });
});

describe("facts of the machine", () => {
  const meminfo = "MemTotal:       1000 kB\nMemFree:  10 kB\nMemAvailable:    600 kB\n";

  test("come from /proc/meminfo where nothing limits the process", () => {
    write("plain/proc/meminfo", meminfo);
    write("plain/proc/self/cgroup", "0::/\n");
    expect(readMemoryFacts(join(dir, "plain"))).toEqual({
      totalBytes: 1_024_000,
      availableBytes: 614_400,
      cgroupBytes: null,
    });
    expect(readMachineFacts(join(dir, "plain")).memoryBytes).toBe(1_024_000);
  });

  test("take the lowest limit on the way up (control groups version 2)", () => {
    write("v2/proc/meminfo", meminfo);
    write("v2/proc/self/cgroup", "0::/system.slice/hearth.service\n");
    write("v2/sys/fs/cgroup/system.slice/hearth.service/memory.max", "max\n");
    write("v2/sys/fs/cgroup/system.slice/memory.max", "500000\n");
    expect(readMemoryFacts(join(dir, "v2")).cgroupBytes).toBe(500_000);
    expect(readMachineFacts(join(dir, "v2")).memoryBytes).toBe(500_000);
  });

  test("know version 1, and its huge number for no limit", () => {
    write("v1/proc/meminfo", meminfo);
    write("v1/proc/self/cgroup", "9:name=systemd:/\n4:memory:/docker/x\n0::/\n");
    write("v1/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
    expect(readMemoryFacts(join(dir, "v1")).cgroupBytes).toBeNull();
    write("v1/sys/fs/cgroup/memory/docker/x/memory.limit_in_bytes", "700000\n");
    expect(readMemoryFacts(join(dir, "v1")).cgroupBytes).toBe(700_000);
  });

  test("see the top of the hierarchy where a container hides its own path", () => {
    write("box/proc/self/cgroup", "0::/kubepods/pod1\n");
    write("box/sys/fs/cgroup/memory.max", "900000\n");
    expect(readMemoryFacts(join(dir, "box"))).toEqual({
      totalBytes: null,
      availableBytes: null,
      cgroupBytes: 900_000,
    });
  });

  test("name the size of the file system under a folder that is still to be made", () => {
    const { fileSystemBytes } = readMachineFacts();
    const { blocks, bsize } = statfsSync(dir);
    expect(fileSystemBytes!(dir)).toBe(blocks * bsize);
    expect(fileSystemBytes!(join(dir, "not", "yet", "there"))).toBe(blocks * bsize);
    expect(fileSystemBytes!("/dev/null/x")).toBe(fileSystemBytes!("/dev/null"));
  });

  test("of this machine are known", () => {
    const facts = readMachineFacts();
    expect(facts.memoryBytes).toBeGreaterThan(2 ** 26);
    expect(facts.hostname).not.toBe("");
  });
});
