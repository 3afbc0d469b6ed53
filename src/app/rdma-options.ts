import type { Config } from "../config/index.ts";
import type { Rdma, RdmaLinkSettings } from "../native/index.ts";

/** How queue pairs are set. */
export function linkSettingsOf(config: Config["rdma"]): RdmaLinkSettings {
  const { timeout, retries, trafficClass, serviceLevel, readBytes } = config;
  return { timeout, retries, trafficClass, serviceLevel, pieceBytes: readBytes };
}

/** Whether blocks may go between hosts in the clear, which is how RDMA carries them. */
export function mayUseRdma({ peers, rdma }: Pick<Config, "peers" | "rdma">): boolean {
  const { transports, trustedNetwork } = peers;
  const isWanted = transports === "auto" || transports.includes("rdma");
  return isWanted && trustedNetwork && rdma.enabled !== "off";
}

/** Names of the devices over which blocks can go now. */
export function devicesInUse(rdma: Rdma | null): readonly string[] {
  const ports = rdma?.ports() ?? [];
  return [...new Set(ports.filter(({ state }) => state === "active").map(({ device }) => device))];
}
