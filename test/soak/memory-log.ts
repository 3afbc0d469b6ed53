/** Memory of a process over a run, and whether it grew. */
export interface MemoryLog {
  /** `done` cycles are over, and the process has `bytes`. */
  note(done: number, bytes: number): void;
  judge(): MemoryVerdict;
}

export interface MemoryVerdict {
  /** Bytes at start and end, on the straight line through the samples. */
  readonly start: number;
  readonly end: number;
  /** Growth in `cycles` cycles. */
  readonly driftPercent: number;
}

const PARTS = 20;

interface Sample {
  readonly done: number;
  readonly bytes: number;
}

/**
 * A single sample is worth little: garbage comes and goes by some per cent of the whole. So of each
 * twentieth of `cycles` the lowest tenth counts, when most garbage was gone, and through these goes
 * the line of least squares: what stays lifts it, however long each part took.
 */
export function createMemoryLog(cycles: number): MemoryLog {
  const samples: Sample[] = [];
  return {
    note: (done, bytes) => void samples.push({ done, bytes }),
    judge() {
      const last = samples.at(-1)?.done ?? 0;
      const line = lineThrough(floorsOf(samples, cycles / PARTS));
      const [start, grown] = [line(0), line(cycles) - line(0)];
      return { start, end: line(last), driftPercent: start === 0 ? 0 : (100 * grown) / start };
    },
  };
}

function floorsOf(samples: readonly Sample[], partCycles: number): Sample[] {
  const parts = Map.groupBy(samples, ({ done }) => Math.floor(done / partCycles));
  return [...parts].map(([part, within]) => {
    const bytes = within.map((sample) => sample.bytes).sort((a, b) => a - b);
    return { done: (part + 0.5) * partCycles, bytes: bytes[Math.floor(bytes.length / 10)]! };
  });
}

/** Bytes by cycles done; 0 everywhere where there are no samples. */
function lineThrough(samples: readonly Sample[]): (done: number) => number {
  const mean = (of: (sample: Sample) => number) =>
    samples.reduce((sum, sample) => sum + of(sample), 0) / Math.max(1, samples.length);
  const done = mean((sample) => sample.done);
  const bytes = mean((sample) => sample.bytes);
  const spread = mean((sample) => (sample.done - done) ** 2);
  const together = mean((sample) => (sample.done - done) * (sample.bytes - bytes));
  const slope = spread === 0 ? 0 : together / spread;
  return (at) => bytes + slope * (at - done);
}
