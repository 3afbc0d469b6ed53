import { type Clock, messageOf } from "../../core/index.ts";
import type { DirectFinding, GpuProbe, RdmaProbe } from "../../devices/index.ts";
import { type Check, type DoctorReport, type HostFiles, hostFiles } from "./check.ts";
import { checkDirect, checkGpus, checkRdma } from "./device-checks.ts";
import {
  checkCpu,
  checkDirectIo,
  checkEngineSocket,
  checkHugePages,
  checkIoUring,
  checkKernel,
  checkLibrary,
  checkMemfd,
  checkMemlock,
  checkMemory,
  checkNats,
  checkNuma,
  checkOpenFiles,
  checkShm,
  checkSystemd,
  type Probe,
} from "./host-checks.ts";

export interface DoctorOptions {
  readonly clock: Clock;
  /**
   * Folder that contains the host's /proc, /sys, /dev, /etc, /usr and /run. Default "/"; tests use
   * another.
   */
  readonly root?: string;
  /**
   * Processor architecture, with the names of `process.arch`. Default: this process's architecture.
   */
  readonly arch?: string;
  /** UID that the agent runs as. Default: this process's UID. */
  readonly uid?: number;
  /** Bytes of the RAM tier that the host must have room for; null if unknown. */
  readonly ramBytes?: number | null;
  /** Path of the engine socket in the configuration. */
  readonly engineSocket: string;
  /** Folders in which O_DIRECT is tested. */
  readonly directPaths?: readonly string[];
  /** URL of the NATS server to connect to; null for no test. */
  readonly natsUrl?: string | null;
  readonly natsTimeoutMs?: number;
  /** Value of $NOTIFY_SOCKET; undefined unless systemd set it. */
  readonly notifySocket?: string | undefined;
  /** Loads the native library. On failure `detail` gives the reason. */
  readonly probeLibrary?: () => Probe;
  /** Creates an io_uring and closes it. Called only if the library loads. */
  readonly probeIoUring?: () => Probe;
  /** Whether the configuration allows RDMA between hosts. Default true. */
  readonly mayUseRdma?: boolean;
  /**
   * Open the host's devices and close them again. Called only if the library loads. Never reject.
   */
  readonly lookAtGpus?: () => Promise<Looked<GpuProbe>>;
  readonly lookAtRdma?: () => Promise<Looked<RdmaProbe>>;
  /** Tests whether NICs can access GPU memory. Called only if the host has GPUs and RDMA ports. */
  readonly lookAtDirect?: () => Promise<Looked<readonly DirectFinding[]>>;
}

const NATS_TIMEOUT_MS = 2_000;

/** Runs a probe. An exception counts as a failed probe. */
function tried(probe: (() => Probe) | undefined): Probe | null {
  if (probe === undefined) return null;
  try {
    return probe();
  } catch (thrown) {
    return { ok: false, detail: messageOf(thrown) };
  }
}

/** Checks GPUs and RDMA devices, with their libraries if those are installed. */
async function checkDevices(
  files: HostFiles,
  options: Pick<DoctorOptions, "lookAtGpus" | "lookAtRdma" | "lookAtDirect" | "mayUseRdma">,
  hasHugePages: boolean,
): Promise<Check[]> {
  const { lookAtGpus, lookAtRdma, lookAtDirect } = options;
  const [gpus, rdma] = await Promise.all([lookAtGpus?.() ?? null, lookAtRdma?.() ?? null]);
  const ports = rdma?.ok === true ? rdma.found.ports : [];
  const hasNic = ports.length > 0 || files.list("/sys/class/infiniband").length > 0;
  const hasBoth = ports.length > 0 && gpus?.ok === true && gpus.found.devices.length > 0;
  return [
    ...checkGpus(files, { looked: gpus, hasHugePages, hasNic }),
    ...checkRdma(files, { looked: rdma, hasHugePages, isAllowed: options.mayUseRdma ?? true }),
    ...checkDirect(files, hasBoth ? ((await lookAtDirect?.()) ?? null) : null),
  ];
}

/**
 * Checks everything that the agent needs or can use on this host. Changes nothing and never
 * rejects.
 */
export async function runDoctor(options: DoctorOptions): Promise<DoctorReport> {
  const root = options.root ?? "/";
  const files = hostFiles(root);
  const ramBytes = options.ramBytes ?? null;
  const uid = options.uid ?? process.getuid?.() ?? 0;
  const library = tried(options.probeLibrary);
  const ring = library?.ok === false ? null : tried(options.probeIoUring);
  const nats = checkNats(
    options.natsUrl ?? null,
    options.clock,
    options.natsTimeoutMs ?? NATS_TIMEOUT_MS,
  );
  const hugePages = checkHugePages(files, ramBytes);
  const probes = library?.ok === false ? {} : options;
  const checks: Check[] = [
    checkKernel(files),
    checkCpu(files, options.arch ?? process.arch),
    checkLibrary(library),
    checkMemory(root, ramBytes),
    checkMemlock(files, ramBytes),
    hugePages,
    checkMemfd(files),
    checkShm(files),
    checkOpenFiles(files),
    checkNuma(files),
    checkIoUring(files, ring),
    ...(options.directPaths ?? []).map(checkDirectIo),
    ...(await checkDevices(files, probes, hugePages.status === "ok")),
    await checkEngineSocket(files, options.engineSocket, uid, options.clock),
    await nats,
    checkSystemd(files, options.notifySocket),
  ];
  return { ok: checks.every(({ status }) => status !== "fail"), checks };
}

/** Result of a probe in a child process, or its error. */
export type Looked<Found> =
  | { readonly ok: true; readonly found: Found }
  | { readonly ok: false; readonly why: string };

/** Timeout of a probe in milliseconds. After a boot, opening eight GPUs takes seconds. */
export const LOOK_MS = 30_000;

/**
 * Runs a command in a child process and parses its output as JSON. Device libraries are probed this
 * way, so that a driver that hangs or crashes affects only the probe. Never rejects. A child that
 * cannot be killed is left running.
 */
export async function lookInChild<Found>(
  command: readonly string[],
  clock: Clock,
  deadlineMs: number,
): Promise<Looked<Found>> {
  const streams = { stdin: "ignore", stdout: "pipe", stderr: "ignore" } as const;
  const child = Bun.spawn([...command], streams);
  const isLate = Promise.withResolvers<true>();
  using _timer = clock.after(deadlineMs, () => isLate.resolve(true));
  const ended = Promise.all([new Response(child.stdout).text(), child.exited]);
  const came = await Promise.race([ended, isLate.promise]);
  if (came === true) {
    child.kill("SIGKILL");
    child.unref();
    return { ok: false, why: `does not answer for ${deadlineMs / 1_000} s` };
  }
  const [text, code] = came;
  if (code !== 0) {
    return { ok: false, why: `ended the process that opened it (${child.signalCode ?? code})` };
  }
  try {
    return { ok: true, found: JSON.parse(text) };
  } catch (thrown) {
    return { ok: false, why: `printed invalid JSON: ${messageOf(thrown)}` };
  }
}
