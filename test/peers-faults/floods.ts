import type { PeerConnection } from "../../src/peers/index.ts";
import { NAMESPACE_KEY } from "../peers/hosts/real-host.ts";
import { digestOf } from "../store/names.ts";
import { type Result, Tally } from "./tally.ts";
import { BLOCK_BYTES, type World } from "./world.ts";

const LINKS = 8;
const LINK_PULLS = 80;
/** Pause between two rounds on one connection, since all share one CPU. */
const PAUSE_MS = 20;
const DEADLINE_MS = 10_000;
const CAME_MIN = 0.9;

/**
 * A host with a valid certificate sends more requests than allowed, on many connections at once;
 * other hosts must still be served.
 */
export async function floods(world: World, pulls: number): Promise<Result> {
  const tally = new Tally();
  const [victim] = world.holders;
  const flooder = await world.asker();
  const [transport] = flooder.transports;
  const stop = new AbortController();
  const target = { ...victim!.host.endpoints[world.transport]!, worker: victim!.host.worker };
  const connections: PeerConnection[] = [];
  const flood = async () => {
    while (!stop.signal.aborted) {
      const dialled = await transport!.dial(target, stop.signal);
      if (!dialled.ok) await Bun.sleep(5);
      else {
        connections.push(dialled.connection);
        await Promise.all(Array.from({ length: LINK_PULLS }, () => pull(dialled.connection)));
        await Bun.sleep(PAUSE_MS);
      }
    }
  };
  const items = world.names.slice(0, 64).map((name, i) => ({
    ...{ digest: digestOf(name), layer: 0xffff_ffff, bytesMax: BLOCK_BYTES, generation: 0n },
    offset: i * 16_384,
  }));
  const pull = (connection: PeerConnection) =>
    connection.pull({
      ...{ namespace: NAMESPACE_KEY, items, deadlineMs: 60_000, signal: stop.signal },
      onBytes: () => undefined,
      onItem: () => undefined,
    });
  const flooding = Promise.all(Array.from({ length: LINKS }, flood));
  const asker = await world.asker();
  const engine = asker.engine();
  for (let i = 0; i < pulls; i++) await tally.fetch(engine, world.some(4), DEADLINE_MS);
  stop.abort();
  await flooding;
  if (connections.length < 2) tally.problems.push("nothing was flooded");
  await flooder[Symbol.asyncDispose]();
  engine.die();
  await asker[Symbol.asyncDispose]();
  tally.problems.push(...(await world.leftovers()));
  const result = tally.result(world.transport, "flooded");
  if (result.ok >= result.blocks * CAME_MIN) return result;
  return {
    ...result,
    problems: [...result.problems, "the flood kept other clients from their blocks"],
  };
}
