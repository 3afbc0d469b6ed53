import { statfsSync } from "node:fs";
import { readMemoryFacts } from "../../config/index.ts";
import { formatBytes } from "../../core/index.ts";
import { chosenWord, type HostFiles } from "./host-files.ts";
import { absent, type Check, fail, ok, warn } from "./report.ts";

const CAP_IPC_LOCK = 14n;
const HUGE_PAGE_BYTES = 2 * 2 ** 20;
const SHMEM_ENABLED = "/sys/kernel/mm/transparent_hugepage/shmem_enabled";
const SHMEM_ENABLED_2MIB = "/sys/kernel/mm/transparent_hugepage/hugepages-2048kB/shmem_enabled";
/** Two for each of 256 engines, and what the process itself has open. */
const OPEN_FILES_WANTED = 1024;

/** Memory and control group limit, against the RAM tier that is wished for. */
export function checkMemory(root: string, ramBytes: number | null): Check {
  const { totalBytes, availableBytes, cgroupBytes } = readMemoryFacts(root);
  if (totalBytes === null)
    return warn("memory", "unknown", "mount /proc: /proc/meminfo is missing");
  const group =
    cgroupBytes === null ? "no control group limit" : `limit ${formatBytes(cgroupBytes)}`;
  const free = availableBytes === null ? "" : `, ${formatBytes(availableBytes)} available`;
  const found = `${formatBytes(totalBytes)}${free}, ${group}`;
  if (ramBytes === null) return ok("memory", found);
  const wish = `a RAM tier of ${formatBytes(ramBytes)}`;
  if (ramBytes > totalBytes) return fail("memory", found, `lower kv.ram_gib: ${wish} cannot fit`);
  if (cgroupBytes !== null && ramBytes > cgroupBytes) {
    const advice = `raise the limit (MemoryMax=, container memory) or lower kv.ram_gib: ${wish}`;
    return fail("memory", found, advice);
  }
  if (availableBytes !== null && ramBytes > availableBytes) {
    return warn("memory", found, `stop what holds the memory now, or lower kv.ram_gib: ${wish}`);
  }
  return ok("memory", `${found}; ${wish} fits`);
}

/** The soft limit of a line of /proc/self/limits, infinity included; null where it is missing. */
function softLimit(files: HostFiles, name: string): number | null {
  const text = files.text("/proc/self/limits") ?? "";
  const word = new RegExp(`^${name}\\s+(unlimited|[0-9]+)\\s`, "m").exec(text)?.[1];
  if (word === undefined) return null;
  return word === "unlimited" ? Number.POSITIVE_INFINITY : Number(word);
}

function mayLockAnything(files: HostFiles): boolean {
  const mask = /^CapEff:\s*([0-9a-fA-F]+)$/m.exec(files.text("/proc/self/status") ?? "")?.[1];
  return mask !== undefined && ((BigInt(`0x${mask}`) >> CAP_IPC_LOCK) & 1n) === 1n;
}

/** How much memory this process may lock. */
export function checkMemlock(files: HostFiles, ramBytes: number | null): Check {
  const limit = softLimit(files, "Max locked memory");
  if (limit === null)
    return warn("memlock", "unknown", "mount /proc: /proc/self/limits is missing");
  if (limit === Number.POSITIVE_INFINITY) return ok("memlock", "unlimited");
  const found = `limit ${formatBytes(limit)}`;
  if (mayLockAnything(files)) return ok("memlock", `${found}, but CAP_IPC_LOCK is held`);
  if (ramBytes !== null && limit >= ramBytes)
    return ok("memlock", `${found}, enough for the RAM tier`);
  return warn(
    "memlock",
    `${found}: the RAM tier stays unlocked and may be swapped out`,
    "LimitMEMLOCK=infinity in the unit, ulimit -l unlimited, or --ulimit memlock=-1 in Docker",
  );
}

