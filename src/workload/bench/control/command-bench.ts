import type { Bus } from "../../../bus/index.ts";
import { type ControlClient, unpin } from "../../../control/client/index.ts";
import { HearthError } from "../../../core/index.ts";
import type { Native } from "../../../native/index.ts";
import type { PrivateAgent } from "../../replay/index.ts";
import { median, quantile } from "../quantiles.ts";
import { CommandLoad, type Encoding, type LoadFigures, OWNERS, ownerName } from "./command-load.ts";
import { ControlHost, hashOf } from "./control-host.ts";
import { loopUsOf } from "./loop-time.ts";

export interface CommandBenchOptions {
  readonly bus: Bus;
  readonly client: ControlClient;
  readonly natsUrl: string;
  readonly workerId: string;
  readonly encoding: Encoding;
  /** Blocks of one command. */
  readonly hashes: number;
  readonly inFlight: number;
  readonly ramOnly: boolean;
  readonly seconds: number;
  readonly rounds: number;
  readonly signal: AbortSignal;
  readonly onProgress: (what: string) => void;
}

/** Rates and latencies are medians of the rounds. */
export interface CommandFigures {
  readonly commands_per_s: number;
  readonly p50_us: number;
  readonly p99_us: number;
  readonly hashes: number;
  readonly in_flight: number;
  readonly encoding: Encoding;
  /** What a receipt said was done survives a loss of power. */
  readonly durable: boolean;
  readonly rounds: number;
  readonly seconds: number;
  /** All rounds and the warm-up; each was awaited and said what it should. */
  readonly receipts: number;
  /** At the end; the agent's list says the same. */
  readonly pins_standing: number;
  /** Processor time of the agent for each command: of all its threads, and of its event loop. */
  readonly agent_cpu_us: number;
  readonly agent_loop_us: number;
}

const BLOCK_BYTES = 4_096;
/** Of the files beside the blocks. */
const FILE_BYTES = 2 * BLOCK_BYTES;
const GROUPS_A_LANE = 2;
/** Pins of half the room are allowed; here all of RAM and SSD is a small part of it. */
const ROOM = 4;
const WARM_UP_MS = 1_000;
const PAGE = 1_000;

/** Loads an agent with commands; at the end its pins must be those that were answered. */
export async function benchCommands(
  native: Native,
  options: CommandBenchOptions,
): Promise<CommandFigures> {
  const { client, natsUrl, workerId, hashes, inFlight, ramOnly, rounds, signal } = options;
  const groups = Array.from({ length: inFlight * GROUPS_A_LANE }, (_, group) =>
    Array.from({ length: hashes }, (_, at) => hashOf(group * hashes + at)),
  );
  const blocks = groups.length * hashes;
  await using host = await ControlHost.start(native, {
    ...{ natsUrl, workerId, signal },
    blocksMax: blocks * 2,
    ramBytes: Math.max(2 ** 24, blocks * BLOCK_BYTES * ROOM),
    ssdBytes: ramOnly ? null : Math.max(2 ** 26, blocks * FILE_BYTES * ROOM),
  });
  await host.store({
    count: blocks,
    // Each group is a prompt of its own.
    parentOf: (block) => (block % hashes === 0 ? null : block - 1),
    blockBytes: BLOCK_BYTES,
    onProgress: (stored) => options.onProgress(`${stored} of ${blocks} blocks stored`),
  });
  if (!ramOnly) await host.onSsd(blocks);
  await answers(client, workerId, signal);
  using load = new CommandLoad({ ...options, groups, durable: !ramOnly });
  options.onProgress("commands, warming up");
  let receipts = (await load.run(WARM_UP_MS, signal)).receipts;
  const figures: LoadFigures[] = [];
  const before = await cpuOf(host.agent);
  for (let round = 1; round <= rounds; round++) {
    options.onProgress(`commands, round ${round} of ${rounds}`);
    figures.push(await load.run(options.seconds * 1_000, signal));
  }
  const after = await cpuOf(host.agent);
  const counted = figures.reduce((sum, round) => sum + round.receipts, 0);
  receipts += counted;
  const { encoding, seconds } = options;
  return {
    ...ratesOf(figures),
    ...{ hashes, in_flight: inFlight, encoding, durable: !ramOnly, rounds, seconds, receipts },
    pins_standing: await checkPins(host.agent, load.standing(), hashes),
    agent_cpu_us: Math.round((after.allUs - before.allUs) / counted),
    agent_loop_us: Math.round((after.loopUs - before.loopUs) / counted),
  };
}

function ratesOf(rounds: readonly LoadFigures[]) {
  const us = (q: number) => median(rounds.map(({ ns }) => quantile(ns, q))) / 1_000;
  return {
    commands_per_s: Math.round(median(rounds.map(({ receipts, seconds }) => receipts / seconds))),
    p50_us: Math.round(us(0.5)),
    p99_us: Math.round(us(0.99)),
  };
}

/** Waits until the agent listens on the bus. */
async function answers(client: ControlClient, workerId: string, signal: AbortSignal) {
  const sent = await client.send(workerId, unpin([hashOf(0)]), { signal });
  if (sent.kind !== "receipt") throw new HearthError("DEADLINE", `the agent: ${sent.why}`);
}

/** Microseconds so far. */
async function cpuOf(agent: PrivateAgent): Promise<{ allUs: number; loopUs: number }> {
  const found = /^hearth_cpu_seconds_total (\S+)$/m.exec(await agent.metrics());
  return { allUs: Number(found?.[1]) * 1e6, loopUs: loopUsOf(agent) };
}

interface PinsPage {
  readonly pins: readonly { readonly owner: string; readonly blocks: number }[];
  readonly next: number | null;
}

/** How many stand. Throws INTERNAL where they are not those that were answered. */
async function checkPins(agent: PrivateAgent, standing: readonly number[], hashes: number) {
  const found = new Array<number>(OWNERS).fill(0);
  for (let after: number | null = 0; after !== null; ) {
    const page: PinsPage = await agent.get(`/v1/pins?limit=${PAGE}&after=${after}`);
    for (const { owner, blocks } of page.pins) {
      const at = found.findIndex((_, number) => ownerName(number) === owner);
      if (at >= 0 && blocks === hashes) found[at]!++;
      else throw new HearthError("INTERNAL", `a pin of ${owner} on ${blocks} blocks is not ours`);
    }
    after = page.next;
  }
  for (const [owner, pins] of standing.entries()) {
    if (found[owner] === pins) continue;
    const what = `${pins} pins of ${ownerName(owner)} were answered, ${found[owner]} stand`;
    throw new HearthError("INTERNAL", what);
  }
  return standing.reduce((sum, pins) => sum + pins, 0);
}
