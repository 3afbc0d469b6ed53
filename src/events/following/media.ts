import type { ResidencyTier } from "../../observability/activity/index.ts";
import type { KvGroup } from "../engine-event.ts";

/** `external`: it is somewhere that no worker has of its own. */
export type MediumTier = ResidencyTier | "external" | "unknown";

const TIERS: Readonly<Record<string, MediumTier>> = {
  GPU: "device",
  DEVICE: "device",
  CPU: "host",
  CPU_PINNED: "host",
  CPU_TIER1: "host",
  CPU_TIER2: "disk",
  DISK: "disk",
  NVME: "disk",
  STORAGE: "disk",
  FS: "disk",
  OBJ: "external",
  EXTERNAL: "external",
  NETWORK: "external",
  REMOTE: "external",
  SHARED: "external",
};

/**
 * Where an engine's medium is, as Dynamo has it; none at all is the device. `FS` and `OBJ` were
 * vLLM's words for a short while.
 */
export function tierOf(medium: string | null): MediumTier {
  if (medium === null) return "device";
  return Object.hasOwn(TIERS, medium) ? TIERS[medium]! : "unknown";
}

const MAIN_KINDS = ["full_attention", "mla_attention", "sink_full_attention"];

/** Whether a group of a hybrid model has every block of a prefix: others have some, or states. */
export function isMainGroup(group: KvGroup | null): boolean {
  const kind = group?.specKind ?? null;
  return kind === null || MAIN_KINDS.includes(kind);
}