export function checkOpenFiles(files: HostFiles): Check {
  const limit = softLimit(files, "Max open files");
  if (limit === null) return absent("open files", "unknown: /proc/self/limits is missing");
  const found = limit === Number.POSITIVE_INFINITY ? "unlimited" : `limit ${limit}`;
  if (limit >= OPEN_FILES_WANTED) return ok("open files", found);
  const advice = "LimitNOFILE=65536 in the unit, ulimit -n 65536 in a shell: engines take two each";
  return warn("open files", found, advice);
}

/** The reserved pool, and transparent huge pages for shared memory. */
export function checkHugePages(files: HostFiles, ramBytes: number | null): Check {
  const pool = "/sys/kernel/mm/hugepages/hugepages-2048kB";
  const free = Number(files.text(`${pool}/free_hugepages`) ?? 0);
  const total = Number(files.text(`${pool}/nr_hugepages`) ?? 0);
  const wanted = Math.ceil((ramBytes ?? HUGE_PAGE_BYTES) / HUGE_PAGE_BYTES);
  const poolWords = `pool of ${total} x 2MiB, ${free} free`;
  const transparent = transparentForShared(files);
  const found = `${poolWords}; transparent for shared memory: ${transparent.words}`;
  if (free >= wanted) return ok("huge pages", found);
  if (transparent.usable) return ok("huge pages", found);
  const pages = ramBytes === null ? "N" : String(wanted);
  const advice = `echo advise > ${SHMEM_ENABLED}, or sysctl -w vm.nr_hugepages=${pages}`;
  return warn("huge pages", found, advice);
}

function transparentForShared(files: HostFiles): { usable: boolean; words: string } {
  const all = chosenWord(files.text(SHMEM_ENABLED));
  if (all === null) return { usable: false, words: "not in this kernel" };
  const isOn = (word: string) => ["always", "within_size", "advise", "force"].includes(word);
  // Newer kernels decide for each size; "inherit" asks the setting for all.
  const own = chosenWord(files.text(SHMEM_ENABLED_2MIB)) ?? "inherit";
  if (all === "deny" || own === "inherit") return { usable: isOn(all), words: all };
  return { usable: all === "force" || isOn(own), words: `${own} (2MiB)` };
}

/** Where containers keep shared memory small. The arena is a memfd and is not bound by it. */
export function checkShm(files: HostFiles): Check {
  if (files.stat("/dev/shm")?.isDirectory() !== true) {
    const advice = "mount a tmpfs on /dev/shm if engines of this host need one; Hearth does not";
    return absent("/dev/shm", "not there", advice);
  }
  try {
    const { bavail, blocks, bsize } = statfsSync(files.at("/dev/shm"));
    const found = `${formatBytes(blocks * bsize)}, ${formatBytes(bavail * bsize)} free`;
    return ok("/dev/shm", `${found}; the arena is a memfd and not bound by it`);
  } catch {
    return absent("/dev/shm", "there, but its size cannot be read");
  }
}

/** Whether the library may be loaded from memory. */
export function checkMemfd(files: HostFiles): Check {
  const setting = files.text("/proc/sys/vm/memfd_noexec");
  if (setting === null) return ok("memfd", "no vm.memfd_noexec on this kernel");
  if (setting !== "2") return ok("memfd", `vm.memfd_noexec=${setting}`);
  return warn(
    "memfd",
    "vm.memfd_noexec=2: the native library cannot be loaded from memory",
    "give the agent a private runtime folder it may execute from (RuntimeDirectory= in the unit)",
  );
}

export function checkNuma(files: HostFiles): Check {
  const nodes = files.list("/sys/devices/system/node").filter((name) => /^node[0-9]+$/.test(name));
  if (nodes.length === 0) return absent("NUMA", "the kernel names no memory nodes");
  if (nodes.length === 1) return ok("NUMA", "one memory node");
  const cpus = nodes.map(
    (node) =>
      `${node}: CPUs ${files.text(`/sys/devices/system/node/${node}/cpulist`) ?? "unknown"}`,
  );
  return ok(
    "NUMA",
    `${nodes.length} memory nodes (${cpus.join("; ")})`,
    "let the agent have memory of each node with a GPU or NIC: it puts blocks near them by itself",
  );
}
