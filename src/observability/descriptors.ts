import { readdirSync, readFileSync, statSync } from "node:fs";
import type { Clock } from "../core/index.ts";
import type { Health } from "./health.ts";

const FOLDER = "/proc/self/fd";
const LOOK_MS = 1_000;
/** How long the condition stays after descriptors last ran short. */
const RAISED_MS = 30_000;
/** A process is short of descriptors when fewer than this part of its limit is free. */
const FREE_SHARE = 1 / 16;
const FREE_MIN = 16;

/** File descriptors of this process. */
export interface DescriptorUse {
  readonly open: number;
  /** RLIMIT_NOFILE, the soft one. */
  readonly limit: number;
  /** Whether accepting connections or opening files is about to fail. */
  readonly isShort: boolean;
}

/** Null where the kernel shows none of it (a container without /proc). */
export function descriptorUse(): DescriptorUse | null {
  const open = openDescriptors();
  const limit = descriptorLimit();
  if (open === null || limit === null) return null;
  const free = Math.max(FREE_MIN, Math.floor(limit * FREE_SHARE));
  return { open, limit, isShort: open > limit - free };
}

/** Linux 6.2 has the number as the size of the folder; before that the entries are counted. */
function openDescriptors(): number | null {
  try {
    const { size } = statSync(FOLDER);
    return size > 0 ? size : readdirSync(FOLDER).length;
  } catch {
    return null;
  }
}

let limitRead: number | null | undefined;

/** The limit as it was when first asked for: nothing here changes it. */
function descriptorLimit(): number | null {
  if (limitRead !== undefined) return limitRead;
  try {
    const limits = readFileSync("/proc/self/limits", "utf8");
    const soft = /^Max open files\s+(\d+)/m.exec(limits)?.[1];
    limitRead = soft === undefined ? null : Number(soft);
  } catch {
    limitRead = null;
  }
  return limitRead;
}

/** Raises FD_LIMIT while the process is short of descriptors. */
export function watchDescriptors(
  clock: Clock,
  health: Pick<Health, "raise">,
  use: typeof descriptorUse = descriptorUse,
): Disposable {
  return clock.every(LOOK_MS, () => {
    const now = use();
    if (now === null || !now.isShort) return;
    const details = `${now.open} of ${now.limit} descriptors are open`;
    health.raise("FD_LIMIT", details, { forMs: RAISED_MS });
  });
}
