import { formatBytes } from "../../core/index.ts";
import {
  counted,
  cudaError,
  type DirectFinding,
  type GpuProbe,
  gpuFinding,
  nodesOf,
  portFinding,
  portName,
  type RdmaProbe,
  rdmaFinding,
} from "../../devices/index.ts";
import { absent, type Check, type HostFiles, hasLibrary, ok, warn, withPath } from "./check.ts";
import type { Looked } from "./doctor.ts";

const CUDA = "CUDA";
/** First CUDA version that has cuMemcpyBatchAsync. */
const BATCHES_SINCE = "12.8";

/** Inputs of the GPU checks in addition to the host's files. */
export interface GpuCheckInputs {
  /** Result of the GPU probe; null if there was none. */
  readonly looked: Looked<GpuProbe> | null;
  /** Whether the arena can have huge pages on this host. */
  readonly hasHugePages: boolean;
  /** Whether the host also has an RDMA device. */
  readonly hasNic: boolean;
}

type Gpu = GpuProbe["devices"][number];

/** Checks the GPU driver, then each GPU. */
export function checkGpus(files: HostFiles, grounds: GpuCheckInputs): Check[] {
  const { looked } = grounds;
  if (looked?.ok === false) {
    const advice = "see dmesg (Xid) and nvidia-smi: the agent would hang at start";
    return [warn(CUDA, `the driver ${looked.why}`, advice)];
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
  if (finding?.kind === "usable") return ok(CUDA, `${finding.text}${driver}`);
  if (finding?.kind === "broken") return warn(CUDA, `${finding.text}${driver}`, finding.fix ?? "");
  const hasDriver =
    probe === null ? hasLibrary(files, "libcuda.so.1") : probe.info.state !== "no_library";
  if (gpus.length > 0 && hasDriver && probe === null) {
    return ok(CUDA, `${gpus.length} GPU${gpus.length === 1 ? "" : "s"}${driver}`);
  }
  if (gpus.length > 0 && !hasDriver) {
    return warn(
      CUDA,
      `${gpus.length} GPU devices${driver}, but libcuda.so.1 is not found`,
      "install the driver's user library, or add the NVIDIA container runtime's `utility,compute`",
    );
  }
  if (hasDriver) {
    return warn(
      CUDA,
      gpus.length > 0
        ? `${gpus.length} GPU devices${driver}, but the driver shows none of them`
        : "libcuda.so.1 is there, but no /dev/nvidia*",
      "load the kernel module (nvidia-smi), or hand the devices to the container (--gpus all)",
    );
  }
  return absent(CUDA, "no NVIDIA GPU and no driver; the RAM tier works without");
}

function checkGpu(files: HostFiles, device: Gpu, probe: GpuProbe, grounds: GpuCheckInputs): Check {
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
  return withPath(ok(check, text, bus?.advice ?? gpuAdvice(device, probe, grounds)), path);
}

/** Describes how the driver copies blocks. */
function pathOf({ info, registered }: GpuProbe): string {
  const memory = registered?.ok === true ? "registered RAM" : "RAM that is not registered";
  const calls = info.hasBatches ? "many pieces a call" : "a call for each piece";
  return `DMA between GPU and ${memory}, ${calls}`;
}

/** Returns the most useful improvement for a GPU; undefined if there is none. */
function gpuAdvice(
  { hasDmaBuf }: Gpu,
  { info }: GpuProbe,
  { hasHugePages, hasNic }: GpuCheckInputs,
): string | undefined {
  if (!info.hasBatches) return `a driver for CUDA ${BATCHES_SINCE} copies many pieces by one call`;
  if (!hasHugePages) return "huge pages for the arena: see `huge pages`";
  if (hasNic && !hasDmaBuf) {
    return "NVIDIA's open kernel modules: a NIC reaches GPU memory by dma-buf with them only";
  }
  return undefined;
}

const RDMA = "RDMA";
const NOT_ALLOWED =
  "set peers.trusted_network, if the network is private, and rdma in peers.transport: RDMA data " +
  "is not encrypted";
const OTHER_WAYS = "TLS over TCP, and QUIC";
/** Largest path MTU in bytes. It requires an MTU of 4200 on the network device. */
const MTU_WANTED = 4096;

/** Inputs of the RDMA checks in addition to the host's files. */
interface RdmaCheckInputs {
  /** Result of the RDMA probe; null if there was none. */
  readonly looked: Looked<RdmaProbe> | null;
  /** Whether the arena can have huge pages on this host. */
  readonly hasHugePages: boolean;
  /** Whether the configuration allows RDMA between hosts. */
  readonly isAllowed: boolean;
}

type Port = RdmaProbe["ports"][number];

/** Checks the verbs library, then each RDMA port. */
export function checkRdma(files: HostFiles, grounds: RdmaCheckInputs): Check[] {
  const { looked } = grounds;
  if (looked?.ok === false) {
    const advice = "see dmesg and ibv_devinfo: the agent would hang at start";
    return [warn(RDMA, `libibverbs ${looked.why}`, advice)];
  }
  const probe = looked?.found ?? null;
  const finding = probe === null ? null : rdmaFinding(probe, probe.ports, probe.library);
  if (probe === null || finding?.kind === "absent") {
    const host = checkHost(files);
    const isHidden = finding !== null && host.status === "ok";
    return [isHidden ? warn(RDMA, `${host.found}; ${finding.text}`, finding.fix ?? "") : host];
  }
  if (finding?.kind === "broken") {
    return [withPath(warn(RDMA, finding.text, finding.fix ?? ""), OTHER_WAYS)];
  }
  const ports = probe.ports.map((port) => checkPort(files, port, grounds));
  const active = probe.ports.filter(({ state }) => state === "active").length;
  const all = `${active} of ${counted(probe.ports.length, "port")} can be used`;
  const advice = "see the ports below: until one is active, blocks take other ways";
  return [active > 0 ? ok(RDMA, all) : withPath(warn(RDMA, all, advice), OTHER_WAYS), ...ports];
}

interface KernelPort {
  readonly isActive: boolean;
  readonly words: string;
}

function kernelPorts(files: HostFiles, device: string): KernelPort[] {
  const folder = `/sys/class/infiniband/${device}/ports`;
  return files.list(folder).map((port) => {
    const read = (file: string) => files.text(`${folder}/${port}/${file}`)?.trim() ?? "unknown";
    const state = read("state").replace(/^[0-9]+: /, "");
    return {
      isActive: state === "ACTIVE",
      words: `${device}/${port} ${state} ${read("link_layer")} ${read("rate")}`,
    };
  });
}

/**
 * Checks, without the verbs library, which RDMA devices the kernel shows and whether this process
 * may open them.
 */
function checkHost(files: HostFiles): Check {
  const devices = files.list("/sys/class/infiniband");
  if (devices.length === 0) return absent(RDMA, "no device");
  const ports = devices.flatMap((device) => kernelPorts(files, device));
  const found = ports.map(({ words }) => words).join("; ") || devices.join(" ");
  if (!ports.some(({ isActive }) => isActive)) {
    return warn(RDMA, found, "bring a port up: cable, switch port, ip link set DEVICE up");
  }
  if (!files.list("/dev/infiniband").some((name) => name.startsWith("uverbs"))) {
    const missing = `${found}; no /dev/infiniband/uverbs*`;
    return warn(RDMA, missing, "modprobe ib_uverbs, or pass it in");
  }
  if (!hasLibrary(files, "libibverbs.so.1")) {
    const missing = `${found}; libibverbs.so.1 is not found`;
    return warn(RDMA, missing, "install libibverbs1 (rdma-core)");
  }
  return ok(RDMA, found);
}

function checkPort(files: HostFiles, port: Port, grounds: RdmaCheckInputs): Check {
  const name = `RDMA ${portName(port)}`;
  const finding = portFinding(port);
  const facts = pciFacts(files, `/sys/class/infiniband/${port.device}/device`);
  const text = [finding.text, pciWords(facts)].filter((words) => words !== "").join(", ");
  if (finding.kind !== "usable") {
    return withPath(warn(name, text, finding.fix ?? "see ibv_devinfo"), OTHER_WAYS);
  }
  if (!grounds.isAllowed) return withPath(ok(name, text, NOT_ALLOWED), OTHER_WAYS);
  const path = `READs of other hosts' RAM into ours, ${addressWords(port)}`;
  const bus = pciAdvice(facts, nodesAllowed(files));
  if (bus?.isBad === true) return withPath(warn(name, text, bus.advice), path);
  return withPath(ok(name, text, bus?.advice ?? portAdvice(port, grounds.hasHugePages)), path);
}

function addressWords({ linkLayer, isRoceV2, gidIndex, lid, mtu }: Port): string {
  if (linkLayer === "infiniband") return `LID ${lid}, MTU ${mtu}`;
  return `RoCE v${isRoceV2 ? 2 : 1} by GID ${gidIndex}, MTU ${mtu}`;
}

/** Returns the most useful improvement for a port; undefined if there is none. */
function portAdvice(port: Port, hasHugePages: boolean): string | undefined {
  if (port.mtu < MTU_WANTED) {
    return port.linkLayer === "ethernet"
      ? `jumbo frames: set the network device's MTU to 4200; READs go in ${port.mtu} bytes now`
      : `the subnet manager gives an MTU of ${port.mtu}: let it give ${MTU_WANTED}`;
  }
  if (!port.hasRelaxedOrdering) {
    return "a driver with relaxed ordering: without it some hosts write at half the speed";
  }
  if (!hasHugePages) return "huge pages for the arena: see `huge pages`";
  return undefined;
}

const GPU_DIRECT = "GPUDirect";
const PATH_WITHOUT_DIRECT = "RAM, where each byte is verified, and from there to the GPU";

/** Checks whether NICs can access GPU memory. Returns no check unless the host has both. */
export function checkDirect(
  files: HostFiles,
  looked: Looked<readonly DirectFinding[]> | null,
): Check[] {
  if (looked === null) return [];
  if (!looked.ok) {
    const advice = "see dmesg: an IOMMU, or a NIC whose driver knows no dma-buf";
    return [withPath(warn(GPU_DIRECT, `the trial ${looked.why}`, advice), PATH_WITHOUT_DIRECT)];
  }
  const works = looked.found.filter(({ kind }) => kind === "usable");
  const other = looked.found.find(({ kind }) => kind !== "usable");
  const found = `dma-buf works with ${works.length} of ${looked.found.length} GPUs`;
  if (other === undefined) return [withPath(ok(GPU_DIRECT, found), PATH_WITHOUT_DIRECT)];
  const text = `${found}; ${other.gpu} ${other.text}${peermemWords(files)}`;
  return [withPath(ok(GPU_DIRECT, text, other.fix ?? undefined), PATH_WITHOUT_DIRECT)];
}

/**
 * Describes the kernel module nvidia_peermem, which cannot be used: it registers only addresses of
 * the calling process, but GPU memory belongs to an engine.
 */
function peermemWords(files: HostFiles): string {
  if (files.stat("/sys/module/nvidia_peermem") === null) return "";
  return "; nvidia_peermem is loaded, but only the engine's own process can use it";
}

/** Facts about a PCI device, read from sysfs. */
interface PciFacts {
  /** Number of PCIe lanes in use and maximum number; null if unknown. */
  readonly lanes: { readonly now: number; readonly most: number } | null;
  /** NUMA node of the device; null if unknown or if the host has only one node. */
  readonly node: number | null;
  /** True if the IOMMU translates the device's addresses. */
  readonly isTranslated: boolean;
}

/** Reads the facts about a PCI device. `folder` is its folder in /sys. */
function pciFacts(files: HostFiles, folder: string): PciFacts {
  const number = (name: string) => Number(files.text(`${folder}/${name}`)?.trim() || Number.NaN);
  const [now, most] = [number("current_link_width"), number("max_link_width")];
  const node = number("numa_node");
  const type = files.text(`${folder}/iommu_group/type`)?.trim() ?? "";
  return {
    lanes: now > 0 && most > 0 ? { now, most } : null,
    node: node >= 0 ? node : null,
    isTranslated: type.startsWith("DMA"),
  };
}

/**
 * Returns whether the device could use more PCIe lanes. A maximum of 0xff means that it is unknown.
 */
function isNarrow({ lanes }: PciFacts): boolean {
  return lanes !== null && lanes.now < lanes.most && lanes.most < 0xff;
}

/** Formats facts: `PCIe x8 of x16, NUMA node 1`; empty if nothing is known. */
function pciWords(facts: PciFacts): string {
  const { lanes, node } = facts;
  const words: string[] = [];
  if (lanes !== null) {
    words.push(isNarrow(facts) ? `PCIe x${lanes.now} of x${lanes.most}` : `PCIe x${lanes.now}`);
  }
  if (node !== null) words.push(`NUMA node ${node}`);
  return words.join(", ");
}

/** Returns the NUMA nodes from which this process may allocate memory; null if unknown. */
function nodesAllowed(files: HostFiles): ReadonlySet<number> | null {
  const text = files.text("/proc/self/status") ?? "";
  const list = /^Mems_allowed_list:\s*([0-9,-]+)$/m.exec(text)?.[1];
  return list === undefined ? null : nodesOf(list);
}

/** Returns advice for the worst problem of a PCI device; null if it has none. */
function pciAdvice(
  facts: PciFacts,
  allowed: ReadonlySet<number> | null,
): { readonly isBad: boolean; readonly advice: string } | null {
  const { lanes, node, isTranslated } = facts;
  if (isNarrow(facts)) {
    const advice = `only ${lanes?.now} of ${lanes?.most} lanes: reseat it, or see its slot in BIOS`;
    return { isBad: true, advice };
  }
  if (node !== null && allowed !== null && !allowed.has(node)) {
    const advice = `let the agent have memory of node ${node} (NUMAMask= in the unit, cpuset)`;
    return { isBad: true, advice };
  }
  if (isTranslated) {
    return { isBad: false, advice: "iommu=pt on the kernel's command line: no translation a page" };
  }
  return null;
}
