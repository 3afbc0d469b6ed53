import { Skip } from "./cache.ts";
import { round } from "./compare.ts";
import type { Installed } from "./install.ts";
import type { Model } from "./model.ts";
import { say } from "./say.ts";
import type { ServerOptions } from "./server.ts";
import { WorkFolder } from "./work-folder.ts";

/** A claim that a lane puts to the test. */
export interface Check {
  readonly claim: string;
  readonly ok: boolean;
  readonly value: unknown;
  readonly wanted: string;
}

export interface LaneReport {
  readonly lane: string;
  readonly ok: boolean;
  readonly seconds: number;
  readonly skipped?: string;
  readonly checks: readonly Check[];
  readonly figures: Readonly<Record<string, unknown>>;
}

/** Arguments of every lane. */
export interface LaneContext {
  readonly engine: Installed;
  readonly model: Model;
  readonly seed: number;
  /** A small run for development; its figures are no evidence. */
  readonly isQuick: boolean;
  readonly minutes: number;
  /** A new folder that goes with the lane. */
  readonly folder: string;
  readonly sheet: Sheet;
}

export type Lane = (context: LaneContext) => Promise<void>;

/** Collects the claims and figures of one lane. */
export class Sheet {
  readonly checks: Check[] = [];
  readonly figures: Record<string, unknown> = {};

  check(claim: string, ok: boolean, value: unknown, wanted: string): void {
    this.checks.push({ claim, ok, value, wanted });
  }

  atLeast(claim: string, value: number, bound: number): void {
    this.check(claim, value >= bound, round(value), `>= ${bound}`);
  }

  atMost(claim: string, value: number, bound: number): void {
    this.check(claim, value <= bound, round(value), `<= ${bound}`);
  }

  figure(name: string, value: unknown): void {
    this.figures[name] = typeof value === "number" ? round(value) : value;
  }
}

/** A lane that this host cannot run; `REQUIRE_ENGINES=1` makes it a failure. */
function skipped(lane: string, began: number, reason: string): LaneReport {
  say(`skipped: ${lane}: ${reason}`);
  const seconds = round((performance.now() - began) / 1000);
  const ok = process.env.REQUIRE_ENGINES !== "1";
  return { lane, ok, seconds, skipped: reason, checks: [], figures: {} };
}

/** Runs a lane in a folder of its own. A thrown error is a failed claim of the report. */
export async function runLane(
  name: string,
  lane: Lane,
  common: Omit<LaneContext, "folder" | "sheet">,
): Promise<LaneReport> {
  using folder = new WorkFolder();
  const sheet = new Sheet();
  const began = performance.now();
  try {
    await lane({ ...common, folder: folder.path, sheet });
  } catch (thrown) {
    if (thrown instanceof Skip) return skipped(name, began, thrown.message);
    const reason = thrown instanceof Error ? (thrown.stack ?? thrown.message) : String(thrown);
    sheet.check("the lane ran to its end", false, reason, "no error");
  }
  const { checks, figures } = sheet;
  const seconds = round((performance.now() - began) / 1000);
  const ok = checks.length > 0 && checks.every((check) => check.ok);
  return { lane: name, ok, seconds, checks, figures };
}

/** Options of a server that every lane sets alike. */
export function serverOf({ engine, model, folder }: LaneContext, name: string): ServerOptions {
  return { engine, model, folder, name };
}
