import { assert } from "../core/index.ts";
import type { MetricSpec } from "./catalogue.ts";
import type { FrameCount } from "./snapshots.ts";

/**
 * Operations of the engine plane by their number on the wire. Unknown numbers count as the first
 * entry.
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

/** Statuses of answers by their number on the wire. */
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
    help: "Connected engine processes",
    labels: {},
  },
  engineSlotsHeld: {
    name: "hearth_engine_slots_held",
    type: "gauge",
    help: "Slots referenced by connected engines, reserved and acquired",
    labels: {},
  },
  engineConnected: {
    name: "hearth_engine_connects_total",
    type: "counter",
    help: "Connections accepted on the engine socket",
    labels: {},
  },
  engineRefused: {
    name: "hearth_engine_refused_total",
    type: "counter",
    help: "Connections rejected: wrong user, or limit reached",
    labels: {},
  },
  engineCutOff: {
    name: "hearth_engine_cut_off_total",
    type: "counter",
    help: "Engines disconnected: lease expired, answers unread, no HELLO",
    labels: {},
  },
  engineQuarantines: {
    name: "hearth_engine_quarantines_total",
    type: "counter",
    help: "Connections that ended while their process referenced slots",
    labels: {},
  },
  engineFaults: {
    name: "hearth_engine_faults_total",
    type: "counter",
    help: "Internal errors while handling a frame",
    labels: {},
  },
  frames: {
    name: "hearth_engine_frames_total",
    type: "counter",
    help: "Frames from engines, by operation and status of the answer",
    labels: { operation: FRAME_OPERATIONS, status: FRAME_STATUSES },
  },
  engineReservedBytes: {
    name: "hearth_engine_reserved_bytes",
    type: "gauge",
    help: "RAM reserved for engines that looked blocks up and have not acquired them yet",
    labels: {},
  },
  engineReservations: {
    name: "hearth_engine_reservations_total",
    type: "counter",
    help: "Reserved blocks, by outcome: acquired, expired unused, or refused by the budget",
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
    help: "Blocks announced by engines of this host and not stored yet",
    labels: {},
  },
} as const satisfies Record<string, MetricSpec>;

/** Counts frames by operation and status, with one addition per frame for any numbers. */
export interface FrameCounts {
  /** Takes numbers as on the wire. An unknown operation counts as `unknown`. */
  add(operation: number, status: number): void;
  total(): number;
  /** Returns the combinations that occurred. */
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
