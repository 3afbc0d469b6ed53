import { readFileSync } from "node:fs";
import { availableParallelism } from "node:os";
import { cpuFlags } from "../native/index.ts";
import type { HardwareReport } from "./messages.ts";

/** Names told to peers, and accepted from them. */
export const RDMA_DEVICES_MAX = 16;
export const RDMA_DEVICE = /^[A-Za-z0-9_.-]{1,64}$/;

/**
 * What this host tells its peers of itself, with the RDMA devices over which blocks can go. Never
 * throws: what cannot be read is not there.
 */
export function readHardware(
  devices: readonly string[],
  cpuInfo = "/proc/cpuinfo",
): HardwareReport {
  const flags = cpuFlags(orElse(() => readFileSync(cpuInfo, "utf8"), ""));
  const fixed = { cores: availableParallelism(), hasAes: flags?.includes("aes") ?? false };
  return withDevices({ ...fixed, hasRdmaNic: false, rdmaDevices: [] }, devices);
}

/** The same host when these devices can be used. A device that merely is there is none of them. */
export function withDevices(report: HardwareReport, devices: readonly string[]): HardwareReport {
  const named = devices.filter((name) => RDMA_DEVICE.test(name)).sort();
  const rdmaDevices = named.slice(0, RDMA_DEVICES_MAX);
  return { ...report, hasRdmaNic: rdmaDevices.length > 0, rdmaDevices };
}

function orElse<Value>(read: () => Value, otherwise: Value): Value {
  try {
    return read();
  } catch {
    return otherwise;
  }
}
