import type { Receipt } from "../control/index.ts";
import { formatBytes } from "../core/index.ts";

/** What a flush did, in words: what went, what stayed, and who holds it. */
export function flushText(receipt: Receipt): string {
  const { status, reason, counts, bytes, held = [] } = receipt;
  if (status === "rejected") return `Cache not flushed: ${reason ?? "refused"}\n`;
  const size = bytes === undefined ? "" : ` (${formatBytes(bytes)})`;
  const lines = ["Cache flushed.", `Removed ${counts.done} blocks${size}.`];
  const kept = counts.held;
  lines.push(kept === 0 ? "Kept nothing." : `Kept ${kept} blocks${heldText(held, kept)}.`);
  if (counts.deferred > 0) lines.push(`${counts.deferred} blocks are still on their way out.`);
  return `${lines.join("\n")}\n`;
}

/** ": 168 by pins, 3 by sessions"; a block that several hold counts for each. */
function heldText(held: NonNullable<Receipt["held"]>, kept: number): string {
  const byKind = new Map<string, number>();
  for (const { by = [] } of held) {
    for (const kind of new Set(by.map((one) => one.kind))) {
      byKind.set(kind, (byKind.get(kind) ?? 0) + 1);
    }
  }
  if (byKind.size === 0) return "";
  const parts = [...byKind].map(([kind, blocks]) => `${blocks} by ${kind}`);
  const which = held.length < kept ? `; of the first ${held.length}: ` : ": ";
  return `${which}${parts.join(", ")}`;
}
