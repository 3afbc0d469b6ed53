import { expect, test } from "bun:test";
import { createLocalBus, LocalHub } from "../../../src/bus/index.ts";
import { waitFor } from "../../support/index.ts";
import { CLUSTER, ScriptedWorker } from "../ingest/scripted-worker.ts";
import { basics, TestRouter } from "./replica-kit.ts";

async function pair() {
  const hub = new LocalHub();
  const [a, b] = await Promise.all([new TestRouter(hub).ready(), new TestRouter(hub).ready()]);
  for (const router of [a, b]) router.put("w");
  await waitFor(() => a.group.stats.replicas === 1 && b.group.stats.replicas === 1);
  return { hub, a, b };
}

test("all replicas count what one routes and free what any frees", async () => {
  const { a, b } = await pair();
  await using _a = a;
  await using _b = b;
  a.route("one", "w");
  b.route("two", "w", 6);
  const both = "2 requests, 6 blocks, 160 tokens";
  await waitFor(() => a.loadOf("w") === both && b.loadOf("w") === both);
  a.group.load.markPrefillComplete("two");
  await waitFor(() => b.loadOf("w") === "2 requests, 6 blocks, 64 tokens");
  a.group.load.output("one", 40);
  await waitFor(() => b.loadOf("w") === "2 requests, 9 blocks, 0 tokens");
  b.group.load.free("one");
  a.group.load.free("two");
  const none = "0 requests, 0 blocks, 0 tokens";
  await waitFor(() => a.loadOf("w") === none && b.loadOf("w") === none);
});

test("a router that joins late receives the active requests", async () => {
  const hub = new LocalHub();
  await using a = await new TestRouter(hub).ready();
  a.put("w");
  for (let n = 0; n < 600; n++) a.route(`r${n}`, "w", 2);
  for (let n = 0; n < 300; n++) a.group.load.markPrefillComplete(`r${n}`);
  await using b = await new TestRouter(hub).ready();
  b.put("w");
  await waitFor(() => b.loadOf("w") === a.loadOf("w"));
  expect(b.loadOf("w")).toBe("600 requests, 2 blocks, 9600 tokens");
  expect(b.group.stats.lists).toBe(1);
});

test("news that were lost are noticed by counts, and made good", async () => {
  const { a, b } = await pair();
  await using _a = a;
  await using _b = b;
  a.route("kept", "w");
  a.route("freed", "w");
  await waitFor(() => b.group.load.requests === 2);
  const { publish } = a.bus;
  a.bus.publish = (subject, ...rest) =>
    subject.endsWith("active_sequences_events") ? "sent" : publish.call(a.bus, subject, ...rest);
  a.group.load.free("freed");
  a.route("new", "w", 9);
  a.bus.publish = publish;
  await waitFor(() => b.loadOf("w") === a.loadOf("w"));
  expect(b.group.load.find("freed")).toBeNull();
  expect(b.group.load.find("new")).not.toBeNull();
});

test("a free that only one router missed reaches it by the next list", async () => {
  const { hub, a, b } = await pair();
  await using _a = a;
  await using _b = b;
  a.route("one", "w");
  await waitFor(() => b.group.load.requests === 1);
  const { publish } = b.bus;
  b.bus.publish = () => "sent";
  b.group.load.free("one");
  b.bus.publish = publish;
  expect(a.group.load.requests).toBe(1);
  await using c = await new TestRouter(hub).ready();
  c.put("w");
  await waitFor(() => a.group.load.requests === 0 && c.group.load.requests === 0);
});

test("a free that overtakes the word of its beginning leaves nothing behind", async () => {
  const { a, b } = await pair();
  await using _a = a;
  await using _b = b;
  const { publish } = a.bus;
  const held: (() => void)[] = [];
  a.bus.publish = (...args) => {
    if (!args[0].endsWith("active_sequences_events")) return publish.apply(a.bus, args);
    held.push(() => void publish.apply(a.bus, args));
    return "sent";
  };
  a.route("one", "w");
  a.group.load.free("one");
  a.bus.publish = publish;
  const before = b.group.stats.received;
  for (const send of held.reverse()) send();
  await waitFor(() => b.group.stats.received >= before + 2);
  expect(b.group.load.requests).toBe(0);
});

