import { type Random, randomBelow, seededRandom } from "../../src/core/index.ts";
import { Trial, type TrialFigures } from "../crash/trial.ts";
import type { LoopDisk } from "./loop-disk.ts";

export interface PowerOptions {
  readonly executable: string;
  readonly folder: string;
  readonly disk: LoopDisk;
  readonly cycles: number;
  readonly seed: number;
  onProgress(done: number, figures: TrialFigures): void;
}

const LOAD_MS = 400;
const CLEAN_EVERY = 25;
/** The index lies on the disk that loses its power, then for as long on another. */
const CYCLES_A_LIFE = 20;

/** Takes the power away over and over, and judges what is there when it is back. */
export async function runPower(options: PowerOptions): Promise<Trial> {
  const { executable, folder, disk, cycles, seed, onProgress } = options;
  const ssdDir = `${disk.mountPoint}/ssd`;
  const trial = new Trial({ executable, folder, ssdDir, point: null, random: seededRandom(seed) });
  const indexDirs = [`${ssdDir}/index`, `${folder}/index`] as const;
  for (let cycle = 0; cycle < cycles; cycle++) {
    const random = seededRandom(seed * 1_000_003 + cycle);
    if (cycle % CYCLES_A_LIFE === 0) trial.world.beginLife(indexDirs[(cycle / CYCLES_A_LIFE) % 2]);
    trial.beginCycle(cycle);
    const isClean = cycle % CLEAN_EVERY === CLEAN_EVERY - 1;
    // Every other time it goes while the agent is in the midst of something we can name.
    const plan = cycle % 2 === 1 && !isClean ? trial.plan.next(random) : null;
    if (plan !== null) trial.tally.where += ` ${plan.plan}`;
    const died = await oneLife(trial, disk, random, { plan: plan?.plan ?? "", isClean });
    plan?.ended(died);
    await disk.unmount();
    disk.mount();
    if (isClean) await trial.fsck();
    onProgress(cycle + 1, trial.figures);
  }
  return trial;
}

/** Ends with the power gone, or with a clean stop; whether a plan ended it. */
async function oneLife(
  trial: Trial,
  disk: LoopDisk,
  random: Random,
  { plan, isClean }: { readonly plan: string; readonly isClean: boolean },
): Promise<boolean> {
  const power = isClean ? null : await disk.powerSwitch();
  const agent = trial.start(plan);
  if (await trial.ready(agent, plan !== "")) {
    await using life = trial.life(agent, random);
    await life.connect();
    await life.begin();
    const stop = new AbortController();
    const load = life.load(stop.signal);
    await Promise.race([agent.ended, Bun.sleep(randomBelow(random, LOAD_MS))]);
    if (power === null) stop.abort();
    else {
      // What the agent answers from here on, it answers without the disk.
      await power.off();
      life.expectEnd();
    }
    if (power !== null) agent.kill();
    await load;
  } else {
    await power?.off();
  }
  if (power === null) agent.stop();
  const isPlanned = !agent.killedByUs;
  const { signal } = await trial.stopped(agent);
  return isPlanned && signal === "SIGKILL";
}
