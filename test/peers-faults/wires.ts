import type { RealHost } from "../peers/hosts/real-host.ts";
import { type Meddler, TcpMeddler, UdpMeddler } from "./meddlers.ts";
import { type Result, Tally } from "./tally.ts";
import type { World } from "./world.ts";

const DEADLINE_MS = 5_000;
/** Pulls over one set of connections. */
const ASKER_PULLS = 25;
const CAME_MIN = 0.9;

/** Two hosts are connected by a faulty network; a third host is reached directly. */
export async function wires(world: World, pulls: number): Promise<Result> {
  const tally = new Tally();
  await using stack = new AsyncDisposableStack();
  const listen = async (): Promise<Meddler> => {
    const made = world.transport === "quic" ? UdpMeddler : TcpMeddler;
    return stack.use(await made.listen(world.random));
  };
  const [front, lanes] = [await listen(), await listen()];
  const { host } = await world.holder("behind-a-bad-network", (real) => {
    lanes.target = real;
    return lanes.port;
  });
  stack.use(host);
  front.target = host.endpoints[world.transport]!.port;
  const endpoints = { [world.transport]: { host: "127.0.0.1", port: front.port } };
  const near = world.holders[1]!.host;
  const seen: Pick<RealHost, "worker" | "endpoints"> = { worker: host.worker, endpoints };
  for (let done = 0; done < pulls; done += ASKER_PULLS) {
    const asker = await world.asker({}, [seen, near]);
    asker.holders = () => [host.worker, near.worker];
    const engine = asker.engine();
    for (let i = 0; i < ASKER_PULLS; i++) await tally.fetch(engine, world.some(8), DEADLINE_MS);
    engine.die();
    tally.corruptSeen += asker.puller.stats.corrupt;
    await asker.puller[Symbol.asyncDispose]();
    tally.problems.push(...asker.leftovers());
    await asker[Symbol.asyncDispose]();
  }
  tally.problems.push(...(await world.leftovers()), ...(await world.quiet(host)));
  if (pulls >= 100 && front.meddled + lanes.meddled === 0) tally.problems.push("no harm was done");
  const result = tally.result(world.transport, "bad network");
  if (result.ok >= result.blocks * CAME_MIN) return result;
  return {
    ...result,
    problems: [...result.problems, "too little came from the host that is near"],
  };
}
