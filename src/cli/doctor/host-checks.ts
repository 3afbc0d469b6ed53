import {
  closeSync,
  constants,
  mkdtempSync,
  openSync,
  readSync,
  rmSync,
  statfsSync,
  writeFileSync,
  writeSync,
} from "node:fs";
import { connect } from "node:net";
import { dirname, join } from "node:path";
import { natsVersionIn, reach, type Target } from "../../bus/index.ts";
import { readMemoryFacts } from "../../config/index.ts";
import { type Clock, formatBytes, messageOf } from "../../core/index.ts";
import { CPU_FLAGS, cpuFlags } from "../../native/index.ts";
import { absent, type Check, chosenWord, fail, type HostFiles, ok, warn } from "./check.ts";

/** Result of a probe of the native library. */
export interface Probe {
  readonly ok: boolean;
  /** The probe's finding, or its error. */
  readonly detail?: string;
  readonly errno?: number;
}

/**
 * Minimum Linux version: 5.3 added pidfd_open, with which the agent detects the death of an engine.
 * (6.5 added SO_PEERPIDFD.)
 */
const KERNEL_NEEDED = [5, 3] as const;
const KERNEL_PEER_PIDFD = [6, 5] as const;

export function checkKernel(files: HostFiles): Check {
  const release = files.text("/proc/sys/kernel/osrelease");
  const match = /^([0-9]+)\.([0-9]+)/.exec(release ?? "");
  if (release === null || match === null) {
    return fail("kernel", "not Linux, or /proc is not mounted", "run on Linux with /proc mounted");
  }
  const isAtLeast = ([major, minor]: readonly [number, number]) =>
    Number(match[1]) > major || (Number(match[1]) === major && Number(match[2]) >= minor);
  if (!isAtLeast(KERNEL_NEEDED)) {
    return fail(
      "kernel",
      release,
      "use Linux 5.3 or later: older kernels cannot detect the death of an engine",
    );
  }
  if (isAtLeast(KERNEL_PEER_PIDFD)) return ok("kernel", release);
  return ok(
    "kernel",
    release,
    "Linux 6.5 or later distinguishes an engine from a reused process id",
  );
}

export function checkCpu(files: HostFiles, arch: string): Check {
  const needed = CPU_FLAGS[arch];
  if (needed === undefined) {
    return fail("cpu", arch, "use an x64 or arm64 host: the native library has no other build");
  }
  const info = files.text("/proc/cpuinfo") ?? "";
  const flags = cpuFlags(info);
  if (flags === null) return warn("cpu", arch, "mount /proc so that the CPU can be checked");
  const missing = needed.filter((flag) => !flags.includes(flag));
  const model = /^model name\s*:\s*(.*)$/m.exec(info)?.[1] ?? arch;
  if (missing.length === 0) return ok("cpu", `${model}, has ${needed.slice(-3).join(" ")}`);
  return fail(
    "cpu",
    `${model}, lacks ${missing.join(" ")}`,
    "use a newer CPU; in a virtual machine, pass the host's CPU through (host-passthrough)",
  );
}

export function checkLibrary(probe: Probe | null): Check {
  if (probe === null) return absent("library", "not looked at");
  if (probe.ok) return ok("library", probe.detail ?? "loads");
  return fail(
    "library",
    probe.detail ?? "does not load",
    "install the executable for this architecture; glibc 2.28 or later is needed",
  );
}

const EPERM = 1;
const ENOSYS = 38;

export function checkIoUring(files: HostFiles, probe: Probe | null): Check {
  const name = "io_uring";
  const setting = files.text("/proc/sys/kernel/io_uring_disabled");
  const fallback = "reads and writes fall back to a pool of threads";
  if (probe?.ok === true) return ok(name, "a ring can be made");
  if (setting === "2") {
    return warn(name, `switched off (kernel.io_uring_disabled=2): ${fallback}`, SYSCTL_ADVICE);
  }
  if (setting === "1" && probe?.errno !== ENOSYS) {
    const advice = `${SYSCTL_ADVICE}, or put the agent's group into kernel.io_uring_group`;
    return warn(name, `kept to one group (kernel.io_uring_disabled=1): ${fallback}`, advice);
  }
  if (probe === null) {
    return setting === null
      ? absent(name, "kernel.io_uring_disabled is not there and no ring was tried")
      : ok(name, `kernel.io_uring_disabled=${setting}; no ring was tried`);
  }
  if (probe.errno === ENOSYS) {
    return warn(name, `not in this kernel: ${fallback}`, "use a kernel built with CONFIG_IO_URING");
  }
  const failed = probe.detail ?? `failed with errno ${probe.errno ?? "unknown"}`;
  const cause = probe.errno === EPERM ? "refused" : failed;
  const advice = "allow io_uring_setup in the container's or unit's system call filter";
  return warn(name, `${cause}: ${fallback}`, advice);
}

