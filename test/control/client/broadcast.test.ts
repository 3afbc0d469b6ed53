import { describe, expect, test } from "bun:test";
import { pin, prune } from "../../../src/control/client/index.ts";
import { waitFor } from "../../support/index.ts";
import { encode, receiptOf } from "./fake-worker.ts";
import { type Kit, kit } from "./kit.ts";

async function three(fleet: Kit) {
  return Promise.all(["node-b", "node-a", "node-c"].map((name) => fleet.worker(name)));
}

describe("workers", () => {
  test("are those that answer discovery, each once, by name", async () => {
    await using fleet = await kit();
    const [worker] = await three(fleet);
    fleet.bus.subscribe("$SRV.PING.hearth-agent", ({ reply }) => {
      const other = [
        null,
        "x",
        {},
        { name: "hearth-agent" },
        { name: "hearth-agent", metadata: 1 },
      ];
      for (const poison of other) fleet.bus.publish(reply!, encode(poison));
      fleet.bus.publish(reply!, worker!.ping("something-else"));
      fleet.bus.publish(reply!, worker!.ping());
    });
    expect(await fleet.settle(fleet.client.workers())).toEqual(
      ["node-a", "node-b", "node-c"].map((id) => ({ id, version: "1.2.3", incarnation: "77" })),
    );
  });

  test("none: said at once", async () => {
    await using fleet = await kit();
    expect(await fleet.client.workers(60_000)).toEqual([]);
    expect(fleet.clock.monotonicMs()).toBe(0);
  });
});

describe("broadcast", () => {
  test("one message reaches all, and all answer", async () => {
    await using fleet = await kit("router-1");
    const workers = await three(fleet);
    const result = await fleet.settle(fleet.client.broadcast(prune(5)));
    expect(result).toEqual({
      receipts: ["node-a", "node-b", "node-c"].map((name) =>
        receiptOf(name, workers[0]!.received[0]!),
      ),
      silent: [],
      why: null,
    });
    expect(workers.map(({ received }) => received.length)).toEqual([1, 1, 1]);
    expect(new Set(workers.map(({ received }) => received[0]!.id)).size).toBe(1);
    // The last of three answers ends it: nobody else is expected.
    expect(fleet.clock.monotonicMs()).toBeLessThanOrEqual(1_200);
  });

  test("who is silent is asked again by name with the same id, one effect each", async () => {
    await using fleet = await kit();
    const workers = await three(fleet);
    const [deaf, mute] = workers;
    // One never got the broadcast; one did what it said and its answer was lost.
    deaf!.behave = ({ command, nth }, answer) => {
      if (nth > 1) answer(deaf!.carryOut(command));
    };
    mute!.behave = ({ command, nth }, answer) => {
      const receipt = mute!.carryOut(command);
      if (nth > 1) answer(receipt);
    };
    const result = await fleet.settle(fleet.client.broadcast(pin([1])));
    expect(result.silent).toEqual([]);
    expect(result.receipts.map(({ worker_id }) => worker_id)).toEqual([
      "node-a",
      "node-b",
      "node-c",
    ]);
    const ids = new Set(workers.flatMap(({ received }) => received.map(({ id }) => id)));
    expect(ids.size).toBe(1);
    for (const { carriedOut } of workers) expect(carriedOut).toHaveLength(1);
    expect(workers[2]!.received).toHaveLength(1);
  });

  test("who stays silent is named at the deadline", async () => {
    await using fleet = await kit();
    const workers = await three(fleet);
    workers[0]!.behave = () => undefined;
    const wish = fleet.client.broadcast(pin([1]), { deadlineMs: 9_000 });
    const result = await fleet.settle(wish);
    expect(result.silent).toEqual(["node-b"]);
    expect(result.receipts.map(({ worker_id }) => worker_id)).toEqual(["node-a", "node-c"]);
    expect(fleet.clock.monotonicMs()).toBeWithin(9_000, 9_200);
  });

  test("who was not found but answers is there too", async () => {
    await using fleet = await kit();
    const workers = await three(fleet);
    workers[0]!.isFound = false;
    workers[2]!.behave = ({ command }, answer) => {
      fleet.clock.after(500, () => answer(workers[2]!.carryOut(command)));
    };
    const { receipts, silent } = await fleet.settle(fleet.client.broadcast(pin([1])));
    expect(silent).toEqual([]);
    expect(receipts.map(({ worker_id }) => worker_id)).toEqual(["node-a", "node-b", "node-c"]);
    for (const worker of workers) worker.isFound = false;
    const again = await fleet.settle(fleet.client.broadcast(pin([2])));
    expect(again).toMatchObject({ silent: [], why: null });
    expect(again.receipts).toHaveLength(3);
  });

  test("what workers take from no broadcast, nobody gets by name either", async () => {
    await using fleet = await kit();
    const workers = await three(fleet);
    workers[0]!.behave = () => undefined;
    for (const worker of workers.slice(1)) {
      const refused = { status: "rejected", reason: "broadcast_refused: Cache" } as const;
      worker.behave = ({ command }, answer) => answer(receiptOf(worker.name, command, refused));
    }
    const { receipts, silent } = await fleet.settle(fleet.client.broadcast(pin([1])));
    expect(receipts).toHaveLength(2);
    expect(silent).toEqual(["node-b"]);
    expect(workers[0]!.received).toHaveLength(1);
  });

  test("nobody there, and nobody to carry it: said why", async () => {
    await using fleet = await kit();
    const alone = await fleet.settle(fleet.client.broadcast(pin([1])));
    expect(alone).toEqual({ receipts: [], silent: [], why: "no worker answered discovery" });
    fleet.hub.goDown();
    await waitFor(() => fleet.bus.state.status !== "connected");
    const none = await fleet.settle(fleet.client.broadcast(pin([1]), { deadlineMs: 3_000 }));
    expect(none).toMatchObject({ receipts: [], silent: [] });
    expect(none.why).toContain("no connection to the broker");
  });
});
