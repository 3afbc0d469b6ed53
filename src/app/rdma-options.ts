import type { Config } from "../config/index.ts";
import type { Clock } from "../core/index.ts";
import type { Rdma, RdmaLinkSettings } from "../native/index.ts";

/** How queue pairs are set. */
export function linkSettingsOf(config: Config["rdma"]): RdmaLinkSettings {
  const { timeout, retries, trafficClass, serviceLevel, readBytes } = config;
  return { timeout, retries, trafficClass, serviceLevel, pieceBytes: readBytes };
}

/** Asked for with each request to a peer, and looked at so often. */
const LOOK_MS = 250;

/** Names of the devices over which blocks can go now; null: of none. */
export function devicesInUse(
  rdma: Rdma | null,
  clock: Pick<Clock, "monotonicMs">,
): () => readonly string[] {
  let names: readonly string[] = [];
  let lookedMs = Number.NEGATIVE_INFINITY;
  return () => {
    const nowMs = clock.monotonicMs();
    if (rdma === null || nowMs - lookedMs < LOOK_MS) return names;
    lookedMs = nowMs;
    const active = rdma.ports().filter(({ state }) => state === "active");
    names = [...new Set(active.map(({ device }) => device))];
    return names;
  };
}