const SYSCTL_ADVICE = "sysctl -w kernel.io_uring_disabled=0";

export function checkSystemd(files: HostFiles, notifySocket: string | undefined): Check {
  const name = "systemd";
  if (notifySocket !== undefined) return ok(name, `readiness is reported to ${notifySocket}`);
  if (files.stat("/run/systemd/system") === null) {
    return absent(name, "this host was not started by systemd; readiness is on /readyz");
  }
  const advice = "as a service: install config/hearth.service (Type=notify, with a watchdog)";
  return ok(name, "runs this host; not started as a unit", advice);
}

const CAP_IPC_LOCK = 14n;
const HUGE_PAGE_BYTES = 2 * 2 ** 20;
const SHMEM_ENABLED = "/sys/kernel/mm/transparent_hugepage/shmem_enabled";
const SHMEM_ENABLED_2MIB = "/sys/kernel/mm/transparent_hugepage/hugepages-2048kB/shmem_enabled";
/** Minimum limit of open files: two for each of 256 engines, and the files of the agent itself. */
const OPEN_FILES_WANTED = 1024;

/** Checks whether the host's memory and the control group limit suffice for the RAM tier. */
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

/**
 * Returns the soft limit in a line of /proc/self/limits, which may be infinity; null if the line is
 * missing.
 */
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

/** Checks whether this process may lock the RAM tier in memory. */
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

/** Checks the reserved pool of huge pages, and transparent huge pages for shared memory. */
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
  // Newer kernels have a setting for each page size; "inherit" means the setting for all sizes.
  const own = chosenWord(files.text(SHMEM_ENABLED_2MIB)) ?? "inherit";
  if (all === "deny" || own === "inherit") return { usable: isOn(all), words: all };
  return { usable: all === "force" || isOn(own), words: `${own} (2MiB)` };
}

/**
 * Reports the size of /dev/shm, which containers often limit. The limit does not apply to the
 * arena, which is a memfd.
 */
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

/** Checks whether this process may load the native library from a memfd. */
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
    "let the agent use memory of each node with a GPU or NIC: it places blocks near them " +
      "automatically",
  );
}

const PAGE_BYTES = 4096;
/** Magic numbers (statfs(2)) of file systems in memory: tmpfs and ramfs. */
const IN_MEMORY = [0x0102_1994, 0x8584_58f6];

/**
 * Checks O_DIRECT in `folder`: writes and reads one page without the page cache, and removes the
 * file.
 */
export function checkDirectIo(folder: string): Check {
  const name = `O_DIRECT ${folder}`;
  let scratch: string;
  try {
    scratch = mkdtempSync(join(folder, ".hearth-doctor-"));
  } catch (thrown) {
    const advice = "name a folder that is there and that the agent's user may write to";
    return fail(name, messageOf(thrown), advice);
  }
  try {
    tryPage(scratch);
  } catch (thrown) {
    const advice = "use a local ext4 or XFS file system: others go through the page cache";
    return warn(name, `refused: ${messageOf(thrown)}`, advice);
  } finally {
    rmSync(scratch, { recursive: true, force: true });
  }
  if (IN_MEMORY.includes(statfsSync(folder).type)) {
    const advice = "name a folder on a disk: this one takes memory and is lost on restart";
    return warn(name, "works, but the file system lives in memory", advice);
  }
  return ok(name, "a page was written and read back");
}

/** Writes a page with O_DIRECT and reads it back. Throws if the pages differ. */
function tryPage(scratch: string): void {
  const source = join(scratch, "source");
  writeFileSync(source, new Uint8Array(PAGE_BYTES).fill(0xa5));
  // Only a private mapping is guaranteed to start at a page boundary.
  const page = Bun.mmap(source, { shared: false });
  const flags = constants.O_RDWR | constants.O_CREAT | constants.O_EXCL | constants.O_DIRECT;
  const file = openSync(join(scratch, "target"), flags, 0o600);
  try {
    const written = writeSync(file, page, 0, PAGE_BYTES, 0);
    page.fill(0);
    const read = readSync(file, page, 0, PAGE_BYTES, 0);
    const isWhole = written === PAGE_BYTES && read === PAGE_BYTES;
    if (!isWhole || page.some((byte) => byte !== 0xa5)) throw new Error("the page came back wrong");
  } finally {
    closeSync(file);
  }
}

