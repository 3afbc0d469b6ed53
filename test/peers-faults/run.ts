import type { TransportName } from "../../src/peers/index.ts";
import { askerDeaths, senderDeaths } from "./deaths.ts";
import { floods } from "./floods.ts";
import { healthy, hung, lies } from "./phases.ts";
import type { Result } from "./tally.ts";
import { wires } from "./wires.ts";
import { World } from "./world.ts";

export interface RunOptions {
  readonly pulls: number;
  readonly seed: number;
  readonly transports: readonly TransportName[];
  onPhase(result: Result): void;
}

/** Share of the pulls per phase; the rest get invalid data. */
const HEALTHY = 0.15;
const HUNG = 0.15;
const WIRES = 0.1;
const FLOODED = 0.02;
/** Pulls per killed sender and per killed client; 17 senders cover all deaths. */
const PULLS_A_SENDER = 250;
const PULLS_AN_ASKER = 1_000;

/** Runs all phases for each transport; each phase begins when everything is idle. */
export async function runFaults({ pulls, seed, transports, onPhase }: RunOptions) {
  const results: Result[] = [];
  const all = Math.floor(pulls / transports.length);
  for (const transport of transports) {
    await using world = await World.make(transport, seed);
    const part = (share: number) => Math.max(Math.floor(all * share), 20);
    const add = async (phase: Promise<Result>) => {
      const result = await phase;
      results.push(result);
      onPhase(result);
      return result;
    };
    const { p99Ms } = await add(healthy(world, part(HEALTHY)));
    await add(hung(world, part(HUNG), p99Ms));
    await add(lies(world, part(1 - HEALTHY - HUNG - WIRES - FLOODED)));
    await add(wires(world, part(WIRES)));
    await add(floods(world, part(FLOODED)));
    await add(senderDeaths(world, Math.ceil(all / PULLS_A_SENDER)));
    await add(askerDeaths(world, Math.ceil(all / PULLS_AN_ASKER)));
  }
  return results;
}
