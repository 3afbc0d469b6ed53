import { GPU_STATES, RDMA_PORT_STATES } from "./catalogue-devices.ts";
import type { MetricRegistry } from "./registry.ts";

type Counts<Names extends readonly string[]> = Readonly<Record<Names[number], number>>;

/** GPUs and RDMA devices. Counters since the start. */
export interface DevicesSnapshot {
  readonly gpus: Counts<typeof GPU_STATES>;
  readonly registeredBytes: number;
  readonly pageableCopies: number;
  /** For engines. */
  readonly copies: {
    readonly gpuStoredBytes: number;
    readonly gpuLoadedBytes: number;
    readonly gpuFailures: number;
    readonly gpuLeakedSlots: number;
  };
  readonly ports: Counts<typeof RDMA_PORT_STATES>;
}

export function writeDevices(registry: MetricRegistry, devices: DevicesSnapshot): void {
  for (const state of GPU_STATES) registry.set("gpus", devices.gpus[state], { state });
  registry.set("gpuRegisteredBytes", devices.registeredBytes);
  registry.set("gpuPageableCopies", devices.pageableCopies);
  const { gpuStoredBytes, gpuLoadedBytes, gpuFailures, gpuLeakedSlots } = devices.copies;
  registry.set("gpuBytes", gpuStoredBytes, { direction: "stored" });
  registry.set("gpuBytes", gpuLoadedBytes, { direction: "loaded" });
  registry.set("gpuFailures", gpuFailures);
  registry.set("gpuLeakedSlots", gpuLeakedSlots);
  for (const state of RDMA_PORT_STATES) {
    registry.set("rdmaPorts", devices.ports[state], { state });
  }
}
