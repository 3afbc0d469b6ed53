import { afterAll, expect, test } from "bun:test";
import type { StoreEngine } from "../../store/store-engine.ts";
import { makeCluster } from "../../support/cluster.ts";
import { describeNative, tempDir, waitFor } from "../../support/index.ts";
import { meetIn, planVerbs, standInVerbs } from "../transports/rdma-kit.ts";
import { maker as rdma } from "../transports/rdma-maker.ts";
import { MIB, RealHost } from "./real-host.ts";

const NAMES = ["a", "b", "c", "d", "e", "f"];
const ALL_OK = NAMES.map(() => "ok");

/** Only the stand-in's devices fail on demand. */
const describeStandIn = process.env.HEARTH_TEST_VERBS === undefined ? describeNative : () => {};

/** A host with blocks and one without, both with RDMA and streams. */
async function hosts(plan: string) {
  planVerbs(plan);
  await using stack = new AsyncDisposableStack();
  const cluster = makeCluster();
  const make = async (worker: string) => {
    const trust = cluster.trust(worker);
    const host = new RealHost({
      ...{ worker, trust, arenaBytes: 64 * MIB, transports: ["rdma", "stream"] },
      ...{ makers: { rdma }, limits: { transports: ["rdma", "stream"] } },
    });
    return stack.use(await host.listen());
  };
  const [holder, client] = [await make("holder"), await make("client")];
  await holder.engine().put(...NAMES.map((name) => ({ name, bytes: 2 * MIB })));
  client.meet([{ worker: holder.worker, endpoints: holder.endpoints }]);
  const ended = stack.move();
  return { holder, client, [Symbol.asyncDispose]: () => ended.disposeAsync() };
}

/** Reads blocks with a long deadline: `ok` only if every byte is right. */
async function read(engine: StoreEngine, names: readonly string[]): Promise<string[]> {
  const handles = await engine.fetch(names, { deadlineMs: 20_000 });
  const outcomes = handles.map((handle) =>
    handle.outcome === "ok" && !engine.proves(handle) ? "wrong bytes" : handle.outcome,
  );
  engine.release(handles.filter(({ outcome }) => outcome === "ok"));
  return outcomes;
}

async function isQuiet(world: Awaited<ReturnType<typeof hosts>>, engine: StoreEngine) {
  engine.die();
  const all = [world.holder, world.client];
  await waitFor(() => all.every((host) => host.leftovers().length === 0));
}

describeStandIn("blocks of a host with RDMA", () => {
  afterAll(meetIn(tempDir()));

  test("arrive intact over RDMA", async () => {
    await using world = await hosts("");
    const engine = world.client.engine();
    expect(await read(engine, NAMES)).toEqual(ALL_OK);
    expect(world.client.puller.stats.byTransport).toMatchObject({
      rdma: { blocks: 6, fallbacks: 0 },
      stream: { blocks: 0 },
    });
    await isQuiet(world, engine);
  });

  for (const [what, plan] of [
    ["reads fail", "read=12@12+"],
    ["reads hang", "hang@12"],
    ["the port goes down", "port-down@12"],
    ["the device fails", "fatal@12"],
  ] as const) {
    test(`${what} in the middle: what did not come by it comes by the stream`, async () => {
      await using world = await hosts(plan);
      const { client } = world;
      const engine = client.engine();
      expect(await read(engine, NAMES)).toEqual(ALL_OK);
      const { rdma, stream } = client.puller.stats.byTransport;
      expect(rdma.blocks + stream.blocks).toBe(6);
      expect(stream.blocks).toBeGreaterThan(0);
      await isQuiet(world, engine);
    });
  }

  test("with a flipped bit are fetched again, and the corruption is reported", async () => {
    await using world = await hosts("flip@3");
    const { client } = world;
    const engine = client.engine();
    const outcomes = await read(engine, NAMES);
    expect(outcomes).not.toContain("wrong bytes");
    expect(client.events.map(({ kind }) => kind)).toContain("peer_corrupt");
    expect(client.puller.stats.corrupt).toBe(1);
    await isQuiet(world, engine);
  });

  test("arrive over RDMA again when its port is back", async () => {
    await using world = await hosts("");
    const { client } = world;
    const engine = client.engine();
    expect(await read(engine, NAMES.slice(0, 1))).toEqual(["ok"]);
    standInVerbs()!.configure("+port=down");
    expect(await read(engine, NAMES.slice(1, 3))).toEqual(["ok", "ok"]);
    expect(client.puller.stats.byTransport.stream.blocks).toBe(2);
    standInVerbs()!.configure("+port=up");
    await waitFor(() => client.puller.peers()[0]?.transportsDown.every((one) => one.retryMs <= 0));
    expect(await read(engine, NAMES.slice(3, 4))).toEqual(["ok"]);
    expect(client.puller.stats.byTransport.rdma.blocks).toBe(2);
  });
});
