import type { MetricSpec } from "./catalogue.ts";
import type { MetricRegistry } from "./registry.ts";

export const GPU_STATES = ["ok", "lost"] as const;
export const RDMA_PORT_STATES = ["active", "down", "no_address", "fatal"] as const;

/** Metrics of GPUs and RDMA devices. */
export const DEVICE_METRICS = {
  gpus: {
    name: "hearth_gpus",
    type: "gauge",
    help: "GPUs that the agent opened, by state; a lost GPU needs a restart of the agent",
    labels: { state: GPU_STATES },
  },
  gpuRegisteredBytes: {
    name: "hearth_gpu_registered_bytes",
    type: "gauge",
    help: "Bytes of RAM registered with the GPU driver",
    labels: {},
  },
  gpuPageableCopies: {
    name: "hearth_gpu_pageable_copies_total",
    type: "counter",
    help: "Copies that blocked their thread because their part of RAM was not registered",
    labels: {},
  },
  gpuBytes: {
    name: "hearth_gpu_bytes_total",
    type: "counter",
    help: "Bytes copied for engines, from their GPU memory (stored) or to it (loaded)",
    labels: { direction: ["stored", "loaded"] },
  },
  gpuFailures: {
    name: "hearth_gpu_copy_failures_total",
    type: "counter",
    help: "Copies that failed in a GPU or its driver",
    labels: {},
  },
  gpuLeakedSlots: {
    name: "hearth_gpu_leaked_slots",
    type: "gauge",
    help:
      "Slots that stay unused until the agent restarts, because a lost GPU may still write " +
      "to them",
    labels: {},
  },
  rdmaPorts: {
    name: "hearth_rdma_ports",
    type: "gauge",
    help: "Ports of RDMA devices that the agent opened, by state",
    labels: { state: RDMA_PORT_STATES },
  },
} as const satisfies Record<string, MetricSpec>;

type Counts<Names extends readonly string[]> = Readonly<Record<Names[number], number>>;

/** State of GPUs and RDMA devices. Counters since the start. */
export interface DevicesSnapshot {
  readonly gpus: Counts<typeof GPU_STATES>;
  readonly registeredBytes: number;
  readonly pageableCopies: number;
  /** Copies made for engines. */
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
