import { describe, expect, test } from "bun:test";
import type { NodeId } from "../../../src/core/index.ts";
import { NO_SLOT, SlotAllocator, SlotState } from "../../../src/store/blocks/index.ts";
import { freeSlots, verifySlots } from "./verify-slots.ts";

const KIB = 1024;
const GIB = 2 ** 30;

function arena(arenaBytes: number, slotBytesMax = arenaBytes, extentBytes?: number) {
  const slots = new SlotAllocator({
    arenaBytes,
    slotBytesMax,
    ...(extentBytes === undefined ? {} : { extentBytes }),
  });
  slots.addReady(arenaBytes);
  return slots;
}

function fill(slots: ReturnType<typeof arena>, bytes: number): number[] {
  const taken: number[] = [];
  for (let slot = slots.reserve(bytes); slot !== NO_SLOT; slot = slots.reserve(bytes)) {
    slots.publish(slot);
    taken.push(slot);
  }
  return taken;
}

describe("capacity", () => {
  for (const bytes of [4096, 200_704, 256 * KIB, 1_000_000, 1024 * KIB]) {
    for (const count of [1, 7, 64, 1000, 3000]) {
      test(`an arena of ${count} slots of ${bytes} holds ${count}`, () => {
        const slotBytes = Math.ceil(bytes / 4096) * 4096;
        const slots = arena(count * slotBytes, slotBytes);
        expect(freeSlots(slots, bytes)).toBe(count);
        const taken = fill(slots, bytes);
        expect(taken).toHaveLength(count);
        const offsets = taken.map((slot) => slots.offsetOf(slot)).sort((a, b) => a - b);
        expect(offsets).toEqual(Array.from({ length: count }, (_, n) => n * slotBytes));
        expect(slots.usedBytes).toBe(slots.arenaBytes);
        verifySlots(slots);
      });
    }
  }

  test("the same when the longest block is much longer", () => {
    expect(fill(arena(3000 * 256 * KIB, 64 * 1024 * KIB), 256 * KIB)).toHaveLength(3000);
  });

  test("an emptied arena is divided anew for the next size", () => {
    const slots = arena(3000 * 200_704, 8 * 1024 * KIB);
    for (const slot of fill(slots, 300_000)) slots.release(slot);
    expect(freeSlots(slots, 200_704)).toBe(3000);
    expect(fill(slots, 200_704)).toHaveLength(3000);
    verifySlots(slots);
  });

  test("a second size loses less than one of its slots an extent", () => {
    const slots = arena(GIB, 1024 * KIB);
    const first = fill(slots, 256 * KIB);
    for (const slot of first.slice(1)) slots.release(slot);
    const bytes = 600 * KIB;
    const free = freeSlots(slots, bytes);
    expect(fill(slots, bytes)).toHaveLength(free);
    const extents = slots.extentCount - 1;
    expect(free * bytes).toBeGreaterThan(extents * (GIB / slots.extentCount - bytes));
    verifySlots(slots);
  });

  test("grows as memory becomes ready", () => {
    const slots = new SlotAllocator({ arenaBytes: 1000 * 4096, slotBytesMax: 4096 });
    expect(slots.reserve(4096)).toBe(NO_SLOT);
    let taken = 0;
    while (slots.readyBytes < slots.arenaBytes) {
      slots.addReady(100 * 4096);
      const free = freeSlots(slots, 4096);
      const more = fill(slots, 4096);
      expect(more).toHaveLength(free);
      for (const slot of more) {
        expect(slots.offsetOf(slot) + 4096).toBeLessThanOrEqual(slots.readyBytes);
      }
      taken += more.length;
    }
    expect(taken).toBe(1000);
  });

  test("an arena of a terabyte has coarser slots, and keeps its promise", () => {
    const slots = arena(1024 * GIB, 64 * 1024 * KIB);
    const slot = slots.reserve(4096);
    expect(slots.slotBytesOf(slot)).toBe(8192);
    expect(freeSlots(slots, 4096)).toBe(2 ** 27 - 1);
    slots.release(slot);
    expect(freeSlots(slots, 256 * KIB)).toBe(2 ** 22);
  });

  test("too long, or a block too many", () => {
    const slots = arena(64 * KIB, 16 * KIB);
    expect(slots.reserve(16 * KIB + 1)).toBe(NO_SLOT);
    expect(freeSlots(slots, 16 * KIB + 1)).toBe(0);
    expect(fill(slots, 16 * KIB)).toHaveLength(4);
    expect(slots.reserve(4096)).toBe(NO_SLOT);
  });

  test("not more than 64 sizes at a time", () => {
    const slots = arena(GIB, 1024 * KIB, 1024 * KIB);
    const held = Array.from({ length: 64 }, (_, n) => slots.reserve((n + 1) * 4096));
    expect(held.includes(NO_SLOT)).toBe(false);
    expect(slots.classes()).toHaveLength(64);
    expect(slots.reserve(65 * 4096)).toBe(NO_SLOT);
    expect(freeSlots(slots, 65 * 4096)).toBe(0);
    slots.release(held[3]!);
    expect(freeSlots(slots, 65 * 4096)).toBeGreaterThan(0);
    expect(slots.reserve(65 * 4096)).not.toBe(NO_SLOT);
    verifySlots(slots);
  });
});

