import type { DirectFinding } from "../../devices/index.ts";
import type { HostFiles } from "./host-files.ts";
import type { Looked } from "./look.ts";
import { type Check, ok, warn, withPath } from "./report.ts";

const NAME = "GPUDirect";
const PATH = "RAM, where each byte is verified, and from there to the GPU";

/** Whether NICs reach the memory of GPUs; no check where there are not both. */
export function checkDirect(
  files: HostFiles,
  looked: Looked<readonly DirectFinding[]> | null,
): Check[] {
  if (looked === null) return [];
  if (!looked.ok) {
    const advice = "see dmesg: an IOMMU, or a NIC whose driver knows no dma-buf";
    return [withPath(warn(NAME, `the trial ${looked.why}`, advice), PATH)];
  }
  const works = looked.found.filter(({ kind }) => kind === "usable");
  const other = looked.found.find(({ kind }) => kind !== "usable");
  const found = `dma-buf works with ${works.length} of ${looked.found.length} GPUs`;
  if (other === undefined) return [withPath(ok(NAME, found), PATH)];
  const text = `${found}; ${other.gpu} ${other.text}${peermemWords(files)}`;
  return [withPath(ok(NAME, text, other.fix ?? undefined), PATH)];
}

/** The older way takes addresses of the process that calls; a GPU's memory is an engine's. */
function peermemWords(files: HostFiles): string {
  if (files.stat("/sys/module/nvidia_peermem") === null) return "";
  return "; nvidia_peermem is loaded, and of use to the engine's own process alone";
}
