import type { IdleLinks } from "./idle-links.ts";
import type { PullLimits } from "./puller.ts";
import type { PullerParts } from "./puller-parts.ts";
import type { Tallies } from "./tallies.ts";

/** What the parts of a puller share. */
export interface Room {
  readonly parts: PullerParts;
  readonly tallies: Tallies;
  readonly idle: IdleLinks;
  /** The latest. */
  limits: PullLimits;
}