describe("re-division", () => {
  test("the cheapest extent, emptied, serves another size", () => {
    const slots = arena(64 * 64 * KIB, 64 * KIB);
    const small = fill(slots, 4096);
    small.forEach((slot, n) => {
      slots.setNode(slot, (n + 1) as NodeId);
    });
    expect(slots.reserve(64 * KIB)).toBe(NO_SLOT);
    slots.release(small[20]!);
    const extent = slots.cheapestExtent(64 * KIB);
    expect(extent).toBe(slots.extentOf(small[20]!));
    expect(slots.cheapestExtent(4096)).toBe(-1);
    const nodes: number[] = [];
    for (let slot = slots.nextUsedSlot(extent, NO_SLOT); slot !== NO_SLOT; ) {
      nodes.push(slots.nodeOf(slot));
      const next = slots.nextUsedSlot(extent, slot);
      slots.release(slot);
      slot = next;
    }
    expect(nodes).toHaveLength(15);
    expect(slots.reserve(64 * KIB)).not.toBe(NO_SLOT);
    verifySlots(slots);
  });

  test("an extent with a slot that cannot move is left out", () => {
    const slots = arena(2 * 64 * KIB, 64 * KIB);
    const small = fill(slots, 32 * KIB);
    expect(small).toHaveLength(4);
    slots.quarantine(small[0]!);
    expect(slots.cheapestExtent(64 * KIB)).toBe(slots.extentOf(small[3]!));
    slots.release(small[3]!);
    slots.reserve(32 * KIB);
    expect(slots.cheapestExtent(64 * KIB)).toBe(-1);
  });
});

describe("slots in use", () => {
  test("a quarantined slot is not given again before it is buried", () => {
    const slots = arena(8192, 8192, 4096);
    const [a, b] = fill(slots, 8192);
    expect(b).toBeUndefined();
    const generation = slots.generationOf(a!);
    slots.quarantine(a!);
    expect(slots.reserve(8192)).toBe(NO_SLOT);
    expect(slots.isCurrent(a!, generation)).toBe(true);
    slots.bury(a!);
    expect(slots.isCurrent(a!, generation)).toBe(false);
    const again = slots.reserve(8192);
    expect(again).toBe(a!);
    expect(slots.generationOf(again)).not.toBe(generation);
  });

  test("changes of state that cannot be are bugs", () => {
    const slots = arena(64 * KIB, 4096);
    const slot = slots.reserve(4096);
    expect(() => slots.bury(slot)).toThrow("a buried slot is quarantined");
    slots.publish(slot);
    expect(() => slots.publish(slot)).toThrow("a slot changes from the state it is in");
    slots.release(slot);
    expect(() => slots.release(slot)).toThrow("a released slot is in use");
    expect(() => slots.quarantine(slot)).toThrow("a quarantined slot is in use");
    expect(() => slots.setNode(slot, 1 as NodeId)).toThrow("a slot with a node is in use");
  });

  test("any whole number may be asked whether it is a slot", () => {
    const slots = arena(64 * KIB, 4096);
    const slot = slots.reserve(4096);
    const generation = slots.generationOf(slot);
    expect(slots.isCurrent(slot, generation)).toBe(true);
    expect(slots.isCurrent(slot, generation + 1)).toBe(false);
    for (const wrong of [0, -1, slot + 1, 2 ** 32 - 1, 2 ** 40, Number.NaN]) {
      expect(slots.isCurrent(wrong, generation)).toBe(false);
      expect(slots.stateOf(wrong)).toBe(SlotState.free);
    }
  });

  test("verifySlots names what is broken", () => {
    const slots = arena(64 * KIB, 4096);
    slots.publish(slots.reserve(4096));
    verifySlots(slots);
    const inside = slots as unknown as { usedBytes: number; extents: { unmovable: Int32Array } };
    inside.extents.unmovable[0] = 1;
    expect(() => verifySlots(slots)).toThrow("the unmovable slots are counted");
    inside.extents.unmovable[0] = 0;
    inside.usedBytes++;
    expect(() => verifySlots(slots)).toThrow("the bytes in use are counted");
  });
});
