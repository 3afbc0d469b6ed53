import type { Config } from "../config/index.ts";
import type { Rdma, RdmaLinkSettings } from "../native/index.ts";

/** How queue pairs are set. */
export function linkSettingsOf(config: Config["rdma"]): RdmaLinkSettings {
  const { timeout, retries, trafficClass, serviceLevel, readBytes } = config;
  return { timeout, retries, trafficClass, serviceLevel, pieceBytes: readBytes };
}

/** Names of the devices over which blocks can go now. */
export function devicesInUse(rdma: Rdma | null): readonly string[] {
  const ports = rdma?.ports() ?? [];
  return [...new Set(ports.filter(({ state }) => state === "active").map(({ device }) => device))];
}