test("when a router dies the others can free its requests, and expire those that are never freed", async () => {
  const hub = new LocalHub();
  const [a, b, c] = await Promise.all(
    [1, 2, 3].map(() => new TestRouter(hub, { orphanMs: 300 }).ready()),
  );
  await using _b = b!;
  await using _c = c!;
  for (const router of [a, b, c]) router!.put("w");
  await waitFor(() => a!.group.stats.replicas === 2);
  for (const id of ["freed", "taken", "left"]) a!.route(id, "w");
  await waitFor(() => b!.group.load.requests === 3 && c!.group.load.requests === 3);
  await a!.die();
  b!.group.load.free("freed");
  c!.group.load.markPrefillComplete("taken");
  await waitFor(() => b!.group.load.requests === 1 && c!.group.load.requests === 1);
  expect(b!.group.load.find("taken")).not.toBeNull();
  expect(b!.group.stats.orphansEnded).toBe(1);
});

test("thresholds set at one router apply at all, also before its workers are known", async () => {
  const { hub, a, b } = await pair();
  await using _a = a;
  await using _b = b;
  const set = {
    activeDecodeBlocksThreshold: 0.85,
    activePrefillTokensThreshold: 1_000,
    activePrefillTokensThresholdFrac: 2.5,
  };
  a.group.publishThresholds("m", set);
  await waitFor(() => b.thresholds.get("m")?.activePrefillTokensThreshold === 1_000);
  expect(b.thresholds.get("m")).toEqual(set);
  await using c = await new TestRouter(hub).ready();
  await waitFor(() => c.group.stats.received > 2);
  expect(c.thresholds.size).toBe(0);
  c.put("w");
  await waitFor(() => c.thresholds.get("m")?.activeDecodeBlocksThreshold === 0.85);
  b.group.publishThresholds("m", { ...set, activePrefillTokensThreshold: null });
  await waitFor(() => a.thresholds.get("m")?.activePrefillTokensThreshold === null);
});

test("a late router takes snapshots from a replica, and repairs wrong entries from the worker", async () => {
  const hub = new LocalHub();
  const workers = createLocalBus(hub, basics);
  const worker = new ScriptedWorker(workers, { worker: "w" });
  await using a = await new TestRouter(hub).ready();
  worker.beat();
  worker.store("device", 1n, 2n, 3n);
  worker.send(worker.store("host", 9n));
  await waitFor(() => a.agrees(worker));
  await using b = await new TestRouter(hub).ready();
  await waitFor(() => b.members.all.some(({ snapshots }) => snapshots.size === 1));
  worker.questions.length = 0;
  worker.beat();
  await waitFor(() => b.agrees(worker));
  expect(b.archive.taken).toBe(1);
  expect(worker.questions).toEqual([]);
  const id = b.table.targets[0]!.id;
  const hashes = BigUint64Array.of(1n);
  b.index.apply([{ target: id, change: { kind: "removed", tier: "device", hashes } }]);
  await waitFor(() => b.agrees(worker));
  expect(worker.questions.some(({ kind }) => kind === "snapshot")).toBe(true);
  expect(a.ingest.stats().doubts + b.ingest.stats().doubts).toBeGreaterThan(0);
  await waitFor(() => a.agrees(worker));
  expect(CLUSTER).toBe("test");
  await workers.close(0);
});

test("request lists for unknown workers are fetched less and less often", async () => {
  const { a, b } = await pair();
  await using _a = a;
  await using _b = b;
  a.put("other");
  a.route("one", "other");
  await waitFor(() => b.group.stats.lists >= 3);
  const [lists, received] = [b.group.stats.lists, b.group.stats.received];
  await waitFor(() => b.group.stats.received > received + 30);
  expect(b.group.stats.lists - lists).toBeLessThan(5);
  b.put("other");
  await waitFor(() => b.loadOf("other") === a.loadOf("other"));
});

test("garbage on the subjects of routers is counted and passed over", async () => {
  const { a, b } = await pair();
  await using _a = a;
  await using _b = b;
  for (const topic of ["state", "active_sequences_events", "output"]) {
    b.bus.publish(`kv-routers-test.${topic}`, Uint8Array.of(0x7b, 1, 2));
  }
  await waitFor(() => a.group.stats.refused === 3);
});
