import { describe, expect, test } from "bun:test";
import fc from "fast-check";
import { NO_SLOT, SlotAllocator, type SlotLayout } from "../../../src/store/blocks/index.ts";
import { freeSlots, verifySlots } from "./verify-slots.ts";

const PAGE = 4096;
const ARENA = 64 * PAGE;

function open(): SlotAllocator {
  const slots = new SlotAllocator({
    arenaBytes: ARENA,
    slotBytesMax: 8 * PAGE,
    extentBytes: 8 * PAGE,
  });
  slots.addReady(ARENA);
  return slots;
}

/** Fills and thins out an arena; what is left, by offset. */
function used(sizes: readonly number[], released: readonly boolean[]) {
  const slots = open();
  const kept: { slot: number; bytes: number }[] = [];
  sizes.forEach((bytes, i) => {
    const slot = slots.reserve(bytes);
    if (slot === NO_SLOT) return;
    slots.publish(slot);
    if (released[i]) slots.release(slot);
    else kept.push({ slot, bytes });
  });
  kept.sort((a, b) => slots.offsetOf(a.slot) - slots.offsetOf(b.slot));
  return { slots, kept };
}

function layoutOf({ slots, kept }: ReturnType<typeof used>) {
  return {
    extentBytes: slots.extentBytes,
    offsets: Float64Array.from(kept, ({ slot }) => slots.offsetOf(slot)),
    bytes: Uint32Array.from(kept, ({ bytes }) => bytes),
  };
}

describe("slots restored from a layout", () => {
  test("lie where they lay, and the arena goes on like the old one", () => {
    const sizes = fc.array(fc.integer({ min: 1, max: 8 * PAGE }), { minLength: 1, maxLength: 80 });
    const released = fc.array(fc.boolean(), { minLength: 80, maxLength: 80 });
    fc.assert(
      fc.property(sizes, released, (all, gone) => {
        const old = used(all, gone);
        fc.pre(old.kept.length > 0);
        const layout = layoutOf(old);
        const slots = open();
        const restored = slots.restore(layout)!;
        expect([...restored].map((slot) => slots.offsetOf(slot))).toEqual([...layout.offsets]);
        for (const slot of restored) slots.publish(slot);
        verifySlots(slots);
        expect(slots.usedSlots).toBe(old.slots.usedSlots);
        expect(slots.usedBytes).toBe(old.slots.usedBytes);
        expect(freeSlots(slots, PAGE)).toBe(freeSlots(old.slots, PAGE));
        for (const slot of restored) slots.release(slot);
        verifySlots(slots);
        expect(freeSlots(slots, PAGE)).toBe(ARENA / PAGE);
      }),
      { numRuns: 200 },
    );
  });

  const good = () => layoutOf(used([PAGE, 2 * PAGE, PAGE], []));
  test.each([
    ["overlap", (layout: SlotLayout) => layout.offsets.fill(0)],
    ["are not where a slot begins", (layout: SlotLayout) => layout.offsets.set([1])],
    ["lie outside", (layout: SlotLayout) => layout.offsets.set([ARENA], 2)],
    ["are longer than any", (layout: SlotLayout) => layout.bytes.set([9 * PAGE])],
    ["have no bytes", (layout: SlotLayout) => layout.bytes.set([0])],
  ] as const)("that %s are refused", (_, damage) => {
    const layout = good();
    damage(layout);
    const slots = open();
    expect(slots.restore(layout)).toBeNull();
    expect(slots.usedSlots).toBe(0);
  });

  test("need extents of the arena's own kind, all of its memory, and nothing in it", () => {
    expect(open().restore({ ...good(), extentBytes: 3 })).toBeNull();
    const grows = new SlotAllocator({ arenaBytes: ARENA, slotBytesMax: 8 * PAGE });
    grows.addReady(ARENA / 2);
    expect(grows.restore(good())).toBeNull();
    const busy = open();
    busy.reserve(1);
    expect(busy.restore(good())).toBeNull();
  });
});
