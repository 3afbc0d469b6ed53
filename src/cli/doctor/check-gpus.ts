import { formatBytes } from "../../core/index.ts";
import { cudaError, type GpuProbe, gpuFinding } from "../../devices/index.ts";
import { type HostFiles, hasLibrary } from "./host-files.ts";
import type { Looked } from "./look.ts";
import { nodesAllowed, pciAdvice, pciFacts, pciWords } from "./pci.ts";
import { absent, type Check, ok, warn, withPath } from "./report.ts";

const NAME = "CUDA";
/** cuMemcpyBatchAsync came with it. */
const BATCHES_SINCE = "12.8";

/** What the GPUs' checks go by beside files. */
export interface GpuGrounds {
  /** Null: nobody looked. */
  readonly looked: Looked<GpuProbe> | null;
  /** Whether the arena gets huge pages here. */
  readonly hasHugePages: boolean;
  /** Whether there is an RDMA device beside the GPUs. */
  readonly hasNic: boolean;
}

type Gpu = GpuProbe["devices"][number];

/** The driver, then each GPU. */
export function checkGpus(files: HostFiles, grounds: GpuGrounds): Check[] {
  const { looked } = grounds;
  if (looked?.ok === false) {
    const advice = "see dmesg (Xid) and nvidia-smi: the agent would not come through its start";
    return [warn(NAME, `the driver ${looked.why}`, advice)];
  }
  const probe = looked?.found ?? null;
  const checks = [checkDriver(files, probe)];
  if (probe?.info.state !== "ready") return checks;
  return [...checks, ...probe.devices.map((device) => checkGpu(files, device, probe, grounds))];
}

function checkDriver(files: HostFiles, probe: GpuProbe | null): Check {
  const gpus = files.list("/dev").filter((name) => /^nvidia[0-9]+$/.test(name));
  const version = /Kernel Module\D*([0-9][0-9.]*)/.exec(
    files.text("/proc/driver/nvidia/version") ?? "",
  )?.[1];
  const driver = version === undefined ? "" : `, driver ${version}`;
  const finding = probe === null ? null : gpuFinding(probe.info, probe.devices, probe.library);
  if (finding?.kind === "usable") return ok(NAME, `${finding.text}${driver}`);
  if (finding?.kind === "broken") return warn(NAME, `${finding.text}${driver}`, finding.fix ?? "");
  const hasDriver =
    probe === null ? hasLibrary(files, "libcuda.so.1") : probe.info.state !== "no_library";
  if (gpus.length > 0 && hasDriver && probe === null) {
    return ok(NAME, `${gpus.length} GPU${gpus.length === 1 ? "" : "s"}${driver}`);
  }
  if (gpus.length > 0 && !hasDriver) {
    return warn(
      NAME,
      `${gpus.length} GPU devices${driver}, but libcuda.so.1 is not found`,
      "install the driver's user library, or add the NVIDIA container runtime's `utility,compute`",
    );
  }
  if (hasDriver) {
    return warn(
      NAME,
      gpus.length > 0
        ? `${gpus.length} GPU devices${driver}, but the driver shows none of them`
        : "libcuda.so.1 is there, but no /dev/nvidia*",
      "load the kernel module (nvidia-smi), or hand the devices to the container (--gpus all)",
    );
  }
  return absent(NAME, "no NVIDIA GPU and no driver; the RAM tier works without");
}

function checkGpu(files: HostFiles, device: Gpu, probe: GpuProbe, grounds: GpuGrounds): Check {
  const { name, memoryBytes, pci, lost } = device;
  const check = `GPU ${pci}`;
  const facts = pciFacts(files, `/sys/bus/pci/devices/${pci.toLowerCase()}`);
  const found = [name, formatBytes(memoryBytes), pciWords(facts)].filter((text) => text !== "");
  const text = found.join(", ");
  if (lost !== null) {
    const advice = "see dmesg (Xid), reset or replace it, then restart what uses it";
    return withPath(warn(check, `${text}: lost, ${cudaError(lost)}`, advice), "none");
  }
  const path = pathOf(probe);
  const { registered } = probe;
  if (registered !== null && !registered.ok) {
    const advice = `the driver refuses to register RAM (${cudaError(registered.code)}): see dmesg`;
    return withPath(warn(check, text, advice), path);
  }
  const bus = pciAdvice(facts, nodesAllowed(files));
  if (bus?.isBad === true) return withPath(warn(check, text, bus.advice), path);
  return withPath(ok(check, text, bus?.advice ?? faster(device, probe, grounds)), path);
}

/** How copies go. */
function pathOf({ info, registered }: GpuProbe): string {
  const memory = registered?.ok === true ? "registered RAM" : "RAM that is not registered";
  const calls = info.hasBatches ? "many pieces a call" : "a call for each piece";
  return `DMA between GPU and ${memory}, ${calls}`;
}

/** The one thing, where anything is left. */
function faster(
  { hasDmaBuf }: Gpu,
  { info }: GpuProbe,
  { hasHugePages, hasNic }: GpuGrounds,
): string | undefined {
  if (!info.hasBatches) return `a driver for CUDA ${BATCHES_SINCE} copies many pieces by one call`;
  if (!hasHugePages) return "huge pages for the arena: see `huge pages`";
  if (hasNic && !hasDmaBuf) {
    return "NVIDIA's open kernel modules: a NIC reaches GPU memory by dma-buf with them only";
  }
  return undefined;
}
