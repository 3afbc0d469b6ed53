import { readdirSync, readFileSync } from "node:fs";
import { availableParallelism } from "node:os";
import { cpuFlags } from "../native/index.ts";
import type { HardwareReport } from "./messages.ts";

/** Names told to peers, and accepted from them. */
export const RDMA_DEVICES_MAX = 16;
export const RDMA_DEVICE = /^[A-Za-z0-9_.-]{1,64}$/;

/** Where the kernel shows what a host has. */
export interface HardwarePlaces {
  /** A folder with an entry for each RDMA device. */
  readonly infiniband: string;
  readonly cpuInfo: string;
}

const PLACES: HardwarePlaces = {
  infiniband: "/sys/class/infiniband",
  cpuInfo: "/proc/cpuinfo",
};

/** What this host tells its peers of itself. Never throws: what cannot be read is not there. */
export function readHardware({ infiniband, cpuInfo } = PLACES): HardwareReport {
  const devices = orElse(() => readdirSync(infiniband), []).filter((name) =>
    RDMA_DEVICE.test(name),
  );
  const flags = cpuFlags(orElse(() => readFileSync(cpuInfo, "utf8"), ""));
  return {
    hasRdmaNic: devices.length > 0,
    rdmaDevices: devices.sort().slice(0, RDMA_DEVICES_MAX),
    cores: availableParallelism(),
    hasAes: flags?.includes("aes") ?? false,
  };
}

function orElse<Value>(read: () => Value, otherwise: Value): Value {
  try {
    return read();
  } catch {
    return otherwise;
  }
}
