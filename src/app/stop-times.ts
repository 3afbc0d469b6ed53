import { CONTROL_STOP_MS } from "../control/index.ts";

/** SIGTERM to the last connection cut. */
export const DRAIN_MS = 10_000;
/** How long the agent then writes to SSD what RAM alone holds. */
export const SETTLE_MS = 20_000;
/** How long purges that were asked for before the end may take. */
export const PURGES_MS = 5_000;
/** What pulls and loans are given to let go of their memory; seconds at most as a rule. */
export const PEERS_STOP_MS = 10_000;
/** What copies between GPUs and RAM are given before it is said that they take long. */
export const DEVICES_STOP_MS = 5_000;
/** How long the index may take to write what it has. */
export const INDEX_CLOSE_MS = 5_000;
/** What scrub and disk are given to let go of their memory. */
const TIER_CLOSE_MS = 10_000;

/** SIGTERM to the end of the process, at the most: the service manager must allow more. */
export const STOP_MS_MAX =
  DRAIN_MS +
  PEERS_STOP_MS +
  CONTROL_STOP_MS +
  SETTLE_MS +
  PURGES_MS +
  DEVICES_STOP_MS +
  TIER_CLOSE_MS +
  INDEX_CLOSE_MS;
