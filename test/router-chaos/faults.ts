import { type Random, randomBelow } from "../../src/core/index.ts";
import type { Child } from "./child.ts";
import { BAD_WIRE, type Fleet } from "./fleet.ts";
import type { RouterReport, WorkerReport } from "./messages.ts";

type AnyChild = Child<WorkerReport | RouterReport>;

/** Something that goes wrong, and is over when it resolves. */
export interface Fault {
  readonly name: string;
  run(fleet: Fleet, random: Random): Promise<void>;
}

const pick = <T>(random: Random, list: readonly T[]): T => list[randomBelow(random, list.length)]!;
const wait = (random: Random, most: number) => Bun.sleep(50 + randomBelow(random, most));

async function revive(fleet: Fleet, child: AnyChild): Promise<void> {
  await child.start(fleet.seed());
  child.order({ order: "churn", on: true });
  child.order(BAD_WIRE);
}

async function killOne(fleet: Fleet, random: Random, child: AnyChild): Promise<void> {
  await child.kill();
  await wait(random, 400);
  await revive(fleet, child);
}

async function away(child: AnyChild, random: Random, how: "cut" | "silence"): Promise<void> {
  child.proxy[how]();
  await wait(random, 1_500);
  child.proxy.heal();
}

export const FAULTS: readonly Fault[] = [
  {
    name: "a worker is killed and comes back",
    run: (fleet, random) => killOne(fleet, random, pick(random, fleet.workers) as AnyChild),
  },
  {
    name: "a router is killed and comes back",
    run: (fleet, random) => killOne(fleet, random, pick(random, fleet.routers) as AnyChild),
  },
  {
    name: "a worker and a router are killed at once",
    run: async (fleet, random) => {
      const both = [pick(random, fleet.workers), pick(random, fleet.routers)] as AnyChild[];
      await Promise.all(both.map((child) => child.kill()));
      await wait(random, 400);
      await Promise.all(both.map((child) => revive(fleet, child)));
    },
  },
  {
    name: "NATS is killed and comes back",
    run: async (fleet, random) => {
      await fleet.nats.kill();
      await wait(random, 800);
      await fleet.nats.restart();
    },
  },
  {
    name: "a worker is cut off",
    run: (fleet, random) => away(pick(random, fleet.workers) as AnyChild, random, "cut"),
  },
  {
    name: "a router is cut off",
    run: (fleet, random) => away(pick(random, fleet.routers) as AnyChild, random, "cut"),
  },
  {
    name: "the way to a router is silent",
    run: (fleet, random) => away(pick(random, fleet.routers) as AnyChild, random, "silence"),
  },
  {
    name: "a worker stands still",
    run: async (fleet, random) => {
      const child = pick(random, fleet.workers);
      child.freeze();
      await wait(random, 1_500);
      child.thaw();
    },
  },
  {
    name: "a router stands still",
    run: async (fleet, random) => {
      const child = pick(random, fleet.routers);
      child.freeze();
      await wait(random, 2_500);
      child.thaw();
    },
  },
  {
    name: "nothing but lost, doubled and overtaken events",
    run: (_fleet, random) => wait(random, 1_000),
  },
];
