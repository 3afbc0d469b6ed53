import { CPU_FLAGS, cpuFlags } from "../../native/index.ts";
import type { HostFiles } from "./host-files.ts";
import { absent, type Check, fail, ok, warn } from "./report.ts";

/** What an injected probe of the native library says. */
export interface Probe {
  readonly ok: boolean;
  /** What was found, or what went wrong. */
  readonly detail?: string;
  readonly errno?: number;
}

/** pidfd_open, by which the death of an engine is seen, came with 5.3; SO_PEERPIDFD with 6.5. */
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
      "use Linux 5.3 or later: engines that die cannot be seen before",
    );
  }
  if (isAtLeast(KERNEL_PEER_PIDFD)) return ok("kernel", release);
  return ok("kernel", release, "Linux 6.5 or later tells an engine from a reused process id");
}

export function checkCpu(files: HostFiles, arch: string): Check {
  const needed = CPU_FLAGS[arch];
  if (needed === undefined) {
    return fail("cpu", arch, "use an x64 or arm64 host: the native library has no other build");
  }
  const info = files.text("/proc/cpuinfo") ?? "";
  const flags = cpuFlags(info);
  if (flags === null) return warn("cpu", arch, "mount /proc so that the CPU can be looked at");
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
  if (notifySocket !== undefined) return ok(name, `readiness is told to ${notifySocket}`);
  if (files.stat("/run/systemd/system") === null) {
    return absent(name, "this host was not started by systemd; readiness is on /readyz");
  }
  const advice = "as a service: install config/hearth.service (Type=notify, with a watchdog)";
  return ok(name, "runs this host; not started as a unit", advice);
}
