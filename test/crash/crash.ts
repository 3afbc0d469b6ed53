import { type Random, randomBelow, seededRandom } from "../../src/core/index.ts";
import { isOneIn } from "./content.ts";
import { Trial, type TrialFigures } from "./trial.ts";

export interface CrashOptions {
  readonly executable: string;
  /** Of this run alone; on the file system to try. */
  readonly folder: string;
  readonly cycles: number;
  readonly seed: number;
  /** Kills at this point alone; null: at random moments and at all points in turn. */
  readonly point: string | null;
  /** Sends pins, leases and other commands, and lets the wall clock jump. */
  readonly commands?: boolean;
  onProgress(done: number, figures: TrialFigures): void;
}

const CLEAN_EVERY = 20;
const START_MS = 300;

/** Kills an agent over and over, and judges what it answers after each start. */
export async function runCrash(options: CrashOptions): Promise<Trial> {
  const { executable, folder, cycles, seed, point, commands = false, onProgress } = options;
  const own = { executable, folder, ssdDir: `${folder}/ssd`, point, commands };
  const trial = new Trial({ ...own, random: seededRandom(seed) });
  trial.world.beginLife();
  for (let cycle = 0; cycle < cycles; cycle++) {
    const random = seededRandom(seed * 1_000_003 + cycle);
    trial.beginCycle(cycle);
    if (cycle % CLEAN_EVERY === CLEAN_EVERY - 1) await cleanCycle(trial, random);
    else if (point !== null || cycle % 2 === 1) await namedCycle(trial, random);
    else await randomCycle(trial, random);
    onProgress(cycle + 1, trial.figures);
  }
  return trial;
}

/** Killed from outside: while it starts, under load, or while it drains. */
async function randomCycle(trial: Trial, random: Random): Promise<void> {
  befall(trial, random);
  const agent = trial.start("");
  const when = randomBelow(random, 6);
  if (when === 0) setTimeout(() => agent.kill(), randomBelow(random, START_MS));
  if (await trial.ready(agent, false)) {
    await using life = trial.life(agent, random);
    await life.connect();
    await life.begin();
    const stop = new AbortController();
    const load = life.load(stop.signal);
    await Bun.sleep(randomBelow(random, trial.loadMs));
    if (when > 3) {
      stop.abort();
      await load;
      await life.audit();
    }
    if (when === 1) {
      life.expectEnd();
      agent.stop();
      stop.abort();
      await Bun.sleep(randomBelow(random, 60));
    }
    agent.kill();
    await load;
  }
  await trial.stopped(agent);
  trial.world.clearDamage();
}

/** Killed at a point in the program; an agent that never comes there is stopped. */
async function namedCycle(trial: Trial, random: Random): Promise<void> {
  const { kill, plan, ended } = trial.plan.next(random);
  trial.tally.where += ` ${plan}`;
  trial.world.prepareFor(kill.name, random);
  const agent = trial.start(plan);
  if (await trial.ready(agent, true)) {
    trial.world.disturbFor(kill.name);
    await using life = trial.life(agent, random);
    await life.connect();
    await life.begin();
    const stop = new AbortController();
    const load = life.load(stop.signal);
    await Promise.race([agent.ended, Bun.sleep(trial.loadMs)]);
    life.expectEnd();
    agent.stop();
    stop.abort();
    await load;
  }
  const end = await trial.stopped(agent);
  ended(end.signal === "SIGKILL" && !agent.killedByUs);
  trial.world.clearDamage();
}

/** Stopped as it should be; then everything on SSD is sound. */
async function cleanCycle(trial: Trial, random: Random): Promise<void> {
  const agent = trial.start("");
  if (await trial.ready(agent, false)) {
    await using life = trial.life(agent, random);
    await life.connect();
    if (!(await life.begin())) trial.tally.complain("not all could be read");
    const stop = new AbortController();
    const load = life.load(stop.signal);
    await Bun.sleep(trial.loadMs / 2);
    stop.abort();
    await load;
    await life.audit();
  }
  agent.stop();
  const { code } = await trial.stopped(agent);
  if (code !== 0) trial.tally.complain(`a clean stop ended with ${code}`);
  await trial.fsck();
}

/** What may befall folders while nobody looks. */
function befall({ world }: Trial, random: Random): void {
  if (isOneIn(random, 60)) world.beginLife();
  if (isOneIn(random, 30)) world.damageIndex();
  if (isOneIn(random, 10)) world.damageFiles(2, random);
}
