import { describe, expect, test } from "bun:test";
import fc from "fast-check";
import { NO_SLOT, SlotAllocator } from "../../../src/store/blocks/index.ts";
import { freeSlots, verifySlots } from "./verify-slots.ts";

const PAGE = 4096;
const EXTENT = 8 * PAGE;
const ARENA = 16 * EXTENT;
const HALVES = [ARENA / 2, ARENA];

function open(zoneEnds: readonly number[] = HALVES): SlotAllocator {
  const slots = new SlotAllocator({
    ...{ arenaBytes: ARENA, slotBytesMax: EXTENT, extentBytes: EXTENT, zoneEnds },
  });
  slots.addReady(ARENA);
  return slots;
}

const inSecond = (slots: SlotAllocator, slot: number) => slots.offsetOf(slot) >= ARENA / 2;

describe("a zone that is asked for", () => {
  test("gives its slots while it has any, then the others do", () => {
    const slots = open();
    const half = ARENA / 2 / PAGE;
    for (let i = 0; i < half; i++) expect(inSecond(slots, slots.reserve(PAGE, 1))).toBe(true);
    for (let i = 0; i < half; i++) expect(inSecond(slots, slots.reserve(PAGE, 1))).toBe(false);
    expect(slots.reserve(PAGE, 1)).toBe(NO_SLOT);
    verifySlots(slots);
  });

  test("opens an extent of its own before it takes from the other's", () => {
    const slots = open();
    expect(inSecond(slots, slots.reserve(PAGE, 0))).toBe(false);
    expect(inSecond(slots, slots.reserve(PAGE, 1))).toBe(true);
    verifySlots(slots);
  });

  test("gets its own extents back", () => {
    const slots = open();
    const taken = Array.from({ length: ARENA / EXTENT }, () => slots.reserve(EXTENT, 1));
    for (const slot of taken.slice(1)) slots.release(slot);
    for (let i = 0; i < 7; i++) expect(inSecond(slots, slots.reserve(EXTENT, 1))).toBe(true);
    for (let i = 0; i < 8; i++) expect(inSecond(slots, slots.reserve(EXTENT, 1))).toBe(false);
    verifySlots(slots);
  });

  test("whose memory is not there yet gives none", () => {
    const slots = new SlotAllocator({
      ...{ arenaBytes: ARENA, slotBytesMax: EXTENT, extentBytes: EXTENT, zoneEnds: HALVES },
    });
    slots.addReady(ARENA / 2);
    expect(inSecond(slots, slots.reserve(PAGE, 1))).toBe(false);
    slots.addReady(ARENA / 2);
    expect(inSecond(slots, slots.reserve(PAGE, 1))).toBe(true);
    verifySlots(slots);
  });
});

test("an arena is restored with zones as without", () => {
  const slots = open();
  const [one, other] = [slots.reserve(PAGE, 1), slots.reserve(3 * PAGE, 0)];
  const offsets = [other, one].map((slot) => slots.offsetOf(slot));
  const restored = open();
  const layout = { extentBytes: slots.extentBytes, offsets: Float64Array.from(offsets) };
  expect(restored.restore({ ...layout, bytes: Uint32Array.of(3 * PAGE, PAGE) })).not.toBeNull();
  verifySlots(restored);
  expect(inSecond(restored, restored.reserve(PAGE, 1))).toBe(true);
});

test("zones that are none are refused", () => {
  for (const ends of [[], [ARENA / 2], [ARENA, ARENA], new Array(9).fill(ARENA)]) {
    expect(() => open(ends)).toThrow();
  }
});

describe("property: with zones, as without", () => {
  const ENDS = [3 * EXTENT, 5 * EXTENT + PAGE, ARENA];
  const step = fc.record({
    bytes: fc.constantFrom(PAGE, PAGE, 3 * PAGE, 8 * PAGE),
    zone: fc.constantFrom(-1, 0, 1, 2),
    release: fc.nat({ max: 200 }),
  });

  const zoneOf = ({ extentBytes }: SlotAllocator, extent: number) =>
    ENDS.findIndex((end) => extent * extentBytes < end);

  /** Whether an extent of the zone has a free slot of this length, or could be made to. */
  function hasRoom(slots: SlotAllocator, held: readonly number[], bytes: number, zone: number) {
    const { extentBytes, extentCount } = slots;
    for (let extent = 0; extent < extentCount; extent++) {
      if (zoneOf(slots, extent) !== zone) continue;
      const room = Math.min(extentBytes, ARENA - extent * extentBytes);
      const own = held.filter((slot) => slots.extentOf(slot) === extent);
      const fits = own.length === 0 || slots.slotBytesOf(own[0]!) === bytes;
      if (fits && own.length < Math.floor(room / bytes)) return true;
    }
    return false;
  }

  test("no room is lost, what is asked for is given, and the records hold", () => {
    const seen = new Set<string>();
    const run = fc.property(fc.array(step, { maxLength: 120, size: "max" }), (steps) => {
      const slots = open(ENDS);
      const held: number[] = [];
      for (const { bytes, zone, release } of steps) {
        const free = freeSlots(slots, bytes);
        // The first slot of an empty arena divides it anew.
        const mayChoose = held.length > 0 && zone >= 0 && hasRoom(slots, held, bytes, zone);
        const slot = slots.reserve(bytes, zone);
        expect(slot !== NO_SLOT).toBe(free > 0);
        if (mayChoose) expect(zoneOf(slots, slots.extentOf(slot))).toBe(zone);
        if (slot !== NO_SLOT) held.push(slot);
        seen.add(slot === NO_SLOT ? "full" : mayChoose ? "chosen" : "other");
        if (release % 3 === 0 && held.length > 0) {
          slots.release(held.splice(release % held.length, 1)[0]!);
        }
      }
      verifySlots(slots);
    });
    fc.assert(run, { seed: 20_260_301, numRuns: 100 });
    expect([...seen].sort()).toEqual(["chosen", "full", "other"]);
  });
});
