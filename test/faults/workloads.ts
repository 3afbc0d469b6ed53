import type { SsdKitOptions } from "../store/ssd/ssd-kit.ts";
import type { World } from "./world.ts";

/**
 * What a store does while a call of it fails. Outcomes are not judged here: the world does that.
 */
export interface Workload {
  readonly name: string;
  readonly options?: Partial<SsdKitOptions>;
  run(world: World): Promise<void>;
}

const names = (count: number, prefix = "x") => Array.from({ length: count }, (_, i) => prefix + i);
const CHAIN = ["a", "a/b", "a/b/c"];

export const WORKLOADS: readonly Workload[] = [
  {
    name: "first-write",
    async run(world) {
      await world.open();
      await world.put(...CHAIN, "z");
      await world.settle();
    },
  },
  {
    name: "promotion",
    async run(world) {
      await world.open();
      await world.put(...CHAIN, "z");
      await world.settle();
      world.leaveRam();
      await world.load(...CHAIN, "z");
      await world.settle();
      await world.load("z", "a");
    },
  },
  {
    name: "eviction",
    options: { capacityBytes: 6 * 12_288, slots: 4 },
    async run(world) {
      await world.open();
      await world.putEach(...names(14));
      await world.load(...names(14).slice(10));
    },
  },
  {
    name: "ttl",
    options: { ttlMs: 3_000 },
    async run(world) {
      await world.open();
      await world.put(...CHAIN);
      await world.settle();
      await world.pass(5_000);
      await world.put("a");
      await world.settle();
    },
  },
  {
    name: "clean-stop",
    async run(world) {
      await world.open();
      await world.put(...CHAIN, "z");
      await world.settle();
      await world.restart("stop");
      await world.load(...CHAIN, "z");
    },
  },
  {
    name: "kill",
    async run(world) {
      await world.open();
      await world.put(...CHAIN);
      await world.settle();
      await world.kit?.index.flush();
      await world.put("y", "z");
      await world.settle();
      await world.restart("kill");
      await world.load(...CHAIN, "y", "z");
    },
  },
  {
    name: "lost-index",
    async run(world) {
      await world.open();
      await world.put(...CHAIN, ...names(4));
      await world.settle();
      await world.restart("lost index");
      await world.load(...CHAIN, ...names(4));
    },
  },
  {
    name: "persist",
    options: { writePolicy: "write_back" },
    async run(world) {
      await world.open();
      await world.put(...CHAIN, "z");
      await world.persist();
      await world.restart("kill");
      await world.load(...CHAIN, "z");
    },
  },
  {
    name: "write-back",
    options: { writePolicy: "write_back", slots: 4 },
    async run(world) {
      await world.open();
      await world.putEach(...names(10));
      await world.load(...names(10).slice(0, 4));
      await world.settle();
      await world.persist();
    },
  },
  {
    name: "purge",
    async run(world) {
      await world.open();
      await world.put(...CHAIN, "y", "z");
      await world.settle();
      await world.purge("a/b/c", "z");
      await world.load("z");
      await world.restart("kill");
      await world.load("a/b/c", "z", "y");
    },
  },
  {
    name: "purge-unwritten",
    async run(world) {
      await world.open();
      await world.put("y", "z");
      await world.purge("y", "z");
      await world.restart("kill");
      await world.load("y", "z");
    },
  },
  {
    name: "replace",
    async run(world) {
      await world.open();
      await world.put("a", "b");
      await world.settle();
      world.leaveRam();
      await world.put({ name: "a", bytes: 7_000 });
      await world.settle();
      world.leaveRam();
      await world.load("a", "b");
    },
  },
  {
    name: "damage",
    async run(world) {
      await world.open();
      await world.put("a", "b", "c");
      await world.settle();
      world.leaveRam();
      world.damage("a");
      await world.load("a", "b", "c");
      await world.settle();
      await world.put("a");
      await world.settle();
    },
  },
  {
    name: "scrub",
    options: { scrubBytesPerS: 20_000 },
    async run(world) {
      await world.open();
      await world.put("a", "b", "c");
      await world.settle();
      world.leaveRam();
      world.damage("b");
      await world.pass(3_000);
    },
  },
];
