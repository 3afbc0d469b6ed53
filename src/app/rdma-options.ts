import type { Config } from "../config/index.ts";
import type { Rdma, RdmaLinkSettings, RdmaOptions, Region } from "../native/index.ts";

/** Queue pairs of this host: 512 links of others and as many of ours, over one rail. */
const LINKS_MAX = 1_024;
/** Blocks that are read at a time, and that are lent. */
const READS_MAX = 8_192;
const SPANS_MAX = 8_192;

/** What opening the devices is told. */
export function verbsOf(
  { library, devices, gidIndex, rails, windowBytes }: Config["rdma"],
  region: Region,
): Omit<RdmaOptions, "onPort"> {
  return {
    ...{ region, library, gidIndex, windowBytes },
    devices: devices === "any" ? null : devices,
    windowSpans: SPANS_MAX,
    linksMax: LINKS_MAX * rails,
    readsMax: READS_MAX,
  };
}

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
