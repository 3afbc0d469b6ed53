import type { WorkerId } from "../../../src/core/index.ts";
import type { Announcement } from "../../../src/peers/directory/index.ts";

/** An announcement of host `worker`, with overrides. */
export function announcementOf(worker: string, over: Partial<Announcement> = {}): Announcement {
  return {
    kind: "here",
    cluster: "hearth",
    worker: worker as WorkerId,
    incarnation: 1n,
    everyMs: 1_000,
    endpoints: { stream: { host: "10.0.0.2", port: 7172 }, quic: { host: "10.0.0.2", port: 7173 } },
    hardware: { hasRdmaNic: true, rdmaDevices: ["mlx5_0"], cores: 64, hasAes: true },
    namespaces: ["ab".repeat(32)],
    ...over,
  };
}
