/** Two whole hosts: which way blocks go, and what becomes of a pull whose way is cut. */
import { afterEach, describe, expect, test } from "bun:test";
import type { StoreEngine } from "../../store/store-engine.ts";
import { makeCluster } from "../../support/cluster.ts";
import { waitFor } from "../../support/index.ts";
import { Far } from "./far.ts";
import { storeAt } from "./far-store.ts";
import { FAR, NEAR } from "./places.ts";
import { setRail } from "./shell.ts";

const BYTES = 256 * 1024;
const FIRST = ["a", "b"];
const SECOND = Array.from({ length: 40 }, (_, at) => `second-${at}`);
const THIRD = Array.from({ length: 60 }, (_, at) => `third-${at}`);

/** Reads blocks with patience: `ok` only where every byte is right. */
async function read(engine: StoreEngine, names: readonly string[]): Promise<string[]> {
  const handles = await engine.fetch(names, { deadlineMs: 40_000 });
  const outcomes = handles.map((handle) =>
    handle.outcome === "ok" && !engine.proves(handle) ? "wrong bytes" : handle.outcome,
  );
  engine.release(handles.filter(({ outcome }) => outcome === "ok"));
  return outcomes;
}

function ok(names: readonly string[]): string[] {
  return names.map(() => "ok");
}

async function hosts() {
  await using stack = new AsyncDisposableStack();
  const cluster = makeCluster();
  const far = stack.use(await new Far().connect());
  const order = { place: FAR, credentials: cluster.host("far") };
  const { endpoints } = await far.order("openStore", order);
  stack.defer(() => far.order("closeStore"));
  const blocks = [...FIRST, ...SECOND, ...THIRD].map((name) => ({ name, bytes: BYTES }));
  expect(await far.order("store", { blocks })).toEqual(ok(blocks.map(({ name }) => name)));
  const near = stack.use(await storeAt(NEAR, cluster.host("near")));
  near.meet([{ worker: "far" as never, endpoints }]);
  const ended = stack.move();
  return { near, far, [Symbol.asyncDispose]: () => ended.disposeAsync() };
}

describe("two whole hosts", () => {
  afterEach(() => setRail("up"));

  test("blocks go by RDMA; without the rail they go on by stream, and back again", async () => {
    await using world = await hosts();
    const { near, far } = world;
    const engine = near.engine();
    expect(await read(engine, FIRST)).toEqual(ok(FIRST));
    expect(near.puller.stats.byTransport).toMatchObject({
      rdma: { blocks: FIRST.length, bytes: FIRST.length * BYTES },
      stream: { blocks: 0 },
    });
    const served = await far.order("served");
    const loading = read(engine, SECOND);
    await waitFor(async () => (await far.order("served")) > served, 20_000, "the first block");
    await setRail("down");
    expect(await loading).toEqual(ok(SECOND));
    const { rdma, stream } = structuredClone(near.puller.stats.byTransport);
    expect(rdma.blocks + stream.blocks).toBe(FIRST.length + SECOND.length);
    expect(stream.blocks).toBeGreaterThan(0);
    expect(near.events.map(({ kind }) => kind)).toContain("transport_down");
    await setRail("up");
    const rest = [...THIRD];
    await waitFor(
      async () => {
        const name = rest.shift();
        if (name === undefined) throw new Error("all blocks came by stream");
        expect(await read(engine, [name])).toEqual(["ok"]);
        await Bun.sleep(250);
        return near.puller.stats.byTransport.rdma.blocks > rdma.blocks;
      },
      30_000,
      "RDMA is used again",
    );
    engine.die();
    const leftovers = async () => [...near.leftovers(), ...(await far.order("leftovers"))];
    await waitFor(async () => (await leftovers()).length === 0, 20_000, "no leftovers");
  });
});
