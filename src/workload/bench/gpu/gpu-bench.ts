import { BareCuda, isStandInCuda, type Native } from "../../../native/index.ts";
import { median } from "../quantiles.ts";
import { type Direction, GpuCopies } from "./gpu-copies.ts";

export interface GpuBenchOptions {
  /** Null: as the dynamic linker finds it. */
  readonly library: string | null;
  readonly device: number;
  /** Copied by each measurement: a multiple of 16 MiB. */
  readonly bytes: number;
  readonly rounds: number;
  readonly signal: AbortSignal;
  onProgress(what: string): void;
}

/** 10^9 bytes a second of one size of pieces, both ways. */
export interface GpuRates {
  readonly h2d: number;
  readonly d2h: number;
}

export interface GpuBenchResult {
  readonly device: string;
  /** As in `12.8`. */
  readonly driver: string;
  /** The library is the tests' own: the rates are those of memory. */
  readonly isStandIn: boolean;
  readonly hasBatches: boolean;
  /** A plain loop over the driver with memory of its own, in the same rounds. */
  readonly bareLarge: GpuRates;
  readonly bareSmall: GpuRates;
  readonly large: GpuRates;
  readonly middle: GpuRates;
  /** Batches of many small pieces, no two of them neighbours. */
  readonly small: GpuRates;
  /** Copies that were not asynchronous. */
  readonly pageable: number;
  /** Round trips after which a byte was another. */
  readonly wrong: number;
}

const LARGE = 2 ** 24;
const MIDDLE = 2 ** 20;
const SMALL = 2 ** 16;
const SIZES = { large: LARGE, middle: MIDDLE, small: SMALL } as const;
const DIRECTIONS: readonly Direction[] = ["h2d", "d2h"];
const OTHER_BYTES = 0n;

/**
 * Medians of the rounds, each of which measures everything in turn. What goes to the device comes
 * back and is compared, round by round. Throws UNSUPPORTED without a GPU.
 */
export async function benchGpu(native: Native, options: GpuBenchOptions): Promise<GpuBenchResult> {
  const { library, device, bytes, rounds, signal, onProgress } = options;
  await using copies = await GpuCopies.open({ native, library, device, bytes });
  using bare = new BareCuda({ library, device, bytes });
  const samples = new Map<string, number[]>();
  const note = (name: string, ns: number) => {
    const known = samples.get(name) ?? [];
    samples.set(name, [...known, bytes / ns]);
  };
  let wrong = 0;
  // The first round warms everything up, and is not counted.
  for (let round = 0; round <= rounds; round++) {
    onProgress(round === 0 ? "a first round" : `round ${round} of ${rounds}`);
    for (const direction of DIRECTIONS) {
      const large = bare.copy(direction, bytes, LARGE);
      const small = bare.copy(direction, bytes, SMALL);
      if (round === 0) continue;
      note(`bareLarge ${direction}`, large);
      note(`bareSmall ${direction}`, small);
    }
    for (const [name, size] of Object.entries(SIZES)) {
      signal.throwIfAborted();
      const seed = BigInt(round * LARGE + size);
      copies.region.fill(0, bytes, seed);
      const there = await copies.copy("h2d", size);
      copies.region.fill(0, bytes, OTHER_BYTES);
      const back = await copies.copy("d2h", size);
      if (copies.region.firstWrong(0, bytes, seed) !== null) wrong++;
      if (round === 0) continue;
      note(`${name} h2d`, there);
      note(`${name} d2h`, back);
    }
  }
  const rates = (name: string): GpuRates => ({
    h2d: median(samples.get(`${name} h2d`)!),
    d2h: median(samples.get(`${name} d2h`)!),
  });
  return {
    device: copies.device.name,
    driver: copies.driver,
    isStandIn: isStandInCuda(library),
    hasBatches: copies.gpus.info.hasBatches,
    bareLarge: rates("bareLarge"),
    bareSmall: rates("bareSmall"),
    large: rates("large"),
    middle: rates("middle"),
    small: rates("small"),
    pageable: copies.device.pageableCopies,
    wrong,
  };
}
