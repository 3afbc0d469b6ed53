import { nodesOf } from "../../devices/index.ts";
import type { HostFiles } from "./host-files.ts";

/** What the kernel says of a device on the bus. */
export interface PciFacts {
  /** Lanes in use and lanes there could be; null: unknown. */
  readonly lanes: { readonly now: number; readonly most: number } | null;
  /** Memory node it is near; null: unknown, or the host has one. */
  readonly node: number | null;
  /** Its addresses are translated by the IOMMU. */
  readonly isTranslated: boolean;
}

/** `folder` is the device's in /sys. */
export function pciFacts(files: HostFiles, folder: string): PciFacts {
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

/** Whether the device could have more lanes. 0xff stands for a width that is not known. */
function isNarrow({ lanes }: PciFacts): boolean {
  return lanes !== null && lanes.now < lanes.most && lanes.most < 0xff;
}

/** `PCIe x8 of x16, NUMA node 1`; empty where nothing is known. */
export function pciWords(facts: PciFacts): string {
  const { lanes, node } = facts;
  const words: string[] = [];
  if (lanes !== null) {
    words.push(isNarrow(facts) ? `PCIe x${lanes.now} of x${lanes.most}` : `PCIe x${lanes.now}`);
  }
  if (node !== null) words.push(`NUMA node ${node}`);
  return words.join(", ");
}

/** Memory nodes that this process may take memory from; null: unknown. */
export function nodesAllowed(files: HostFiles): ReadonlySet<number> | null {
  const text = files.text("/proc/self/status") ?? "";
  const list = /^Mems_allowed_list:\s*([0-9,-]+)$/m.exec(text)?.[1];
  return list === undefined ? null : nodesOf(list);
}

/** What is in the way of a device on the bus, the worst first; null: nothing. */
export function pciAdvice(
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
