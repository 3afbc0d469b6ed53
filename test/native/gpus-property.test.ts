import { expect, test } from "bun:test";
import fc from "fast-check";
import type { GpuMemory, GpuPiece } from "../../src/native/index.ts";
import { describeNative } from "../support/native.ts";
import { type Bed, KIB, MIB, opened, withGpus } from "./gpus-kit.ts";

const MEMORIES = 4;
const MEMORY_BYTES = 128 * KIB;
/** Part of the region used by one job only. */
const AREA_BYTES = 64 * KIB;
const PIECE_UNIT = KIB;
const UNITS = AREA_BYTES / PIECE_UNIT;

/** A job: its memory, its direction, and its pieces by length and gap. */
const steps = fc.array(
  fc.record({
    memory: fc.nat(MEMORIES - 1),
    isToGpu: fc.boolean(),
    memoryStart: fc.nat(UNITS),
    lengths: fc.array(fc.tuple(fc.integer({ min: 1, max: 12 }), fc.nat(3)), {
      minLength: 1,
      maxLength: 12,
    }),
    isReversed: fc.boolean(),
    seed: fc.nat(255),
  }),
  { minLength: 1, maxLength: 40 },
);

type Step = typeof steps extends fc.Arbitrary<(infer One)[]> ? One : never;

/** The pieces that lie inside the area. They do not overlap but may touch. */
function piecesOf(step: Step, area: number): GpuPiece[] {
  const pieces: GpuPiece[] = [];
  let at = 0;
  for (const [units, gap] of step.lengths) {
    const bytes = units * PIECE_UNIT;
    const memoryOffset = step.memoryStart * PIECE_UNIT + at;
    if (at + bytes > AREA_BYTES || memoryOffset + bytes > MEMORY_BYTES) break;
    pieces.push({ regionOffset: area + at, memoryOffset, bytes });
    at += bytes + gap * PIECE_UNIT;
  }
  return step.isReversed ? pieces.toReversed() : pieces;
}

/** A model of the devices, which execute jobs in the order of the calls. */
class Model {
  readonly #memories = Array.from({ length: MEMORIES }, () => new Uint8Array(MEMORY_BYTES));

  take(memory: number, pieces: readonly GpuPiece[], region: (piece: GpuPiece) => Uint8Array) {
    for (const piece of pieces) this.#memories[memory]!.set(region(piece), piece.memoryOffset);
  }

  give(memory: number, piece: GpuPiece): Uint8Array {
    return this.#memories[memory]!.slice(piece.memoryOffset, piece.memoryOffset + piece.bytes);
  }
}

async function play(bed: Bed, memories: readonly GpuMemory[], list: readonly Step[]) {
  const { gpus, region } = bed;
  const model = new Model();
  const span = (piece: GpuPiece) => region.span(piece.regionOffset, piece.bytes);
  const zeroes = { regionOffset: 15 * MIB, memoryOffset: 0, bytes: MEMORY_BYTES };
  span(zeroes).fill(0);
  for (const memory of memories) void gpus.toGpu(memory, [zeroes]);
  const jobs = list.map(async (step, index) => {
    const pieces = piecesOf(step, index * AREA_BYTES);
    for (const piece of pieces) span(piece).fill(step.seed ^ piece.memoryOffset);
    const memory = memories[step.memory]!;
    if (step.isToGpu) {
      model.take(step.memory, pieces, span);
      expect(await gpus.toGpu(memory, pieces)).toEqual({ ok: true });
      return;
    }
    const wanted = pieces.map((piece) => model.give(step.memory, piece));
    expect(await gpus.fromGpu(memory, pieces)).toEqual({ ok: true });
    for (const [at, piece] of pieces.entries()) {
      expect(Buffer.compare(span(piece), wanted[at]!)).toBe(0);
    }
  });
  await Promise.all(jobs);
}

describeNative("copies of devices", () => {
  test.each(["", "no-batch"])("%s: results equal those of the calls in order", async (plan) => {
    await withGpus({ plan: `devices=2;${plan}`, isRegistered: false }, async (bed) => {
      // Areas lie in one registration, in two, and in none.
      await bed.gpus.register(0, 96 * KIB);
      await bed.gpus.register(96 * KIB, 1000 * KIB);
      const allocating = Array.from({ length: MEMORIES }, (_, index) =>
        opened(bed.gpus.allocate(index % 2, MEMORY_BYTES)),
      );
      const memories = await Promise.all(allocating);
      await fc.assert(
        fc.asyncProperty(steps, (list) => play(bed, memories, list)),
        { numRuns: 60, seed: 7 },
      );
      expect(bed.gpus.devices()[0]!.pageableCopies).toBeGreaterThan(0);
    });
  });
});
