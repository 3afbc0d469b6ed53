import { expect, test } from "bun:test";
import { waitFor } from "../../support/index.ts";
import { IntakeRoom } from "./ingest-kit.ts";

test("a worker without blocks is known after its first heartbeat", async () => {
  await using room = await new IntakeRoom().ready();
  const worker = room.worker({ worker: "a" });
  worker.beat();
  await waitFor(() => room.agrees(worker));
  expect(worker.questions).toEqual([]);
  worker.send(worker.store("device", 1n, 2n));
  await waitFor(() => worker.sequence === 1 && room.agrees(worker));
  expect(room.target("a")).toMatchObject({ model: "m", state: "live", role: "both" });
});

test("earlier blocks of a worker are requested while new changes are buffered", async () => {
  await using room = await new IntakeRoom().ready();
  const worker = room.worker({ worker: "a", partBlocks: 2 });
  worker.store("device", 1n, 2n, 3n, 4n, 5n);
  worker.instead = ({ kind }) => {
    if (kind === "snapshot") worker.send(worker.store("host", BigInt(100 + worker.sequence)));
    return undefined;
  };
  worker.beat();
  await waitFor(() => room.agrees(worker));
  expect(room.ingest.stats()).toMatchObject({
    known: 1,
    snapshots: 1,
    ranges: 0,
    pendingHashes: 0,
  });
});

test("a lost batch is asked for; a doubled and an overtaken one are not", async () => {
  await using room = await new IntakeRoom({ reorderMs: 30 }).ready();
  const worker = room.worker({ worker: "a" });
  worker.beat();
  await waitFor(() => room.agrees(worker));
  const [first, second, third] = [1n, 2n, 3n].map((hash) => worker.store("device", hash));
  for (const batch of [first!, third!, second!, second!]) worker.send(batch);
  await waitFor(() => room.agrees(worker));
  expect(room.ingest.stats()).toMatchObject({ gaps: 0, ranges: 0, duplicates: 1, early: 1 });
  worker.store("device", 4n);
  worker.send(worker.remove("device", 1n));
  await waitFor(() => room.agrees(worker));
  expect(room.ingest.stats()).toMatchObject({ gaps: 1, ranges: 1, snapshots: 0 });
});

test("a lost last batch is noticed by the heartbeat", async () => {
  await using room = await new IntakeRoom().ready();
  const worker = room.worker({ worker: "a" });
  worker.beat();
  await waitFor(() => room.agrees(worker));
  worker.store("device", 4n);
  worker.beat();
  await waitFor(() => room.agrees(worker));
  expect(room.ingest.stats()).toMatchObject({ gaps: 1, ranges: 1, snapshots: 0 });
});

test("a target is not known while something of it is missing", async () => {
  await using room = await new IntakeRoom().ready();
  const worker = room.worker({ worker: "a" });
  worker.beat();
  await waitFor(() => room.agrees(worker));
  worker.instead = () => null;
  worker.store("device", 4n);
  worker.send(worker.store("device", 5n));
  await waitFor(() => room.target("a")?.isKnown === false);
  worker.instead = () => undefined;
  await waitFor(() => room.agrees(worker));
});

test("events that left the ring are replaced by a snapshot", async () => {
  await using room = await new IntakeRoom().ready();
  const worker = room.worker({ worker: "a", ring: 2 });
  worker.beat();
  await waitFor(() => room.agrees(worker));
  for (let hash = 1n; hash < 10n; hash++) worker.store("host", hash);
  worker.send(worker.store("host", 10n));
  await waitFor(() => room.agrees(worker));
  expect(room.ingest.stats()).toMatchObject({ ranges: 1, snapshots: 1 });
});

test("a later run replaces the one before, and late batches of that are ignored", async () => {
  await using room = await new IntakeRoom().ready();
  const worker = room.worker({ worker: "a" });
  worker.beat();
  const old = worker.store("device", 1n, 2n);
  worker.store("disk", 7n);
  const late = worker.heartbeat();
  worker.beat();
  await waitFor(() => room.agrees(worker));
  worker.restart();
  worker.beat();
  await waitFor(() => room.agrees(worker));
  expect(worker.digests()[2]!.blocks).toBe(1);
  worker.send(old);
  worker.beat(late);
  worker.send(worker.store("device", 3n));
  await waitFor(() => room.agrees(worker));
  expect(room.ingest.stats()).toMatchObject({ incarnations: 1, stale: 2 });
});

