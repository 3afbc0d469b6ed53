import { expect, test } from "bun:test";
import { type Bus, createLocalBus, LocalHub, openBus } from "../../src/bus/index.ts";
import { systemClock, type WorkerId } from "../../src/core/index.ts";
import type { KeySpace, ResidencyTier } from "../../src/observability/activity/index.ts";
import { BusLocator, LOCATE_SUBJECT } from "../../src/peers/directory/index.ts";
import { LocateService, WorkerTable } from "../../src/router/index.ts";
import { basics } from "../bus/bus-bench.ts";
import { describeNats, ManualClock, NatsServer, waitFor } from "../support/index.ts";
import { ReferenceIndex } from "./prefix-index/reference-index.ts";

const NAMESPACE = new Uint8Array(32).fill(0xab);
const SPACE: KeySpace = { kind: "blocks", model: "m", blockTokens: 16, namespaceKey: NAMESPACE };
const keyOf = (n: number) => new Uint8Array(Uint32Array.of(n, ...Array(7).fill(n ^ 0xabc)).buffer);
const hashOf = (key: Uint8Array) => new DataView(key.buffer).getBigUint64(0, true);

function room(bus: Bus, clock = systemClock, questionsPerSecond = 1_000) {
  const index = new ReferenceIndex();
  const table = new WorkerTable();
  const busy = new Map<number, number>();
  const load = {
    of: (id: number) => ({
      activeBlocks: busy.get(id) ?? 0,
      activePrefillTokens: 0,
      activeRequests: 0,
    }),
  };
  const options = { bus, clock, cluster: "hearth", index, table, load, questionsPerSecond };
  const service = new LocateService(options);
  const worker = (name: string, spaces: readonly KeySpace[] = [SPACE]) => {
    const { id } = table.put({
      ...{ worker: name as WorkerId, rank: 0, model: "m", role: "both", spaces },
      ...{ url: null, totalBlocks: null, batchTokensMax: null },
    });
    table.setKnown(id, true);
    return {
      id,
      has: (tier: ResidencyTier, ...numbers: number[]) => {
        const hashes = BigUint64Array.from(numbers, (n) => hashOf(keyOf(n)));
        const change = { kind: "stored", tier, parent: null, hashes, tokenHashes: null } as const;
        index.apply([{ target: id, change }]);
      },
    };
  };
  return { service, table, busy, worker };
}

const ask = (bus: Bus, self: string, numbers: readonly number[], namespace = NAMESPACE) => {
  const options = { bus, clock: systemClock, cluster: "hearth", self: self as WorkerId };
  const keys = numbers.map(keyOf);
  return new BusLocator(options).locate(namespace, keys, 5_000, AbortSignal.any([]));
};

async function ends() {
  const hub = new LocalHub();
  const [here, there] = [createLocalBus(hub, basics()), createLocalBus(hub, basics())];
  await Promise.all([here.connected(5_000), there.connected(5_000)]);
  return { here, there };
}

test("holders are ordered by RAM before SSD, live before stale, then load", async () => {
  const { here, there } = await ends();
  const { service, table, busy, worker } = room(here);
  using _service = service;
  const [ssd, gpu, ram, idle, stale] = ["ssd", "gpu", "ram", "idle", "stale"].map((name) =>
    worker(name),
  );
  ssd!.has("disk", 1, 2);
  gpu!.has("device", 1, 3);
  for (const one of [ram!, idle!, stale!]) one.has("host", 1);
  ram!.has("device", 1);
  busy.set(ram!.id, 50);
  table.setState(stale!.id, "stale");
  const found = await ask(there, "asker", [1, 2, 3, 4]);
  expect(found?.map((names) => names.map(String))).toEqual([
    ["idle", "ram", "ssd", "stale"],
    ["ssd"],
    [],
    [],
  ]);
  expect(service.stats).toMatchObject({ answered: 1, keys: 4, found: 2 });
});

test("the requesting worker and workers without the namespace are excluded", async () => {
  const { here, there } = await ends();
  const { service, worker } = room(here);
  using _service = service;
  worker("a").has("host", 1);
  worker("b", [{ kind: "tokens", model: "m", blockTokens: 16 }]).has("host", 1);
  expect(await ask(there, "a", [1])).toEqual([[]]);
  expect(await ask(there, "c", [1])).toEqual([["a" as WorkerId]]);
  expect(await ask(there, "c", [1], new Uint8Array(32))).toEqual([[]]);
});

test("questions that are none, of other clusters or too many get no answer", async () => {
  const { here, there } = await ends();
  const clock = new ManualClock();
  const { service } = room(here, clock, 3);
  using _service = service;
  const send = (text: string) =>
    there.request(LOCATE_SUBJECT, Buffer.from(text), { timeoutMs: 20 });
  const question = { version: 1, worker_id: "a", namespace: NAMESPACE.toHex(), keys: [] };
  const ours = JSON.stringify({ ...question, cluster: "hearth" });
  for (const text of ["[", JSON.stringify({ ...question, cluster: "other" })]) {
    expect((await send(text)).kind).toBe("timeout");
  }
  expect((await send(ours)).kind).toBe("reply");
  expect((await send(ours)).kind).toBe("timeout");
  expect(service.stats).toMatchObject({ answered: 1, refused: 2, dropped: 1 });
  clock.advance(1_000);
  expect((await send(ours)).kind).toBe("reply");
});

describeNats("over NATS", () => {
  test("a host querying two routers gets one answer for a thousand keys", async () => {
    const server = await NatsServer.start();
    const buses = await Promise.all(
      [1, 2, 3].map(() => openBus({ url: server.tcpUrl, name: "locate", ...basics() })),
    );
    try {
      const [asker, ...routers] = buses;
      for (const bus of buses) expect(await bus.connected(5_000)).toBe(true);
      const rooms = routers.map((bus) => room(bus));
      for (const { worker } of rooms) worker("a").has("host", ...Array(1_000).keys());
      for (const bus of buses) await bus.flush(5_000);
      const found = await ask(asker!, "c", [...Array(1_500).keys()]);
      expect(found?.length).toBe(1_500);
      expect(found?.filter((names) => String(names) === "a").length).toBe(1_000);
      await waitFor(
        () => rooms.reduce((sum, { service }) => sum + service.stats.answered, 0) === 2,
      );
      for (const { service } of rooms) service[Symbol.dispose]();
    } finally {
      await Promise.all(buses.map((bus) => bus.close(100)));
      await server[Symbol.asyncDispose]();
    }
  });
});