const NAME = "engine socket";
const ANSWER_MS = 1_000;
const OTHERS_MASK = 0o007;
const GROUP_WRITE = 0o020;

/** Returns whether a process accepts connections on the socket. Never rejects. */
function answers(path: string, clock: Clock): Promise<boolean> {
  return new Promise((resolve) => {
    const socket = connect({ path });
    const end = (isThere: boolean) => {
      timer[Symbol.dispose]();
      socket.destroy();
      resolve(isThere);
    };
    const timer = clock.after(ANSWER_MS, () => end(false));
    socket.on("connect", () => end(true));
    socket.on("error", () => end(false));
  });
}

/**
 * Checks that the socket's folder belongs to the agent's user and that others cannot write to it,
 * and reports whether an agent is running.
 */
export async function checkEngineSocket(
  files: HostFiles,
  socketPath: string,
  uid: number,
  clock: Clock,
): Promise<Check> {
  const folder = dirname(socketPath);
  const stat = files.stat(folder);
  if (stat === null || !stat.isDirectory()) {
    const advice = `install -d -m 0750 ${folder}; in the unit RuntimeDirectory=hearth makes it`;
    return warn(NAME, `${folder} is not there`, advice);
  }
  const mode = stat.mode & 0o7777;
  const found = `${folder} has mode ${mode.toString(8).padStart(4, "0")} and owner ${stat.uid}`;
  if (stat.uid !== uid && uid !== 0) {
    const advice = `run agent and doctor as its owner, or set engine.socket to a folder of ${uid}`;
    return warn(NAME, found, advice);
  }
  if ((mode & OTHERS_MASK) !== 0 || (mode & GROUP_WRITE) !== 0) {
    return warn(NAME, found, `chmod 0750 ${folder}: others could reach or replace the socket`);
  }
  if (files.stat(socketPath) === null) return ok(NAME, `${found}; no agent runs`);
  if (await answers(files.at(socketPath), clock)) return ok(NAME, `${found}; an agent answers`);
  return ok(NAME, `${found}; left over from an agent that is gone, the next one takes it over`);
}

const DEFAULT_PORTS: Readonly<Record<string, number>> = {
  "nats:": 4222,
  "tls:": 4222,
  "ws:": 80,
  "wss:": 443,
};
/**
 * Parses `nats://host:4222`, `tls://`, `ws://`, `wss://` or `host:port`; null for anything else.
 */
function targetOf(url: string): Target | null {
  const whole = url.includes("://") ? url : `nats://${url}`;
  if (!URL.canParse(whole)) return null;
  const { protocol, hostname, port } = new URL(whole);
  const defaultPort = DEFAULT_PORTS[protocol];
  if (defaultPort === undefined || hostname === "") return null;
  return {
    host: hostname.replace(/^\[|\]$/g, ""),
    port: port === "" ? defaultPort : Number(port),
    greets: protocol === "nats:" || protocol === "tls:",
  };
}

/**
 * Checks whether a NATS server answers at `url`. Reports only host and port, because the URL may
 * contain a password.
 */
export async function checkNats(
  url: string | null,
  clock: Clock,
  timeoutMs: number,
): Promise<Check> {
  if (url === null) return absent("NATS", "not asked for (--nats URL)");
  const target = targetOf(url);
  if (target === null) {
    const advice = "write nats://host:4222, tls://, ws:// or wss://";
    return fail("NATS", "the URL names no server", advice);
  }
  const place = `${target.host}:${target.port}`;
  const reached = await reach(target, clock, timeoutMs);
  switch (reached.kind) {
    case "connected":
      return ok("NATS", `${place} accepts connections`);
    case "silent":
      return warn("NATS", `${place} accepts connections but is silent`, "check that it is NATS");
    case "failed": {
      const advice = "start the server, or check its address and the firewall between";
      return fail("NATS", `${place}: ${reached.why}`, advice);
    }
    case "greeted": {
      const version = natsVersionIn(reached.greeting);
      if (version !== null) return ok("NATS", `${place} runs nats-server ${version}`);
      return warn("NATS", `${place} answers, but not as NATS does`, "check host and port");
    }
    default:
      return reached satisfies never;
  }
}
