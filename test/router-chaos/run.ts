import { seededRandom } from "../../src/core/index.ts";
import { FAULTS } from "./faults.ts";
import { BAD_WIRE, Fleet, GOOD_WIRE } from "./fleet.ts";
import type { RouterReport } from "./messages.ts";
import { differences } from "./verify.ts";

export interface ChaosOptions {
  readonly seed: number;
  readonly rounds: number;
  /** Until then no further round begins; by the clock of `performance`. */
  readonly untilMs: number;
  readonly workers: number;
  readonly routers: number;
  /** How long agreement is waited for before it counts as never. */
  readonly patienceMs: number;
  readonly onRound?: (round: Round) => void;
}

export interface Round {
  readonly number: number;
  readonly fault: string;
  /** From the end of the fault until all agreed; null: never. */
  readonly agreedMs: number | null;
  readonly differences: readonly string[];
  /** Of the largest router. */
  readonly rssBytes: number;
  readonly indexBlocks: number;
  readonly requests: number;
  readonly pendingHashes: number;
  readonly counts: Readonly<Record<string, number>>;
}

/** How long all goes on before something happens, and after it. */
const CALM_MS = 300;
const POLL_MS = 20;

export async function runChaos(options: ChaosOptions): Promise<Round[]> {
  const random = seededRandom(options.seed);
  await using fleet = await Fleet.start(random, options.workers, options.routers);
  const rounds: Round[] = [];
  for (let number = 0; number < options.rounds; number++) {
    if (performance.now() > options.untilMs) break;
    const fault = FAULTS[number % FAULTS.length]!;
    fleet.order({ order: "churn", on: true });
    fleet.order(BAD_WIRE);
    await Bun.sleep(CALM_MS);
    await fault.run(fleet, random);
    await Bun.sleep(CALM_MS);
    fleet.order({ order: "churn", on: false });
    fleet.order(GOOD_WIRE);
    const round = await agreement(fleet, number, fault.name, options.patienceMs);
    rounds.push(round);
    options.onRound?.(round);
  }
  return rounds;
}

async function agreement(
  fleet: Fleet,
  number: number,
  fault: string,
  patienceMs: number,
): Promise<Round> {
  const began = performance.now();
  let left: string[] = [];
  let agreedMs: number | null = null;
  while (performance.now() - began < patienceMs) {
    left = await differences(fleet);
    if (left.length === 0) {
      agreedMs = Math.round(performance.now() - began);
      break;
    }
    await Bun.sleep(POLL_MS);
  }
  const reports = await Promise.all(fleet.routers.map((child) => child.report(false)));
  const said = reports.filter((report) => report !== null);
  const most = (of: (report: RouterReport) => number) => Math.max(0, ...said.map(of));
  return {
    ...{ number, fault, agreedMs, differences: left },
    rssBytes: most(({ rssBytes }) => rssBytes),
    indexBlocks: most(({ indexBlocks }) => indexBlocks),
    requests: most(({ requests }) => requests),
    pendingHashes: most(({ pendingHashes }) => pendingHashes),
    counts: sumsOf(said),
  };
}

const COUNTED = ["gaps", "ranges", "snapshots", "mismatches", "duplicates", "early", "lists"];

function sumsOf(reports: readonly RouterReport[]): Record<string, number> {
  const sum = (name: string) =>
    reports.reduce((total, { counts }) => total + (counts[name] ?? 0), 0);
  return Object.fromEntries(COUNTED.map((name) => [name, sum(name)]));
}
