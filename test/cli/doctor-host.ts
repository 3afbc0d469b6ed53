import { chmodSync, mkdirSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { type Check, type DoctorOptions, runDoctor } from "../../src/cli/doctor/index.ts";
import { systemClock } from "../../src/core/index.ts";
import { tempDir } from "../support/index.ts";

export const GIB = 2 ** 30;
const FLAGS = "fpu avx avx2 bmi1 bmi2 f16c fma abm movbe popcnt sse4_2 aes pclmulqdq";
export const THP = "/sys/kernel/mm/transparent_hugepage";
export const POOL = "/sys/kernel/mm/hugepages/hugepages-2048kB";

/** A host without problems; each test changes the part that it checks. */
export const GOOD_HOST: Readonly<Record<string, string>> = {
  "/proc/sys/kernel/osrelease": "6.8.0-45-generic\n",
  "/proc/cpuinfo": `processor\t: 0\nmodel name\t: Test CPU\nflags\t\t: ${FLAGS}\n`,
  "/proc/meminfo": "MemTotal:       67108864 kB\nMemAvailable:   58720256 kB\n",
  "/proc/self/cgroup": "0::/\n",
  "/proc/self/limits": [
    "Limit                     Soft Limit           Hard Limit           Units     ",
    "Max open files            65536                65536                files     ",
    "Max locked memory         unlimited            unlimited            bytes     ",
    "",
  ].join("\n"),
  "/proc/self/status": "CapEff:\t0000000000000000\n",
  "/proc/sys/kernel/io_uring_disabled": "0\n",
  "/proc/sys/vm/memfd_noexec": "0\n",
  [`${THP}/shmem_enabled`]: "always within_size [advise] never deny force\n",
  [`${POOL}/nr_hugepages`]: "0\n",
  [`${POOL}/free_hugepages`]: "0\n",
  "/sys/devices/system/node/node0/cpulist": "0-7\n",
  "/dev/shm/.keep": "",
  "/run/hearth/.keep": "",
};

type Changes = Readonly<Record<string, string | null>>;

/** Where made-up hosts live until the tests of the calling file are over. */
export function hostMaker() {
  const base = tempDir();
  let made = 0;

  /** Puts a host into a folder of its own; null takes a file away. */
  function host(changes: Changes = {}): string {
    const root = join(base, `host-${made++}`);
    for (const [path, text] of Object.entries({ ...GOOD_HOST, ...changes })) {
      if (text === null) continue;
      mkdirSync(join(root, dirname(path)), { recursive: true });
      writeFileSync(join(root, path), text);
    }
    if (changes["/run/hearth/.keep"] !== null) chmodSync(join(root, "/run/hearth"), 0o750);
    return root;
  }

  /** One check of a host with these changes. */
  async function find(
    name: string,
    changes: Changes = {},
    options: Partial<DoctorOptions> = {},
  ): Promise<Check> {
    const { checks } = await look(host(changes), options);
    const found = checks.find((check) => check.name === name);
    if (found === undefined) throw new Error(`no check ${name} in ${checks.map((c) => c.name)}`);
    return found;
  }

  return { host, find };
}

export function look(root: string, options: Partial<DoctorOptions> = {}) {
  return runDoctor({
    clock: systemClock,
    root,
    arch: "x64",
    ramBytes: 16 * GIB,
    engineSocket: "/run/hearth/engine.sock",
    probeLibrary: () => ({ ok: true, detail: "loads" }),
    probeIoUring: () => ({ ok: true, errno: 0 }),
    ...options,
  });
}
