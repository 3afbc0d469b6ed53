import { describe, expect, test } from "bun:test";
import { createLocalBus, LocalHub } from "../../../src/bus/index.ts";
import { connectControl, pin } from "../../../src/control/client/index.ts";
import { COMMAND_LIMITS, createControlSubscriber } from "../../../src/control/index.ts";
import { seededRandom, systemClock } from "../../../src/core/index.ts";
import { waitFor } from "../../support/index.ts";
import { LIMITS, PlaneKit } from "../plane-kit.ts";

const BLOCKS = 2 * COMMAND_LIMITS.blocksMax + 10;
const blocks = Array.from({ length: BLOCKS }, (_, i) => i + 1);

/** A client and a control plane on one hub. */
async function fleet() {
  const kit = new PlaneKit();
  kit.limits = { ...LIMITS, broadcast: ["Cache"] };
  const hub = new LocalHub();
  const random = seededRandom(3);
  const buses = [0, 1].map(() => createLocalBus(hub, { clock: systemClock, random }));
  await waitFor(() => buses.every(({ state }) => state.status === "connected"));
  const subscriber = createControlSubscriber({
    ...{ bus: buses[0]!, plane: kit.plane, events: kit.events },
    ...{ workerId: "w1", incarnation: 7n, version: "1.2.3", role: "purge", issuer: "nats" },
    ...{ publishReceipts: false, publishEvents: false },
  });
  await buses[0]!.flush(5_000);
  const client = connectControl({ bus: buses[1]!, clock: systemClock, random, issuer: "me" });
  return {
    kit,
    client,
    async [Symbol.asyncDispose]() {
      for (const each of [client, subscriber, ...buses]) await each[Symbol.asyncDispose]();
    },
  };
}

describe("a command with more blocks than one may have", () => {
  test("is sent as several and answered with one receipt, once", async () => {
    await using stage = await fleet();
    const command = pin(blocks, { id: "big" });
    const result = await stage.client.send("w1", command);
    if (result.kind !== "receipt") throw new Error(result.why);
    const { receipt } = result;
    expect(receipt).toMatchObject({ id: "big", status: "ok", counts: { done: BLOCKS } });
    expect(receipt.blocks.map(({ block }) => block)).toEqual(blocks);
    expect(receipt.duplicate).toBeUndefined();
    expect(stage.kit.lifecycle.pins.get(`me/${BLOCKS}`)).toBe(1);
    const again = await stage.client.send("w1", command);
    expect(again).toMatchObject({ receipt: { id: "big", duplicate: true } });
    expect(stage.kit.lifecycle.pins.get(`me/${BLOCKS}`)).toBe(1);
  });

  test("is partial if a later part is rejected, and says which blocks that are", async () => {
    await using stage = await fleet();
    stage.kit.limits = { ...stage.kit.limits, commandsPerSecond: 0, commandsBurst: 2 };
    const result = await stage.client.send("w1", pin(blocks), { deadlineMs: 60_000 });
    if (result.kind !== "receipt") throw new Error(result.why);
    const { receipt } = result;
    expect(receipt.status).toBe("partial");
    expect(receipt.reason).toStartWith("rate_limited: ");
    expect(receipt.counts).toMatchObject({ done: BLOCKS - 10, rejected: 10 });
    expect(receipt.blocks).toHaveLength(BLOCKS);
    expect(receipt.blocks.at(-1)).toMatchObject({ block: BLOCKS, outcome: "rejected" });
  });

  test("reaches all workers by broadcast, with one receipt each", async () => {
    await using stage = await fleet();
    const { receipts, silent } = await stage.client.broadcast(pin(blocks, { id: "all" }));
    expect(silent).toEqual([]);
    expect(receipts).toMatchObject([
      { worker_id: "w1", id: "all", status: "ok", counts: { done: BLOCKS } },
    ]);
  });

  test("cannot have a number of its own: each part would need one", async () => {
    await using stage = await fleet();
    const sent = stage.client.send("w1", pin(blocks, { epoch: 1, seq: 1 }));
    expect(sent).rejects.toMatchObject({ code: "LIMIT" });
    await sent.catch(() => undefined);
  });
});
