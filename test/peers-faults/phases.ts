import type { RealHost } from "../peers/hosts/real-host.ts";
import type { StoreEngine } from "../store/store-engine.ts";
import { LIES } from "./lies.ts";
import { type Result, Tally } from "./tally.ts";
import type { World } from "./world.ts";

const AT_ONCE = 8;
const BLOCKS_MAX = 8;
const PAUSE_MS = 10;
/** Requests after which the usual behaviour of hosts is known. */
const WARM_UP = 100;
/** Cooldowns as in production. */
const STEADY = { cooldownMs: 500, cooldownMaxMs: 5_000, progressMs: 1_000 };
const DEADLINE_MS = 5_000;
/** Pulls of one client before the next replaces it. */
const ASKER_PULLS = 400;
/** Minimum share of blocks that a cluster of three must deliver if one host sends invalid data. */
const HEALTHY_MIN = 0.999;
const LYING_MIN = 0.5;
const LYING = 1 / 6;

/** Sends this many requests of one client, some at a time. */
async function ask(world: World, tally: Tally, engine: StoreEngine, pulls: number): Promise<void> {
  let left = pulls;
  const work = async () => {
    while (left-- > 0) {
      const ok = await tally.fetch(engine, world.some(BLOCKS_MAX), DEADLINE_MS);
      // All hosts are in cooldown: an engine would recompute now.
      if (ok === 0) await Bun.sleep(PAUSE_MS);
    }
  };
  await Promise.all(Array.from({ length: AT_ONCE }, work));
}

/** Ends the client; anything it leaves behind is a problem. */
async function leave(tally: Tally, asker: RealHost, engine: StoreEngine): Promise<void> {
  engine.die();
  tally.corruptSeen += asker.puller.stats.corrupt;
  await asker.puller[Symbol.asyncDispose]();
  tally.problems.push(...asker.leftovers());
  await asker[Symbol.asyncDispose]();
}

/** All hosts behave well: the baseline for the other phases. */
export async function healthy(world: World, pulls: number): Promise<Result> {
  const asker = await world.asker(STEADY);
  const engine = asker.engine();
  await ask(world, new Tally(), engine, WARM_UP);
  const tally = new Tally();
  await ask(world, tally, engine, pulls);
  await leave(tally, asker, engine);
  tally.problems.push(...(await world.leftovers()));
  return withLeast(tally.result(world.transport, "healthy"), HEALTHY_MIN);
}

/** One of three hosts stops answering without closing its connections. */
export async function hung(world: World, pulls: number, healthyP99Ms: number): Promise<Result> {
  const asker = await world.asker(STEADY);
  const engine = asker.engine();
  await ask(world, new Tally(), engine, WARM_UP);
  world.holders[0]!.server.hung = true;
  const tally = new Tally();
  await ask(world, tally, engine, pulls);
  world.honest();
  await leave(tally, asker, engine);
  tally.problems.push(...(await world.leftovers()));
  const result = withLeast(tally.result(world.transport, "one hung"), HEALTHY_MIN);
  if (result.p99Ms <= 2 * healthyP99Ms) return result;
  const times = (result.p99Ms / healthyP99Ms).toFixed(1);
  return { ...result, problems: [...result.problems, `p99 is ${times} times the healthy p99`] };
}

/** Each host answers one request in six with a fault. */
export async function lies(world: World, pulls: number): Promise<Result> {
  const tally = new Tally();
  const { holders } = world;
  for (const { server } of holders) server.lying = LYING;
  for (let left = pulls; left > 0; left -= ASKER_PULLS) {
    const asker = await world.asker();
    const engine = asker.engine();
    await ask(world, tally, engine, Math.min(left, ASKER_PULLS));
    await leave(tally, asker, engine);
  }
  world.honest();
  tally.problems.push(...(await world.leftovers()));
  const untold = LIES.filter((lie) => !holders.some(({ server }) => server.told.has(lie)));
  if (pulls >= 2_000 && untold.length > 0)
    tally.problems.push(`lies never used: ${untold.join(", ")}`);
  return withLeast(tally.result(world.transport, "lies"), LYING_MIN);
}

function withLeast(result: Result, least: number): Result {
  if (result.ok >= result.blocks * least) return result;
  const share = ((100 * result.ok) / result.blocks).toFixed(1);
  return { ...result, problems: [...result.problems, `only ${share} % of the blocks came`] };
}
