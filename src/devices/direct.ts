import {
  type DirectOutcome,
  type GpuDevice,
  type GpuFault,
  type GpuMemory,
  type GpuOutcome,
  type Gpus,
  type Native,
  openGpus,
  type RdmaPort,
  Region,
  tryDirect,
} from "../native/index.ts";
import { cudaError, gpuName } from "./host-gpus.ts";
import { portName } from "./host-rdma.ts";
import { type Finding, usable } from "./probe.ts";

/** Result of a test: can the nearest RDMA NIC write to the memory of one GPU? */
export interface DirectFinding extends Finding {
  /** Name and PCI address of the GPU, as returned by `gpuName`. */
  readonly gpu: string;
  /** RDMA port used for the test, such as `mlx5_0/1`. Null if no port was active. */
  readonly port: string | null;
}

type Port = Pick<RdmaPort, "device" | "number" | "gidIndex" | "state" | "numaNode" | "hasDmaBuf">;

export interface DirectOptions {
  readonly gpuLibrary: string | null;
  readonly rdmaLibrary: string | null;
  readonly ports: readonly Port[];
}

/**
 * Bytes transferred per test: a multiple of the page size of GPUs. The test region holds two such
 * spans.
 */
const TRIED_BYTES = 65_536;
const WANTED_SEED = 0x4841n;
const OTHER_SEED = 0x5242n;

/**
 * Tests for each GPU whether a NIC can write to its memory, and checks the data that arrived. The
 * result is only reported to operators: blocks from peers always pass through RAM, where the CPU
 * verifies each byte.
 */
export async function probeDirect(
  native: Native,
  { gpuLibrary, rdmaLibrary, ports }: DirectOptions,
): Promise<DirectFinding[]> {
  const bytes = 2 * TRIED_BYTES;
  using region = Region.create(native, { bytes, hugePages: "off", lockMemory: "off" });
  await using gpus = openGpus(native, {
    region,
    library: gpuLibrary,
    jobsMax: 8,
    piecesMax: 8,
    onLost: () => undefined,
  });
  const findings: DirectFinding[] = [];
  for (const device of gpus.devices()) {
    const port = nearestPort(device, ports);
    const why =
      refusalOf(device, port) ??
      (await tried({ native, region, gpus }, rdmaLibrary, [device, port!]));
    findings.push({ gpu: gpuName(device), port: port && portName(port), ...why });
  }
  return findings;
}

/** Returns an active port, if possible on the GPU's NUMA node. Null if no port is active. */
function nearestPort({ numaNode }: GpuDevice, ports: readonly Port[]): Port | null {
  const active = ports.filter(({ state }) => state === "active");
  const near = active.find((port) => numaNode !== null && port.numaNode === numaNode);
  return near ?? active[0] ?? null;
}

const THROUGH_RAM = "through RAM";

function bounce(why: string, fix: string | null): Finding {
  return { kind: "broken", text: `${THROUGH_RAM}: ${why}`, fix };
}

function refusalOf(device: GpuDevice, port: Port | null): Finding | null {
  if (device.lost !== null) return bounce("the GPU is lost", "see GPU_LOST");
  if (port === null) return bounce("no RDMA port is active", "see the RDMA ports");
  if (!device.hasDmaBuf) {
    return bounce(
      "the driver cannot export GPU memory",
      "the open kernel modules of NVIDIA's driver",
    );
  }
  if (port.hasDmaBuf) return null;
  return bounce(
    `${portName(port)} cannot register memory of other devices`,
    "Linux 5.12, rdma-core 34",
  );
}

interface Ground {
  readonly native: Native;
  readonly region: Region;
  readonly gpus: Gpus;
}

async function tried(
  ground: Ground,
  library: string | null,
  [device, port]: readonly [GpuDevice, Port],
): Promise<Finding> {
  const opened = await ground.gpus.allocate(device.index, TRIED_BYTES, { exportable: true });
  if (!opened.ok) return bounce(`GPU memory: ${faultMessage(opened)}`, null);
  try {
    return await triedInto(ground, library, port, opened.memory);
  } finally {
    await ground.gpus.free(opened.memory);
  }
}

async function triedInto(
  { native, region, gpus }: Ground,
  library: string | null,
  port: Port,
  memory: GpuMemory,
): Promise<Finding> {
  const back = { regionOffset: TRIED_BYTES, memoryOffset: 0, bytes: TRIED_BYTES };
  region.fill(0, TRIED_BYTES, WANTED_SEED);
  // Overwrites data from an earlier test, which would look like received data.
  region.fill(TRIED_BYTES, TRIED_BYTES, OTHER_SEED);
  const written: GpuOutcome = await gpus.toGpu(memory, [back]);
  if (!written.ok) return bounce(`a copy: ${faultMessage(written)}`, null);
  const buffer = await gpus.exportDmaBuf(memory, 0, TRIED_BYTES);
  if (!buffer.ok) {
    const fix = "the open kernel modules of NVIDIA's driver";
    return bounce(`the driver cannot export GPU memory: ${faultMessage(buffer)}`, fix);
  }
  const span = { region, offset: 0, bytes: TRIED_BYTES, fd: buffer.fd, bufferOffset: 0 };
  const outcome = tryDirect(native, { ...span, library, port });
  native.closeFd(buffer.fd);
  if (outcome.step !== "works") return bounceAt(outcome, port);
  const read: GpuOutcome = await gpus.fromGpu(memory, [back]);
  if (!read.ok) return bounce(`a copy: ${faultMessage(read)}`, null);
  if (region.firstWrong(TRIED_BYTES, TRIED_BYTES, WANTED_SEED) === null) {
    return usable(`dma-buf works with ${portName(port)}`);
  }
  const fix = "IOMMU off or in pass-through (iommu=pt), ACS off between GPU and NIC";
  return bounce("data written by the NIC did not arrive", fix);
}

function faultMessage({ status, code }: GpuFault): string {
  return code === 0 ? status.replaceAll("_", " ") : cudaError(code);
}

function bounceAt({ step, code }: DirectOutcome, port: Port): Finding {
  const name = portName(port);
  switch (step) {
    case "works":
      return usable(name);
    case "library":
      return bounce("libibverbs.so.1 lacks ibv_reg_dmabuf_mr", "rdma-core 34 or later");
    case "device":
      return bounce(`${name} cannot be opened (errno ${code})`, "see the RDMA ports");
    case "port":
      return bounce(`${name} is not active`, "see the RDMA ports");
    case "memory":
      return bounce(`RAM cannot be registered (errno ${code})`, "LimitMEMLOCK=infinity");
    case "dma_buf":
      return bounce(
        `${name} refuses the GPU's memory (errno ${code})`,
        "a NIC driver that takes dma-buf (mlx5: 5.12), and both below one PCIe root",
      );
    case "pair":
      return bounce(`no connection within ${name} (errno ${code})`, "see dmesg");
    case "read":
      return bounce(
        `a READ into the GPU failed (status ${code})`,
        "IOMMU in pass-through, see dmesg",
      );
    case "late":
      return bounce("a READ into the GPU does not end", "IOMMU in pass-through, see dmesg");
    default:
      return step satisfies never;
  }
}
