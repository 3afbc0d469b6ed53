import { readFileSync } from "node:fs";
import { join } from "node:path";
import {
  type GpuDevice,
  type GpuOutcome,
  type GpusInfo,
  type Native,
  openGpus,
  openRdma,
  type RdmaOptions,
  type RdmaPort,
  type RdmaState,
  Region,
} from "../native/index.ts";

/** Result of testing the GPUs, in a form suitable for JSON. */
export interface GpuProbe {
  /** Configured path of the CUDA library. Null if not configured. */
  readonly library: string | null;
  readonly info: GpusInfo;
  readonly devices: readonly Omit<GpuDevice, "uuid">[];
  /** Result of registering test memory with the driver. Null if no GPU can be used. */
  readonly registered: GpuOutcome | null;
}

const TRIED_BYTES = 2 * 2 ** 20;
/**
 * Bytes locked for the test. Larger than the kernel's default limit, so that the test detects an
 * unchanged limit.
 */
const LOCKED_BYTES = 64 * 2 ** 20;

/** Opens the GPUs, registers test memory with the driver, and closes them again. */
export async function probeGpus(native: Native, library: string | null): Promise<GpuProbe> {
  using region = Region.create(native, { bytes: TRIED_BYTES, hugePages: "off", lockMemory: "off" });
  await using gpus = openGpus(native, {
    region,
    library,
    jobsMax: 1,
    piecesMax: 1,
    onLost: () => undefined,
  });
  const { info } = gpus;
  const registered = info.state === "ready" ? await gpus.register(0, TRIED_BYTES) : null;
  const devices = gpus.devices().map(({ uuid: _, ...device }) => device);
  return { library, info, devices, registered };
}

/** Result of testing the RDMA devices, in a form suitable for JSON. */
export interface RdmaProbe {
  /** Configured path of the verbs library. Null if not configured. */
  readonly library: string | null;
  readonly state: RdmaState;
  readonly errno: number;
  readonly ports: readonly Omit<RdmaPort, "gid">[];
}

/** Tests whether the RDMA devices can be opened, and closes them again. */
export async function probeRdma(
  native: Native,
  choice: Pick<RdmaOptions, "library" | "devices" | "gidIndex">,
): Promise<RdmaProbe> {
  using region = Region.create(native, {
    bytes: LOCKED_BYTES,
    hugePages: "off",
    lockMemory: "off",
  });
  await using rdma = openRdma(native, {
    ...{ ...choice, region, windowBytes: LOCKED_BYTES, windowSpans: 1, linksMax: 1, readsMax: 1 },
    onPort: () => undefined,
  });
  const ports = rdma.ports().map(({ gid: _, ...port }) => port);
  return { library: choice.library, state: rdma.state, errno: rdma.errno, ports };
}

/** Result of looking for a device or feature, as a message for operators. */
export interface Finding {
  /** `absent`: no such device. `broken`: the device exists and cannot be used. */
  readonly kind: "usable" | "absent" | "broken";
  /** The result in one line. */
  readonly text: string;
  /** Suggested fix for the operator. Null if nothing needs to be done. */
  readonly fix: string | null;
}

export function usable(text: string): Finding {
  return { kind: "usable", text, fix: null };
}

export function absent(text: string, fix: string): Finding {
  return { kind: "absent", text, fix };
}

export function broken(text: string, fix: string | null): Finding {
  return { kind: "broken", text, fix };
}

/** Formats a number with its noun: `1 GPU`, `2 GPUs`. */
export function counted(count: number, one: string, many = `${one}s`): string {
  return `${count} ${count === 1 ? one : many}`;
}

/**
 * Returns the finding for a configured library that cannot be opened. `key`: the configuration key,
 * `path`: its value.
 */
export function wrongPath(key: string, path: string): Finding {
  const fix = `name the library itself in ${key}, or leave it to the dynamic linker`;
  return broken(`${key} ${path} cannot be opened`, fix);
}

/**
 * Returns the number of NUMA nodes of this host that have memory. Returns 1 if the kernel does not
 * report them.
 */
export function hostMemoryNodes(root = "/"): number {
  try {
    const path = join(root, "sys/devices/system/node/has_memory");
    return Math.max(1, nodesOf(readFileSync(path, "utf8").trim()).size);
  } catch (thrown) {
    if (thrown instanceof Error && "code" in thrown) return 1;
    throw thrown;
  }
}

/** Parses a list of NUMA nodes in the kernel's format, such as `0-1,4`. */
export function nodesOf(list: string): ReadonlySet<number> {
  const nodes = new Set<number>();
  for (const range of list.split(",")) {
    const match = /^(\d+)(?:-(\d+))?$/.exec(range);
    if (match === null) continue;
    for (let node = Number(match[1]); node <= Number(match[2] ?? match[1]); node++) nodes.add(node);
  }
  return nodes;
}
