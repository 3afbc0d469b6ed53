import { expect, test } from "bun:test";
import type { WorkerId } from "../../src/core/index.ts";
import {
  decodeStoredSnapshot,
  encodeStoredSnapshot,
  type ResidencySnapshotPart,
} from "../../src/events/index.ts";

const source = { worker: "w1" as WorkerId, rank: 0, incarnation: 7n };

function partsOf(count: number): ResidencySnapshotPart[] {
  return Array.from({ length: count }, (_, part) => ({
    ...{ kind: "snapshot", source, snapshot: 3n, sequence: 42, part },
    isLast: part === count - 1,
    isDeviceKnown: false,
    runs: [{ tier: "host", parent: 5n, hashes: new BigUint64Array([BigInt(part), 9n]) }],
  }));
}

test("a snapshot is one object, and comes back in its parts", async () => {
  for (const count of [1, 2, 5]) {
    const parts = partsOf(count);
    const read = decodeStoredSnapshot(await encodeStoredSnapshot(parts));
    expect(read).toEqual({ ok: true, value: parts as never });
  }
});

test("what is no whole snapshot is refused, wherever it ends or differs", async () => {
  const parts = partsOf(3);
  const bytes = await encodeStoredSnapshot(parts);
  for (let length = 0; length < bytes.length; length++) {
    expect(decodeStoredSnapshot(bytes.subarray(0, length)).ok).toBe(false);
  }
  const [first, second, third] = parts as [ResidencySnapshotPart, ...ResidencySnapshotPart[]];
  const others: ResidencySnapshotPart[][] = [
    [second!, third!],
    [first, third!],
    [first, { ...second!, snapshot: 4n }, third!],
    [first, { ...second!, sequence: 43 }, third!],
    [first, { ...second!, source: { ...source, incarnation: 8n } }, third!],
    [...parts, { ...third!, part: 3 }],
  ];
  for (const list of others)
    expect(decodeStoredSnapshot(await encodeStoredSnapshot(list)).ok).toBe(false);
});
