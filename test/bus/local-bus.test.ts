import { expect, test } from "bun:test";
import { createLocalBus, LocalHub } from "../../src/bus/index.ts";
import { ManualClock, waitFor } from "../support/index.ts";
import { basics, bytes, text } from "./bus-bench.ts";
import { busContract } from "./bus-contract.ts";

busContract("a hub in the process", async () => {
  const hub = new LocalHub();
  return {
    open: (parts) => createLocalBus(hub, parts),
    goDown: async () => hub.goDown(),
    comeUp: async () => hub.comeUp(),
    payloadBytesMax: hub.payloadBytesMax,
    [Symbol.asyncDispose]: async () => undefined,
  };
});

test("two buses that answer each other endlessly do not block the event loop", async () => {
  const hub = new LocalHub();
  const bus = createLocalBus(hub, basics());
  let passes = 0;
  bus.subscribe("ping", () => void bus.publish("pong", bytes("x")));
  bus.subscribe("pong", () => {
    passes++;
    bus.publish("ping", bytes("x"));
  });
  await bus.connected(5_000);
  bus.publish("ping", bytes("x"));
  await waitFor(() => passes > 10_000);
  await bus.close(0);
});

test("buses of different hubs are isolated", async () => {
  const [here, there] = [new LocalHub(), new LocalHub()].map((hub) =>
    createLocalBus(hub, basics()),
  );
  await Promise.all([here!.connected(5_000), there!.connected(5_000)]);
  const seen: string[] = [];
  there!.subscribe("a", (message) => void seen.push(text(message)));
  const asked = await here!.request("a", bytes("x"), { timeoutMs: 5_000 });
  expect(asked).toEqual({ kind: "noResponders" });
  expect(seen).toEqual([]);
  await Promise.all([here!.close(0), there!.close(0)]);
});

test("replies are sent only to allowed prefixes and received in the configured inbox", async () => {
  const hub = new LocalHub();
  const agent = createLocalBus(hub, { ...basics(), replyPrefixes: ["_INBOX"] });
  const router = createLocalBus(hub, { ...basics(), inboxPrefix: "_INBOX_router" });
  await Promise.all([agent.connected(5_000), router.connected(5_000)]);
  const replies: (string | null)[] = [];
  agent.subscribe("ask", ({ reply }) => {
    replies.push(reply);
    if (reply !== null) agent.publish(reply, bytes("answer"));
  });
  agent.serve({ name: "s", version: "1.2.3", description: "d", metadata: {}, endpoints: [] });
  const stolen: string[] = [];
  router.subscribe("kv-events-x", (message) => void stolen.push(text(message)));
  await Promise.all([agent.flush(5_000), router.flush(5_000)]);
  for (const subject of ["ask", "$SRV.PING", "$SRV.STATS.s"]) {
    for (const reply of ["kv-events-x", "kv-control-w", "$JS.API.x"]) {
      router.publish(subject, bytes("x"), { reply });
    }
  }
  const asked = await router.request("ask", bytes("x"), { timeoutMs: 5_000 });
  expect(asked.kind).toBe("reply");
  expect(replies.slice(0, -1)).toEqual([null, null, null]);
  expect(replies.at(-1)).toStartWith("_INBOX_router.");
  expect(stolen).toEqual([]);
  await Promise.all([agent.close(0), router.close(0)]);
});

test("discovery limits the rate of its answers and counts dropped requests", async () => {
  const hub = new LocalHub();
  const parts = { ...basics(), clock: new ManualClock() };
  const [bus, client] = [createLocalBus(hub, parts), createLocalBus(hub, basics())];
  bus.serve({ name: "n", version: "1.0.0", description: "d", metadata: {}, endpoints: [] });
  await Promise.all([bus.connected(5_000), client.connected(5_000)]);
  let answers = 0;
  client.subscribe("_INBOX.answers", () => void answers++);
  for (let i = 0; i < 5_000; i++)
    client.publish("$SRV.PING", bytes(""), { reply: "_INBOX.answers" });
  await waitFor(() => answers + bus.state.ignoredMessages === 5_000);
  expect(answers).toBe(200);
  await Promise.all([bus.close(0), client.close(0)]);
});
