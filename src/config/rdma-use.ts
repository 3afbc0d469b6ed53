import type { Config } from "./schema.ts";

/** Whether blocks may go between hosts in the clear, which is how RDMA carries them. */
export function mayUseRdma({ peers, rdma }: Pick<Config, "peers" | "rdma">): boolean {
  const { transports, trustedNetwork } = peers;
  const isWanted = transports === "auto" || transports.includes("rdma");
  return isWanted && trustedNetwork && rdma.enabled !== "off";
}
