import type { LinkFault, LinkFaultKind } from "../../transport.ts";

/** What the other side may know: that a caller of ours gave up, or that we closed, only we do. */
const THEIRS: ReadonlySet<LinkFaultKind> = new Set(["refused", "protocol", "stalled", "broken"]);

/** Why the other side ended something, in its words. */
export function theirFault(kind: LinkFaultKind, why: string): LinkFault {
  return { kind: THEIRS.has(kind) ? kind : "broken", why: `it said: ${why}` };
}
