import { messageOf } from "../../src/core/index.ts";
import { COOLDOWN_MS, type Fleet } from "./fleet.ts";
import type { Network } from "./network.ts";
import { newTally, type Reads, type ReadTally } from "./reads.ts";

/** Scenarios, and their required results. */
export interface ScenarioResult extends Omit<ReadTally, "missed"> {
  readonly name: string;
  /** The longest until a pair of hosts that was apart had blocks of each other again. */
  readonly recoveryMs: number | null;
  readonly problems: readonly string[];
}

export interface Stage {
  readonly network: Network;
  readonly fleet: Fleet;
  readonly reads: Reads;
}

/** Recovery takes no longer than two cooldowns of the breaker. */
export const RECOVERY_MS = 2 * COOLDOWN_MS;
/** How long recovery is looked for before it is called missing. */
const LOOK_MS = 15_000;
/** Blocks that a recovering pair may use up with questions. */
const SPARE = 130;
const ROUNDS = 3;
/** Losing one packet in a hundred, a few pulls may be given up. */
const HITS_UNDER_LOSS = 0.9;

type Scenario = (stage: Stage, tally: ReadTally, problems: string[]) => Promise<number | null>;

type Pair = readonly [asker: number, holder: number];

function pairsOf(hosts: number, wanted: (asker: number, holder: number) => boolean): Pair[] {
  const all = Array.from(
    { length: hosts * hosts },
    (_, i): Pair => [Math.floor(i / hosts), i % hosts],
  );
  return all.filter(([asker, holder]) => asker !== holder && wanted(asker, holder));
}

/** The longest recovery of these pairs, which look at the same time. */
async function recoverAll(
  { reads }: Stage,
  pairs: readonly Pair[],
  tally: ReadTally,
  problems: string[],
): Promise<number> {
  // Questions that only look whether it is back are no reads to be counted.
  const looks = newTally();
  const found = await Promise.all(
    pairs.map(([asker, holder]) => reads.recovery(asker, holder, looks, LOOK_MS)),
  );
  tally.wrong += looks.wrong;
  found.forEach((ms, i) => {
    if (ms !== null && ms <= RECOVERY_MS) return;
    const [asker, holder] = pairs[i]!;
    problems.push(`${asker} had nothing of ${holder} for ${ms ?? `over ${LOOK_MS}`} ms`);
  });
  return Math.max(0, ...found.map((ms) => ms ?? LOOK_MS));
}

async function prepareAll({ fleet, reads }: Stage, count: number): Promise<void> {
  for (let host = 0; host < fleet.size; host++) await reads.prepare(host, count);
}

function mustHit(tally: ReadTally, share: number, what: string, problems: string[]): void {
  if (tally.hits >= share * tally.reads) return;
  problems.push(`${what}: ${tally.hits} of ${tally.reads} blocks came: ${tally.missed}`);
}

/** Reads that must all hit, beside what else happens. */
async function mustGoOn(
  stage: Stage,
  tally: ReadTally,
  problems: string[],
  wanted: (asker: number, holder: number) => boolean,
): Promise<void> {
  const own = newTally();
  await stage.reads.across(ROUNDS, own, wanted);
  mustHit(own, 1, "hosts that reach each other", problems);
  tally.reads += own.reads;
  tally.hits += own.hits;
  tally.misses += own.misses;
  tally.wrong += own.wrong;
  tally.slowestMs = Math.max(tally.slowestMs, own.slowestMs);
}

const healthy: Scenario = async (stage, tally, problems) => {
  const { fleet, reads } = stage;
  await prepareAll(stage, SPARE);
  const first = newTally();
  const pairs = pairsOf(fleet.size, () => true);
  await Promise.all(
    pairs.map(async ([asker, holder]) => {
      const ms = await reads.recovery(asker, holder, first, LOOK_MS);
      if (ms === null) problems.push(`${asker} never had anything of ${holder}`);
    }),
  );
  tally.wrong += first.wrong;
  await mustGoOn(stage, tally, problems, () => true);
  return null;
};

const lossy: Scenario = async (stage, tally, problems) => {
  await stage.network.everywhere({ loss: 0.01, delayMs: 50 });
  await stage.reads.across(ROUNDS, tally);
  mustHit(tally, HITS_UNDER_LOSS, "with 1 % lost and 50 ms", problems);
  await stage.network.everywhere({});
  return null;
};

const partition: Scenario = async (stage, tally, problems) => {
  const { network, fleet, reads } = stage;
  const side = (host: number) => host < 3;
  const isApart = (asker: number, holder: number) => side(asker) !== side(holder);
  const apart = pairsOf(fleet.size, isApart);
  await prepareAll(stage, SPARE);
  for (const [from, to] of apart) await network.path(from, to, { cut: true });
  const cut = newTally();
  await Promise.all([
    reads.across(1, cut, isApart),
    mustGoOn(stage, tally, problems, (asker, holder) => !isApart(asker, holder)),
  ]);
  if (cut.hits > 0) problems.push("blocks came through a cut");
  tally.reads += cut.reads;
  tally.misses += cut.misses;
  tally.wrong += cut.wrong;
  await prepareAll(stage, SPARE);
  for (const [from, to] of apart) await network.path(from, to, {});
  return recoverAll(stage, apart, tally, problems);
};

const asymmetric: Scenario = async (stage, tally, problems) => {
  const { network, fleet, reads } = stage;
  const isCut = (asker: number, holder: number) => asker + holder === 1;
  await prepareAll(stage, SPARE);
  await network.path(0, 1, { cut: true });
  const cut = newTally();
  await Promise.all([
    reads.across(1, cut, isCut),
    mustGoOn(stage, tally, problems, (asker, holder) => !isCut(asker, holder)),
  ]);
  if (cut.hits > 0) problems.push("blocks came where only one direction goes");
  tally.reads += cut.reads;
  tally.misses += cut.misses;
  tally.wrong += cut.wrong;
  await prepareAll(stage, SPARE);
  await network.path(0, 1, {});
  return recoverAll(stage, pairsOf(fleet.size, isCut), tally, problems);
};

const REPLACED = 2;

const replaced: Scenario = async (stage, tally, problems) => {
  const { fleet, reads } = stage;
  const { family } = fleet.host(REPLACED);
  await prepareAll(stage, SPARE);
  await fleet.kill(REPLACED);
  const others = Array.from({ length: fleet.size }, (_, host) => host).filter(
    (host) => host !== REPLACED,
  );
  await Promise.all(others.map((asker) => reads.one(asker, family, tally)));
  await fleet.start(REPLACED);
  await Promise.all(others.map((asker) => reads.one(asker, family, tally)));
  await prepareAll(stage, SPARE);
  const pairs = pairsOf(fleet.size, (asker, holder) => [asker, holder].includes(REPLACED));
  return recoverAll(stage, pairs, tally, problems);
};

export const SCENARIOS = { healthy, lossy, partition, asymmetric, replaced } as const;
export type ScenarioName = keyof typeof SCENARIOS;

export async function runScenario(name: ScenarioName, stage: Stage): Promise<ScenarioResult> {
  const tally = newTally();
  const problems: string[] = [];
  let recoveryMs: number | null = null;
  try {
    recoveryMs = await SCENARIOS[name](stage, tally, problems);
  } catch (thrown) {
    problems.push(messageOf(thrown));
  }
  if (tally.wrong > 0) problems.push(`${tally.wrong} blocks with wrong bytes`);
  const { missed: _missed, ...counts } = tally;
  return { name, ...counts, recoveryMs, problems: [...problems, ...stage.fleet.problems()] };
}
