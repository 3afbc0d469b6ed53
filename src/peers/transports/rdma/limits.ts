import { LINE_LIMITS, type LineLimits } from "../line/index.ts";

/** What bounds an RDMA transport. */
export interface RdmaLimits extends LineLimits {
  /** A block that nobody says is taken is taken back after so long, whatever its reader thinks. */
  readonly lentMs: number;
  /**
   * What is given up may be read for so long; then the asker ends the link, and the holder takes
   * the block back.
   */
  readonly graceMs: number;
}

export const RDMA_LIMITS: RdmaLimits = {
  ...LINE_LIMITS,
  // A queue pair each, of which devices have tens of thousands; the native library keeps a table.
  linksMax: 512,
  // Each waits for a round trip before its device reads, and for another before it comes back.
  lentMax: 16,
  lentMs: 30_000,
  graceMs: 1_000,
};
