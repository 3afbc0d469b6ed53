import { assert } from "../core/index.ts";
import type { MetricSpec } from "./catalogue.ts";
import type { FrameCount } from "./snapshots.ts";

/**
 * Operations of the engine plane by their number on the wire; anything else counts as the first.
 */
export const FRAME_OPERATIONS = [
  "unknown",
  "hello",
  "ping",
  "identify",
  "match",
  "reserve",
  "commit",
  "abort",
  "acquire",
  "release",
  "gpuStored",
  "gpuEvicted",
  "sessionCommit",
  "sessionRelease",
  "sessionStatus",
  "alias",
  "sessionList",
  "gpuDevices",
  "gpuRegister",
  "gpuUnregister",
  "gpuStore",
  "gpuLoad",
  "gpuWarm",
  "join",
  "lookup",
  "unhold",
  "announce",
  "command",
  "namespace",
  "report",
] as const;

/** Statuses of its answers by their number on the wire. */
export const FRAME_STATUSES = [
  "ok",
  "malformed",
  "unknownOp",
  "version",
  "frameTooLarge",
  "notGreeted",
  "limit",
  "internal",
  "manifestRefused",
  "overstayed",
  "draining",
] as const;

const RESERVATION_OUTCOMES = ["acquired", "unused", "refused"] as const;

/** Metrics of the engine plane. */
export const ENGINE_METRICS = {
  engineConnections: {
    name: "hearth_engine_connections",
    type: "gauge",
    help: "Engine processes connected now",
    labels: {},
  },
  engineSlotsHeld: {
    name: "hearth_engine_slots_held",
    type: "gauge",
    help: "Slots that connected engines hold, reserved and acquired together",
    labels: {},
  },
  engineConnected: {
    name: "hearth_engine_connects_total",
    type: "counter",
    help: "Connections taken on the engine socket",
    labels: {},
  },
  engineRefused: {
    name: "hearth_engine_refused_total",
    type: "counter",
    help: "Connections not let in: not the right user, or one too many",
    labels: {},
  },
  engineCutOff: {
    name: "hearth_engine_cut_off_total",
    type: "counter",
    help: "Engines cut off: lease overstayed, answers unread, no hello",
    labels: {},
  },
  engineQuarantines: {
    name: "hearth_engine_quarantines_total",
    type: "counter",
    help: "Connections that ended while their process held slots",
    labels: {},
  },
  engineFaults: {
    name: "hearth_engine_faults_total",
    type: "counter",
    help: "Failures of the agent itself while it handled a frame",
    labels: {},
  },
  frames: {
    name: "hearth_engine_frames_total",
    type: "counter",
    help: "Frames from engines, by the status they were answered with",
    labels: { operation: FRAME_OPERATIONS, status: FRAME_STATUSES },
  },
  engineReservedBytes: {
    name: "hearth_engine_reserved_bytes",
    type: "gauge",
    help: "RAM kept for engines that looked blocks up and have not acquired them yet",
    labels: {},
  },
  engineReservations: {
    name: "hearth_engine_reservations_total",
    type: "counter",
    help: "Reserved blocks by what became of them: acquired, ended unused, or over the budget",
    labels: { outcome: RESERVATION_OUTCOMES },
  },
  engineLookupsWaiting: {
    name: "hearth_engine_lookups_waiting",
    type: "gauge",
    help: "Lookups that wait for blocks from SSD, peers or writers",
    labels: {},
  },
  engineAnnounced: {
    name: "hearth_engine_announced_blocks",
    type: "gauge",
    help: "Blocks that engines of this host have announced and not stored yet",
    labels: {},
  },
} as const satisfies Record<string, MetricSpec>;

/**
 * Counts frames by operation and status: one addition each, whatever the numbers on the wire are.
 */
export interface FrameCounts {
  /** Numbers as on the wire; an operation that does not exist counts as `unknown`. */
  add(operation: number, status: number): void;
  total(): number;
  /** Those that occurred. */
  list(): FrameCount[];
}

export function createFrameCounts(): FrameCounts {
  const width = FRAME_STATUSES.length;
  const counts = new Float64Array(FRAME_OPERATIONS.length * width);
  return {
    add(operation, status) {
      assert(status < width, "a status of the protocol");
      const row = operation < FRAME_OPERATIONS.length ? operation : 0;
      counts[row * width + status]!++;
    },
    total: () => counts.reduce((sum, count) => sum + count, 0),
    list() {
      const found: FrameCount[] = [];
      for (const [at, count] of counts.entries()) {
        if (count === 0) continue;
        const operation = FRAME_OPERATIONS[Math.floor(at / width)]!;
        found.push({ operation, status: FRAME_STATUSES[at % width]!, count });
      }
      return found;
    },
  };
}