test("a snapshot that differs from the source's digests is replaced", async () => {
  await using room = await new IntakeRoom().ready();
  const worker = room.worker({ worker: "a" });
  worker.beat();
  worker.send(worker.store("device", 1n));
  await waitFor(() => room.agrees(worker));
  worker.content.get("device")!.add(99n);
  worker.beat();
  await waitFor(() => room.agrees(worker));
  expect(room.ingest.stats()).toMatchObject({ mismatches: 1, snapshots: 1 });
});

test("parts of different snapshots are not combined: the old content stays until one is complete", async () => {
  await using room = await new IntakeRoom().ready();
  const worker = room.worker({ worker: "a", partBlocks: 1, ring: 1 });
  worker.beat();
  worker.send(worker.store("device", 1n));
  await waitFor(() => room.agrees(worker));
  const before = room.index.digests(room.target("a")!.id);
  let asked = 0;
  worker.instead = (question) => {
    if (question.kind !== "snapshot" || question.part === 0) return undefined;
    asked++;
    const runs = [{ tier: "host" as const, parent: null, hashes: BigUint64Array.of(5n) }];
    const { source, sequence } = worker;
    const odd = { snapshot: question.snapshot!, part: question.part, isLast: true, runs };
    return { kind: "snapshot", source, isDeviceKnown: true, ...odd, sequence: sequence + 1 };
  };
  for (let hash = 2n; hash < 6n; hash++) worker.store("host", hash);
  worker.beat();
  await waitFor(() => asked > 1);
  expect(room.target("a")!.isKnown).toBe(false);
  expect(room.index.digests(room.target("a")!.id)).toEqual(before);
  worker.instead = () => undefined;
  await waitFor(() => room.agrees(worker));
});

test("a worker is known once it reports its device completely", async () => {
  await using room = await new IntakeRoom().ready();
  const worker = room.worker({ worker: "a" });
  worker.isDeviceKnown = false;
  worker.beat();
  worker.send(worker.store("device", 1n));
  const isApplied = () => room.ingest.sources()[0]?.sequence === worker.sequence;
  await waitFor(isApplied);
  const report = () => [room.target("a")!.isKnown, room.ingest.stats().known];
  expect(report()).toEqual([false, 1]);
  // Its digests are still compared.
  worker.content.get("device")!.add(99n);
  worker.beat();
  await waitFor(() => room.ingest.stats().snapshots === 1 && room.ingest.stats().known === 1);
  expect(report()).toEqual([false, 1]);
  worker.isDeviceKnown = true;
  worker.beat();
  await waitFor(() => room.target("a")!.isKnown);
  worker.isDeviceKnown = false;
  worker.beat();
  await waitFor(() => !room.target("a")!.isKnown);
});

test("a closing heartbeat removes the worker and a late one does not restore it", async () => {
  await using room = await new IntakeRoom().ready();
  const worker = room.worker({ worker: "a" });
  worker.beat();
  worker.send(worker.store("device", 1n));
  await waitFor(() => room.agrees(worker));
  worker.beat({ isClosing: true });
  await waitFor(() => room.target("a") === null);
  worker.beat();
  await room.settle();
  expect(room.target("a")).toBeNull();
  expect(room.index.stats.blocks).toBe(0);
});

test("no more sources are followed than may be", async () => {
  await using room = await new IntakeRoom({ targetsMax: 2 }).ready();
  for (const name of ["a", "b", "c", "d"]) room.worker({ worker: name }).beat();
  await waitFor(() => room.ingest.stats().overfull === 2);
  expect(room.table.targets.map(({ worker }) => String(worker))).toEqual(["a", "b"]);
});

test("garbage, and events about another worker, are counted and ignored", async () => {
  await using room = await new IntakeRoom().ready();
  const worker = room.worker({ worker: "a" });
  worker.beat();
  await waitFor(() => room.agrees(worker));
  room.workerBus.publish("kv-events-test.a.0", Uint8Array.of(1, 2, 3));
  worker.beat({ source: { ...worker.source, worker: "b" as never } });
  await waitFor(() => room.ingest.stats().refused === 2);
  expect(room.ingest.stats().sources).toBe(1);
});
