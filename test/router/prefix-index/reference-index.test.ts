import { expect, test } from "bun:test";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { IndexChange, PrefixIndex, TargetId } from "../../../src/router/index.ts";
import { ReferenceIndex } from "./reference-index.ts";

function stored(target: number, parent: bigint | null, ...hashes: bigint[]): IndexChange {
  const change = { kind: "stored", tier: "device", parent, tokenHashes: null } as const;
  return { target: target as TargetId, change: { ...change, hashes: new BigUint64Array(hashes) } };
}

function answer(index: PrefixIndex, ...hashes: bigint[]) {
  const { count, targets, device } = index.match(new BigUint64Array(hashes));
  return [...targets.subarray(0, count)].map((target, i) => [target, device[i]]);
}

test("a removed block ends the match until it is stored again", () => {
  const index = new ReferenceIndex();
  index.apply([stored(1, null, 10n, 11n, 12n), stored(2, null, 10n)]);
  expect(answer(index, 10n, 11n, 12n)).toEqual([
    [1, 3],
    [2, 1],
  ]);
  const hashes = BigUint64Array.of(11n);
  const target = 1 as TargetId;
  index.apply([{ target, change: { kind: "removed", tier: "device", hashes } }]);
  expect(answer(index, 10n, 11n, 12n)).toEqual([
    [1, 1],
    [2, 1],
  ]);
  index.apply([stored(1, 10n, 11n)]);
  expect(answer(index, 10n, 11n, 12n)[0]).toEqual([1, 3]);
});

test("a saved file is restored, and refused if changed", async () => {
  const folder = await mkdtemp(join(tmpdir(), "reference-"));
  const path = join(folder, "index");
  const index = new ReferenceIndex();
  index.apply([stored(1, null, 10n, 11n), stored(2, 11n, 12n)]);
  await index.save(path);
  const again = new ReferenceIndex();
  expect(await again.load(path)).toBe(true);
  expect([...again.dump()]).toEqual([...index.dump()]);
  await Bun.write(path, (await Bun.file(path).text()).replace("11", "13"));
  expect(await new ReferenceIndex().load(path)).toBe(false);
  await rm(folder, { recursive: true });
});
