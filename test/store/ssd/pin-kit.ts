import { expect } from "bun:test";
import { NO_NODE } from "../../../src/core/index.ts";
import { type BlockName, batchOf } from "../names.ts";
import type { SsdKit } from "./ssd-kit.ts";

export const RAM = 2;
export const SSD = 4;
export const names = (count: number, prefix = "x") =>
  Array.from({ length: count }, (_, i) => prefix + i);

/** Pins blocks until disposed. */
export function pin(kit: SsdKit, ...blocks: BlockName[]): Disposable {
  const nodes = blocks.map((name) => kit.nodeOf(name));
  for (const node of nodes) expect(kit.store.table.pin(node)).toBe(true);
  return {
    [Symbol.dispose]: () => {
      for (const node of nodes) kit.store.table.unpin(node);
    },
  };
}

/** Stores `count` blocks that are not used again, one request each. */
export async function flood(kit: SsdKit, count: number, prefix = "flood"): Promise<void> {
  const engine = kit.engine();
  for (const name of names(count, prefix)) {
    for (let outcome = "full"; outcome === "full"; ) {
      [outcome] = (await engine.put(name)) as [string];
      if (outcome === "full") await kit.settled();
    }
  }
  await kit.settled();
  await kit.pass(250);
  await kit.settled();
}

/** Reads blocks one by one, each after the blocks it evicts are written. */
export async function load(kit: SsdKit, ...blocks: BlockName[]): Promise<string[]> {
  const engine = kit.engine();
  const read: string[] = [];
  for (const name of blocks) {
    await kit.settled();
    const [first] = await engine.load(name);
    await kit.settled();
    read.push(first === "full" ? (await engine.load(name))[0]! : first!);
  }
  return read;
}

export function tiersOf(kit: SsdKit, name: BlockName): number {
  const node = kit.nodeOf(name);
  return node === NO_NODE ? 0 : kit.store.table.residencyOf(node) & (RAM | SSD);
}

/** The eight words of a block's key. */
export function keyOf(kit: SsdKit, name: BlockName): Uint32Array {
  const batch = batchOf([name]);
  kit.store.deriveKeys(batch, false);
  return batch.keys.slice(0, 8);
}
