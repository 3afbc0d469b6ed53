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

/** Whether a connection that failed just now may have failed for want of a descriptor. */
export function isShortOfDescriptors(): boolean {
  return descriptorUse()?.isShort ?? false;
}

/** Null where the kernel shows none of it (a container without /proc). */
export function descriptorUse(): DescriptorUse | null {
  const open = openDescriptors();
  const limit = LIMIT;
  if (open === null || limit === null) return null;
  const free = Math.max(FREE_MIN, Math.floor(limit * FREE_SHARE));
  return { open, limit, isShort: open > limit - free };
}

/** Linux 6.2 has the number as the size of the folder; before that the entries are counted. */
function openDescriptors(): number | null {
  try {
    const { size } = statSync(FOLDER);
    return size > 0 ? size : readdirSync(FOLDER).length;
  } catch (thrown) {
    // Reading the folder takes a descriptor, too.
    return (thrown as NodeJS.ErrnoException).code === "EMFILE" ? LIMIT : null;
  }
}

/** Read at the start, since it takes a descriptor; nothing here changes it. */
const LIMIT = descriptorLimit();

function descriptorLimit(): number | null {
  try {
    const limits = readFileSync("/proc/self/limits", "utf8");
    const soft = /^Max open files\s+(\d+)/m.exec(limits)?.[1];
    return soft === undefined ? null : Number(soft);
  } catch {
    return null;
  }
}

/** Raises FD_LIMIT while the process is short of descriptors. */
export function watchDescriptors(
  clock: Clock,
  health: Pick<Health, "raise">,
  use: typeof descriptorUse = descriptorUse,
): Disposable {
  return clock.every(LOOK_MS, () => {
    const now = use();
    if (now?.isShort === true) raiseDescriptorLimit(health, now);
  });
}

/** Raises FD_LIMIT for a while. */
export function raiseDescriptorLimit(
  health: Pick<Health, "raise">,
  now: DescriptorUse | null = descriptorUse(),
): void {
  const details =
    now === null ? "no descriptor is free" : `${now.open} of ${now.limit} descriptors are open`;
  health.raise("FD_LIMIT", details, { forMs: RAISED_MS });
}
