import {
  counted,
  portFinding,
  portName,
  type RdmaProbe,
  rdmaFinding,
} from "../../devices/index.ts";
import { type HostFiles, hasLibrary } from "./host-files.ts";
import type { Looked } from "./look.ts";
import { nodesAllowed, pciAdvice, pciFacts, pciWords } from "./pci.ts";
import { absent, type Check, ok, warn, withPath } from "./report.ts";

const NAME = "RDMA";
const NOT_ALLOWED =
  "peers.trusted_network, where nobody else is on it, and rdma.enabled: what is read is not sealed";
const OTHER_WAYS = "TLS over TCP, and QUIC";
/** The longest path MTU that there is, in bytes; a network device needs 4200 for it. */
const MTU_WANTED = 4096;

/** What the ports' checks go by beside files. */
export interface RdmaGrounds {
  /** Null: nobody looked. */
  readonly looked: Looked<RdmaProbe> | null;
  /** Whether the arena gets huge pages here. */
  readonly hasHugePages: boolean;
  /** Whether the configuration lets RDMA be used between hosts. */
  readonly isAllowed: boolean;
}

type Port = RdmaProbe["ports"][number];

/** The verbs, then each port. */
export function checkRdma(files: HostFiles, grounds: RdmaGrounds): Check[] {
  const { looked } = grounds;
  if (looked?.ok === false) {
    const advice = "see dmesg and ibv_devinfo: the agent would not come through its start";
    return [warn(NAME, `libibverbs ${looked.why}`, advice)];
  }
  const probe = looked?.found ?? null;
  const finding = probe === null ? null : rdmaFinding(probe, probe.ports, probe.library);
  if (probe === null || finding?.kind === "absent") {
    const host = checkHost(files);
    const isHidden = finding !== null && host.status === "ok";
    return [isHidden ? warn(NAME, `${host.found}; ${finding.text}`, finding.fix ?? "") : host];
  }
  if (finding?.kind === "broken") {
    return [withPath(warn(NAME, finding.text, finding.fix ?? ""), OTHER_WAYS)];
  }
  const ports = probe.ports.map((port) => checkPort(files, port, grounds));
  const active = probe.ports.filter(({ state }) => state === "active").length;
  const all = `${active} of ${counted(probe.ports.length, "port")} can be used`;
  const advice = "see the ports below: until one is active, blocks take other ways";
  return [active > 0 ? ok(NAME, all) : withPath(warn(NAME, all, advice), OTHER_WAYS), ...ports];
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

/** Without a word of the verbs: what the kernel shows, and whether they can be opened. */
function checkHost(files: HostFiles): Check {
  const devices = files.list("/sys/class/infiniband");
  if (devices.length === 0) return absent(NAME, "no device");
  const ports = devices.flatMap((device) => kernelPorts(files, device));
  const found = ports.map(({ words }) => words).join("; ") || devices.join(" ");
  if (!ports.some(({ isActive }) => isActive)) {
    return warn(NAME, found, "bring a port up: cable, switch port, ip link set DEVICE up");
  }
  if (!files.list("/dev/infiniband").some((name) => name.startsWith("uverbs"))) {
    const missing = `${found}; no /dev/infiniband/uverbs*`;
    return warn(NAME, missing, "modprobe ib_uverbs, or pass it in");
  }
  if (!hasLibrary(files, "libibverbs.so.1")) {
    const missing = `${found}; libibverbs.so.1 is not found`;
    return warn(NAME, missing, "install libibverbs1 (rdma-core)");
  }
  return ok(NAME, found);
}

function checkPort(files: HostFiles, port: Port, grounds: RdmaGrounds): Check {
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
  return withPath(ok(name, text, bus?.advice ?? faster(port, grounds.hasHugePages)), path);
}

function addressWords({ linkLayer, isRoceV2, gidIndex, lid, mtu }: Port): string {
  if (linkLayer === "infiniband") return `LID ${lid}, MTU ${mtu}`;
  return `RoCE v${isRoceV2 ? 2 : 1} by GID ${gidIndex}, MTU ${mtu}`;
}

/** The one thing, where anything is left. */
function faster(port: Port, hasHugePages: boolean): string | undefined {
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
