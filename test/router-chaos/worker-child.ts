/** A worker: a real publisher, and beside it plain sets of what it really has. */
import type { PublishOptions } from "../../src/bus/index.ts";
import { randomBelow, seededRandom, systemClock, type WorkerId } from "../../src/core/index.ts";
import { BusPublisher, EngineBlockSet, ResidencyLog } from "../../src/events/publishing/index.ts";
import type { ResidencyChange, ResidencyTier } from "../../src/observability/activity/index.ts";
import { chaosBus, obey, specOf, tell } from "./child-side.ts";
import { contentOf, digestOf, emptySets, hashOf } from "./content.ts";
import type { WorkerSpec } from "./messages.ts";

const FAMILIES = 40;
const CHURN_MS = 4;
const CAPS: Readonly<Record<ResidencyTier, number>> = { device: 800, host: 800, disk: 1_500 };

const spec = specOf<WorkerSpec>();
const random = seededRandom(spec.seed);
const below = (limit: number) => randomBelow(random, limit);
const bus = chaosBus(spec.url, spec.name);
const sets = emptySets();
const held = new EngineBlockSet(1_000_000);
const residency = new ResidencyLog({
  source: { worker: spec.name as WorkerId, rank: 0, incarnation: BigInt(spec.incarnation) },
  ring: { changesMax: 512, blocksMax: 100_000 },
  ...{ mode: "ring", everyMs: 250, held: [held] },
  spaces: () => [{ kind: "tokens", model: "m", blockTokens: 16 }],
  flush: () => undefined,
});
let isChurning = false;
let wire = { drop: 0, double: 0, hold: 0 };

misbehave();
fromDisk(spec.diskBlocks);
const publisher = new BusPublisher({
  ...{ residency, bus, cluster: "chaos", clock: systemClock, sendsBatches: true },
});
systemClock.every(CHURN_MS, () => {
  if (!isChurning) return;
  for (let count = below(4); count >= 0; count--) step();
});
obey((order) => {
  if (order.order === "churn") isChurning = order.on;
  else if (order.order === "wire") wire = order;
  else {
    const content = contentOf(sets);
    const blocks = held.blocks;
    const digest = digestOf(content);
    tell({ id: order.id, digest, blocks, content: order.full ? content : null });
  }
});
await bus.connected(10_000);
publisher.beat();
tell("ready");

/** Messages with events are lost, doubled and held back, as the order says. */
function misbehave(): void {
  const { publish } = bus;
  const isHit = (share: number) => random.u32() / 2 ** 32 < share;
  bus.publish = (subject: string, data: Uint8Array, options?: PublishOptions) => {
    const send = () => publish.call(bus, subject, data, options);
    if (!subject.startsWith("kv-events-chaos.")) return send();
    if (isHit(wire.drop)) return "sent";
    if (isHit(wire.double)) send();
    if (!isHit(wire.hold)) return send();
    systemClock.after(1 + below(40), send);
    return "queued";
  };
}

function fromDisk(blocks: number): void {
  const family = below(FAMILIES);
  const hashes = BigUint64Array.from({ length: blocks }, (_, at) => hashOf(family, at));
  for (const hash of hashes) sets.disk.add(hash);
  held.apply([{ kind: "stored", tier: "disk", parent: null, hashes, tokenHashes: null }]);
}

function step(): void {
  const dice = below(100);
  if (dice < 50) prompt();
  else if (dice < 75) move("device", "host");
  else if (dice < 90) move("host", "disk");
  else if (dice < 99) drop("disk", below(60));
  else clear();
  for (const tier of ["device", "host", "disk"] as const) {
    const over = sets[tier].size - CAPS[tier];
    if (over > 0) drop(tier, over);
  }
}

/** Blocks of one prompt come onto the GPU, some of which were there. */
function prompt(): void {
  const family = below(FAMILIES);
  const from = below(20);
  const hashes = BigUint64Array.from({ length: 1 + below(30) }, (_, at) =>
    hashOf(family, from + at),
  );
  for (const hash of hashes) sets.device.add(hash);
  const parent = from === 0 ? null : hashOf(family, from - 1);
  push({ kind: "stored", tier: "device", parent, hashes, tokenHashes: null });
}

function some(tier: ResidencyTier, count: number): BigUint64Array {
  const all = [...sets[tier]];
  const from = below(Math.max(1, all.length - count));
  return BigUint64Array.from(all.slice(from, from + count));
}

function move(from: ResidencyTier, to: ResidencyTier): void {
  const hashes = some(from, 1 + below(20));
  if (hashes.length === 0) return;
  for (const hash of hashes) {
    sets[from].delete(hash);
    sets[to].add(hash);
  }
  push(
    { kind: "stored", tier: to, parent: null, hashes, tokenHashes: null },
    { kind: "removed", tier: from, hashes },
  );
}

function drop(tier: ResidencyTier, count: number): void {
  const hashes = some(tier, count);
  if (hashes.length === 0) return;
  for (const hash of hashes) sets[tier].delete(hash);
  push({ kind: "removed", tier, hashes });
}

function clear(): void {
  sets.device.clear();
  push({ kind: "cleared", tier: "device" });
}

function push(...changes: ResidencyChange[]): void {
  residency.push(held.apply(changes));
}
