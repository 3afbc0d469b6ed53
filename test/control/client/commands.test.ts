import { describe, expect, test } from "bun:test";
import {
  flush,
  newCommandId,
  pause,
  pin,
  prune,
  renewLease,
  retain,
  revokeLease,
  think,
  unpin,
  warm,
} from "hearth/client";
import { createLocalBus, LocalHub } from "../../../src/bus/index.ts";
import { connectControl } from "../../../src/control/client/index.ts";
import { COMMAND_LIMITS, ControlSubscriber } from "../../../src/control/index.ts";
import { seededRandom, stringifyJson, systemClock } from "../../../src/core/index.ts";
import { waitFor } from "../../support/index.ts";
import { LIMITS, PlaneKit } from "../plane-kit.ts";

test("each command has the members and order of the wire format", () => {
  const lines = [
    warm(["abc123", "def456"]),
    warm([1], { target: "GPU", sources: ["node-2"] }),
    prune(1234567890),
    pin([111, 222, 333]),
    pin([-9223372036854775808n], { ttl_seconds: 60 }),
    unpin([18446744073709551615n], { owner: "a" }),
    retain([1], 50, { retain_seconds: 600 }),
    think([444, 555], true),
    think([444, 555], false),
    pause([666, 777], "session-abc", 3600),
    pause([666], "session-abc"),
    renewLease("session-abc", 7200),
    revokeLease("a", { id: "1", issuer: "r", epoch: 2n, seq: 3, not_after: 4.5 }),
    flush(),
  ].map((command) => stringifyJson(command));
  expect(lines).toEqual([
    '{"type":"Warm","block_keys":["abc123","def456"],"target_tier":"CPU_TIER1"}',
    '{"type":"Warm","block_keys":[1],"target_tier":"GPU","sources":["node-2"]}',
    '{"type":"Prune","after_block_hash":1234567890}',
    '{"type":"Cache","block_hashes":[111,222,333],"pin":true}',
    '{"type":"Cache","block_hashes":[-9223372036854775808],"pin":true,"ttl_seconds":60}',
    '{"type":"Cache","block_hashes":[18446744073709551615],"pin":false,"owner":"a"}',
    '{"type":"Cache","block_hashes":[1],"retain":50,"retain_seconds":600}',
    '{"type":"Think","block_hashes":[444,555],"transient":true}',
    '{"type":"Think","block_hashes":[444,555],"transient":false}',
    '{"type":"Pause","block_hashes":[666,777],"ttl_seconds":3600,"lease_id":"session-abc"}',
    '{"type":"Pause","block_hashes":[666],"ttl_seconds":null,"lease_id":"session-abc"}',
    '{"type":"RenewLease","lease_id":"session-abc","new_ttl_seconds":7200}',
    '{"type":"RevokeLease","lease_id":"a","id":"1","issuer":"r","epoch":2,"seq":3,"not_after":4.5}',
    '{"type":"Flush"}',
  ]);
});

describe("a number that is not a block hash", () => {
  test.each([2 ** 53, 0.5, Number.NaN, 2n ** 64n, -(2n ** 63n) - 1n])("%p is refused", (block) => {
    expect(() => pin([block])).toThrow("is not a valid 64-bit block hash");
  });
});

test("ids have 128 random bits", () => {
  const ids = new Set(Array.from({ length: 1_000 }, () => newCommandId()));
  expect(ids.size).toBe(1_000);
  for (const id of ids) expect(id).toMatch(/^[0-9a-f]{32}$/);
  expect(newCommandId(seededRandom(1))).toBe(newCommandId(seededRandom(1)));
});

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
  const subscriber = new ControlSubscriber({
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

describe("a command above the maximum number of blocks", () => {
  test("is sent in parts and answered with one receipt", async () => {
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

  test("is partial if a later part is rejected, and names its blocks", async () => {
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

  test("cannot have a seq: each part would need its own", async () => {
    await using stage = await fleet();
    const sent = stage.client.send("w1", pin(blocks, { epoch: 1, seq: 1 }));
    expect(sent).rejects.toMatchObject({ code: "LIMIT" });
    await sent.catch(() => undefined);
  });
});
