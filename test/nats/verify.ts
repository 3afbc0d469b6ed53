import { unpin } from "../../src/control/client/index.ts";
import type { Host } from "./host.ts";
import {
  compareLeases,
  compareOnceAtMost,
  comparePins,
  compareRetained,
  type Oracle,
} from "./oracle.ts";

/** Holds what the agent has against what all receipts together say. Takes all pins away. */
export async function verifyHolds(host: Host, oracle: Oracle): Promise<void> {
  const leases = await host.holds("lease");
  const nowMs = performance.now();
  const left = new Map(leases.map((lease) => [lease.name!, lease.remaining_seconds!]));
  compareLeases(oracle, left, nowMs);
  const retains = Map.groupBy(await host.holds("retain"), ({ owner }) => owner);
  const priorities = [...retains].map(([owner, holds]) => {
    return [owner, holds.map(({ priority }) => priority!)] as const;
  });
  compareRetained(oracle, new Map(priorities));
  for (const [hash, isMarked] of oracle.marked) {
    const found = await host.isTransient(hash);
    const what = `block ${hash} is ${found ? "" : "not "}marked as transient`;
    if (found !== isMarked) oracle.find(found === null ? "lost" : "double", what);
  }
  await verifyPins(host, oracle);
}

async function verifyPins(host: Host, oracle: Oracle): Promise<void> {
  const pins = await host.holds("pin");
  const pinsOf = new Map<string, number>();
  for (const { owner, blocks } of pins) pinsOf.set(owner, (pinsOf.get(owner) ?? 0) + blocks);
  compareOnceAtMost(oracle, pinsOf);
  for (const owner of oracle.pins.keys()) {
    const found = await countByUnpinning(host, owner, oracle.blocksOf(owner));
    let sum = 0;
    for (const [block, count] of found) {
      comparePins(oracle, owner, block, count);
      sum += count;
    }
    const listed = pinsOf.get(owner) ?? 0;
    if (listed !== sum) oracle.find("odd", `${owner}: ${listed} pins listed, ${sum} let go`);
  }
}

/** Lets an owner's pins go until there are none: how many there were on each block. */
async function countByUnpinning(
  host: Host,
  owner: string,
  blocks: readonly number[],
): Promise<Map<number, number>> {
  const counts = new Map(blocks.map((block) => [block, 0]));
  for (let left = [...blocks]; left.length > 0; ) {
    const receipt = await host.command(unpin(left, { owner }));
    left = receipt.blocks
      .filter(({ outcome }) => outcome === "done")
      .map(({ block }) => +`${block}`);
    for (const block of left) counts.set(block, counts.get(block)! + 1);
  }
  return counts;
}
