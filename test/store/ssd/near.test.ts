import { expect } from "bun:test";
import { SLOT_BYTES } from "./ssd-kit.ts";
import { describeSsd } from "./use-kit.ts";

/** An extent has 64 MiB, and a part two extents. Untouched pages take no memory. */
const HALF = 128 * 2 ** 20;
const SLOTS = (2 * HALF) / SLOT_BYTES;
const parts = [
  { offset: 0, bytes: HALF, node: 0 },
  { offset: HALF, bytes: HALF, node: 3 },
];

describeSsd("SSD tier: a block read into RAM", (it) => {
  it("is placed near the device of its first reader", { slots: SLOTS, parts }, async ({ kit }) => {
    const engine = kit.engine();
    for (const name of ["a", "b", "c"]) expect(await engine.put(name)).toEqual(["ok"]);
    await kit.settled();
    kit.leaveRam();
    const [near, far] = [kit.engine(), kit.engine()];
    near.holder.near(3);
    far.holder.near(0);
    const [here, again, there] = await Promise.all([
      ...[near.fetch(["a"]), far.fetch(["a"]), far.fetch(["b"])],
    ]);
    expect(here![0]!.offset).toBeGreaterThanOrEqual(HALF);
    expect(again![0]!.offset).toBe(here![0]!.offset);
    expect(there![0]!.offset).toBeLessThan(HALF);
  });
});
