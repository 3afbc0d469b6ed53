import {
  type BlockResult,
  type CommandOrigin,
  type CommandOutcome,
  countOutcomes,
} from "../../core/index.ts";
import type { Cause, DepartureReason } from "../departures.ts";
import type { LifecycleReport } from "./lifecycle.ts";

export const DONE: BlockResult = Object.freeze({ outcome: "done" });
export const ALREADY: BlockResult = Object.freeze({ outcome: "already" });
export const MISSING: BlockResult = Object.freeze({ outcome: "missing" });

/** Its bytes are not on SSD yet. */
export const COPY_OUTSTANDING: BlockResult = Object.freeze({
  outcome: "deferred",
  reason: "ssd: the copy on SSD is outstanding; it is in RAM, and tried again",
});
export const NOT_DURABLE: BlockResult = Object.freeze({
  outcome: "deferred",
  reason: "durable: done, and the disk did not confirm that it stays so after a loss of power",
});
export const STUCK_ON_SSD: BlockResult = Object.freeze({
  outcome: "deferred",
  reason: "ssd: not served any more, but its file could not be removed yet; it is tried again",
});

/** Of the blocks behind one name, the outcome that is told. */
const SEVERITY: Readonly<Record<CommandOutcome, number>> = {
  already: 0,
  done: 1,
  missing: 2,
  deferred: 3,
  held: 4,
  rejected: 5,
};

export function worseOf(a: BlockResult, b: BlockResult): BlockResult {
  return SEVERITY[b.outcome] > SEVERITY[a.outcome] ? b : a;
}

/** Why blocks go that somebody asked to go. */
export function causeOf(reason: DepartureReason, { issuer, command }: CommandOrigin): Cause {
  return { reason, by: command === null ? issuer : `${issuer} ${command}` };
}

/** A report in which only what differs from nothing has to be named. */
export function reportOf(
  results: readonly BlockResult[],
  more: Partial<Omit<LifecycleReport, "results">> = {},
): LifecycleReport {
  return {
    results,
    counts: countOutcomes(results),
    held: [],
    bytes: 0,
    figures: null,
    ttlMs: null,
    durable: false,
    ...more,
  };
}
