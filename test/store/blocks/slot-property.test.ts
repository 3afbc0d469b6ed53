import { describe, expect, test } from "bun:test";
import fc from "fast-check";
import type { NodeId } from "../../../src/core/index.ts";
import { NO_SLOT, SlotAllocator, SlotState } from "../../../src/store/blocks/index.ts";
import { type ModelSlot, SlotModel } from "./slot-model.ts";
import { freeSlots, verifySlots } from "./verify-slots.ts";

const PAGE = 4096;
const RUNS = 520;
const OPERATIONS_A_RUN_MAX = 500;
const LENGTHS = [1, PAGE, PAGE + 1, 3 * PAGE, 5 * PAGE - 7, 8 * PAGE, 8 * PAGE + 1];

const KINDS = ["reserve", "reserve", "reserve", "publish", "publish", "release", "release"];
const RARE = ["quarantine", "bury", "ready", "clear", "name"];

const number = fc.nat({ max: 0xffff });
const step = fc.record({
  kind: fc.constantFrom(...KINDS, ...KINDS, ...RARE),
  a: number,
  b: number,
});

class Pair {
  readonly real: SlotAllocator;
  readonly model: SlotModel;
  readonly seen: Set<string>;

  constructor(pages: number, extentPages: number, seen: Set<string>) {
    const [arenaBytes, slotBytesMax, extentBytes] = [pages * PAGE, 8 * PAGE, extentPages * PAGE];
    this.real = new SlotAllocator({ arenaBytes, slotBytesMax, extentBytes });
    this.model = new SlotModel(arenaBytes, slotBytesMax, extentBytes);
    this.seen = seen;
  }

  apply({ kind, a, b }: { kind: string; a: number; b: number }): void {
    const { real, model } = this;
    if (kind === "reserve") {
      // Mostly few lengths, so that the arena fills up with them.
      const bytes = LENGTHS[a % 5 === 0 ? b % LENGTHS.length : b % 2]!;
      const slot = real.reserve(bytes);
      expect(model.reserved(real, bytes, slot)).toBeNull();
      this.seen.add(slot === NO_SLOT ? "full" : "reserved");
    } else if (kind === "ready") {
      real.addReady(b % (9 * PAGE));
      model.addReady(b % (9 * PAGE));
    } else if (kind === "clear" && a % 4 === 0) {
      for (const slot of [...model.used]) this.free(slot);
    } else if (model.used.length > 0) {
      this.change(kind, model.used[a % model.used.length]!, b);
    }
  }

  private change(kind: string, slot: ModelSlot, b: number): void {
    const { real } = this;
    const held = slot.state !== SlotState.quarantined;
    if (kind === "publish" && slot.state === SlotState.reserved) {
      real.publish(slot.slot);
      slot.state = SlotState.live;
    } else if (kind === "quarantine" && held) {
      real.quarantine(slot.slot);
      slot.state = SlotState.quarantined;
      slot.node = 0;
    } else if (kind === "name" && held) {
      real.setNode(slot.slot, b as NodeId);
      slot.node = b;
    } else if ((kind === "release" && held) || (kind === "bury" && !held)) {
      this.free(slot);
    }
  }

  private free(slot: ModelSlot): void {
    if (slot.state === SlotState.quarantined) this.real.bury(slot.slot);
    else this.real.release(slot.slot);
    this.model.freed(slot);
    expect(this.real.isCurrent(slot.slot, slot.generation)).toBe(false);
    expect(this.real.stateOf(slot.slot)).toBe(SlotState.free);
  }

  compare(): void {
    const { real, model } = this;
    const read: unknown[] = [];
    const said: unknown[] = [];
    for (const slot of model.used) {
      const id = slot.slot;
      read.push(real.stateOf(id), real.generationOf(id), real.offsetOf(id), real.slotBytesOf(id));
      said.push(slot.state, slot.generation, slot.offset, slot.bytes);
      read.push(real.nodeOf(id), real.extentOf(id), real.isCurrent(id, slot.generation));
      said.push(slot.node, slot.extent, true);
    }
    for (const bytes of LENGTHS) {
      read.push(freeSlots(real, bytes), this.emptiable(bytes));
      said.push(model.free(bytes), model.emptiable(bytes));
    }
    for (const extent of new Set(model.used.map((slot) => slot.extent))) {
      read.push(this.usedIn(extent));
      said.push(
        model
          .inExtent(extent)
          .map((slot) => slot.slot)
          .sort((a, b) => a - b),
      );
    }
    const quarantined = model.used.filter((slot) => slot.state === SlotState.quarantined);
    read.push(real.usedSlots, real.usedBytes, real.quarantinedSlots, real.readyBytes);
    said.push(model.used.length, sum(model.used), quarantined.length, model.ready);
    read.push(real.classes().map(({ slotBytes, extents, used }) => [slotBytes, extents, used]));
    said.push(this.classesSaid());
    if (!Bun.deepEquals(read, said, true)) expect(read).toEqual(said);
  }

  private emptiable(bytes: number): number[] {
    const extents: number[] = [];
    for (let e = this.real.cheapestExtent(bytes); e >= 0; e = this.real.cheapestExtent(bytes, e)) {
      extents.push(e);
    }
    return extents;
  }

  private usedIn(extent: number): number[] {
    const slots: number[] = [];
    let slot = this.real.nextUsedSlot(extent, NO_SLOT);
    while (slot !== NO_SLOT) {
      slots.push(slot);
      slot = this.real.nextUsedSlot(extent, slot);
    }
    return slots.sort((a, b) => a - b);
  }

  private classesSaid(): number[][] {
    const lengths = [...new Set(this.model.used.map((slot) => slot.bytes))].sort((a, b) => a - b);
    if (lengths.length > 1) this.seen.add("several classes");
    return lengths.map((bytes) => {
      const own = this.model.used.filter((slot) => slot.bytes === bytes);
      return [bytes, new Set(own.map((slot) => slot.extent)).size, own.length];
    });
  }
}

function sum(slots: readonly ModelSlot[]): number {
  return slots.reduce((total, slot) => total + slot.bytes, 0);
}

describe("slot allocator", () => {
  test("keeps to the model after every one of 100,000 operations", () => {
    let operations = 0;
    const seen = new Set<string>();
    const property = fc.property(
      fc.integer({ min: 8, max: 50 }),
      fc.integer({ min: 1, max: 12 }),
      fc.array(step, { maxLength: OPERATIONS_A_RUN_MAX, size: "max" }),
      (pages, extentPages, steps) => {
        const pair = new Pair(pages, extentPages, seen);
        pair.apply({ kind: "ready", a: 0, b: 8 * PAGE });
        for (const step of steps) {
          pair.apply(step);
          verifySlots(pair.real);
          pair.compare();
          operations++;
        }
      },
    );
    fc.assert(property, { seed: 20_260_102, numRuns: RUNS });
    expect(operations).toBeGreaterThanOrEqual(100_000);
    expect([...seen].sort()).toEqual(["full", "reserved", "several classes"]);
  });
});
