import type { StatusReport } from "../api/index.ts";
import { cudaVersion, type HostGpusReport, type HostRdmaReport } from "../devices/index.ts";
import type { DevicesSnapshot } from "../observability/index.ts";
import type { DeviceRoom } from "./device-room.ts";

/** What status and metrics show of GPUs and RDMA devices. */
export function gpuStatus({ gpuReport: report }: DeviceRoom): StatusReport["gpu"] {
  if (report === null) return null;
  const { finding, driverVersion, hasBatches, registeredBytes, gpus } = report;
  return {
    found: finding.kind,
    text: finding.text,
    fix: finding.fix,
    driver: driverVersion === 0 ? null : cudaVersion(driverVersion),
    batches: hasBatches,
    registered_bytes: registeredBytes,
    devices: gpus.map((gpu) => ({
      name: gpu.name,
      pci: gpu.pci,
      uuid: gpu.uuid,
      memory_bytes: gpu.memoryBytes,
      numa_node: gpu.numaNode,
      dma_buf: gpu.hasDmaBuf,
      lost: gpu.lost,
      pageable_copies: gpu.pageableCopies,
    })),
  };
}

export function rdmaStatus({
  rdmaReport: report,
  direct,
}: Pick<DeviceRoom, "rdmaReport" | "direct">): StatusReport["rdma"] {
  if (report === null) return null;
  const { finding, ports } = report;
  return {
    found: finding.kind,
    text: finding.text,
    fix: finding.fix,
    ports: ports.map((port) => ({
      name: port.name,
      state: port.state,
      link_layer: port.linkLayer,
      gbit_per_second: port.speed / 1_000,
      numa_node: port.numaNode,
      relaxed_ordering: port.hasRelaxedOrdering,
      dma_buf: port.hasDmaBuf,
    })),
    direct: direct.map(({ kind, gpu, port, text, fix }) => {
      return { gpu, port, works: kind === "usable", text, fix };
    }),
  };
}

export function devicesSnapshot(
  { gpuReport, rdmaReport }: DeviceRoom,
  copies: DevicesSnapshot["copies"],
): DevicesSnapshot {
  return { ...gpuCounts(gpuReport), copies, ports: portCounts(rdmaReport) };
}

function gpuCounts(report: HostGpusReport | null): Omit<DevicesSnapshot, "ports" | "copies"> {
  const gpus = report?.gpus ?? [];
  const lost = gpus.filter((gpu) => gpu.lost !== null).length;
  return {
    gpus: { ok: gpus.length - lost, lost },
    registeredBytes: report?.registeredBytes ?? 0,
    pageableCopies: gpus.reduce((sum, { pageableCopies }) => sum + pageableCopies, 0),
  };
}

function portCounts(report: HostRdmaReport | null): DevicesSnapshot["ports"] {
  const counts = { active: 0, down: 0, no_address: 0, fatal: 0 };
  for (const { state } of report?.ports ?? []) counts[state]++;
  return counts;
}
