import { randomBelow } from "../../src/core/index.ts";
import { waitFor } from "../support/wait.ts";
import { HostChild } from "./host-child.ts";
import { type Result, Tally } from "./tally.ts";
import type { World } from "./world.ts";

const ITEMS = 8;
const DEADLINE_MS = 5_000;
/** Number of concurrent processes. */
const AT_ONCE = 4;
/** Maximum delay of a kill within a frame. */
const MID_FRAME_MS_MAX = 3;
const DEATH_MS = 500;
/** Step through the list of all deaths; shares no divisor with its length. */
const STEP = 4;

interface Death {
  readonly at: number;
  readonly afterMs: number | null;
}

/**
 * Kills senders before each frame of a pull, after the last one, and within frames. The remaining
 * blocks come from a live host.
 */
export async function senderDeaths(world: World, count: number): Promise<Result> {
  const tally = new Tally();
  const all: Death[] = [];
  for (let at = 0; at <= ITEMS; at++) {
    all.push({ at, afterMs: null });
    if (at < ITEMS) all.push({ at, afterMs: randomBelow(world.random, MID_FRAME_MS_MAX + 1) });
  }
  const deaths = Array.from({ length: count }, (_, i) => all[(i * STEP) % all.length]!);
  let [next, killed] = [0, 0];
  const work = async () => {
    while (next < deaths.length)
      if (await senderDeath(world, tally, next, deaths[next++]!)) killed++;
  };
  await Promise.all(Array.from({ length: AT_ONCE }, work));
  tally.problems.push(...(await world.leftovers()));
  // A slow sender may be abandoned before it is killed.
  if (killed < deaths.length / 2) tally.problems.push(`only ${killed} senders were killed`);
  const result = tally.result(world.transport, "sender killed");
  if (result.ok === result.blocks) return result;
  const problem = `${result.missed + result.late} blocks did not come from the host that lives`;
  return { ...result, problems: [...result.problems, problem] };
}

/** Whether it was killed as planned. */
async function senderDeath(
  world: World,
  tally: Tally,
  id: number,
  killAt: Death,
): Promise<boolean> {
  const names = world.names.slice(0, ITEMS);
  await using mortal = await HostChild.start(world, { worker: `mortal-${id}`, names, killAt });
  const { host } = world.holders[1]!;
  await using asker = await world.asker({}, [mortal, host]);
  asker.holders = () => [mortal.worker, host.worker];
  const engine = asker.engine();
  await tally.fetch(engine, names, DEADLINE_MS);
  const killed = await Promise.race([mortal.ended.then(() => true), Bun.sleep(DEATH_MS)]);
  engine.die();
  await asker.puller[Symbol.asyncDispose]();
  tally.problems.push(...asker.leftovers());
  return killed === true;
}

/** Kills clients while they pull; the servers must get all slot references back. */
export async function askerDeaths(world: World, count: number): Promise<Result> {
  const tally = new Tally();
  const peers = world.holders.map(({ host }) => ({
    ...{ worker: host.worker, endpoints: host.endpoints },
  }));
  for (let id = 0; id < count; id++) {
    const from = randomBelow(world.random, world.names.length - 200);
    const wanted = world.names.slice(from, from + 200);
    const served = () =>
      peers.reduce((sum, _, i) => sum + world.holders[i]!.host.serving.stats.blocks, 0);
    const before = served();
    const worker = `mortal-asker-${id}`;
    await using child = await HostChild.start(world, { worker, names: [], peers, wanted });
    await waitFor(() => served() > before, 10_000, "a pull of the asker");
    await Bun.sleep(randomBelow(world.random, 30));
    child.kill();
    await child.ended;
  }
  tally.problems.push(...(await world.leftovers()));
  return { ...tally.result(world.transport, "asker killed"), pulls: count };
}
