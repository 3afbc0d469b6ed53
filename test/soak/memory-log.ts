/** Memory of a process over a run, and whether it grew. */
export interface MemoryLog {
  /** `done` of the run's cycles are over, and the process has `bytes`. */
  note(done: number, bytes: number): void;
  judge(): MemoryVerdict;
}

export interface MemoryVerdict {
  /** Bytes at start and end, on the straight line through the samples. */
  readonly start: number;
  readonly end: number;
  readonly driftPercent: number;
}

const PARTS = 20;

interface Sample {
  readonly share: number;
  readonly bytes: number;
}

/**
 * A single sample is worth little: garbage comes and goes by some per cent of the whole. So of each
 * twentieth of the run the lowest tenth counts, when most garbage was gone, and through these goes
 * the line of least squares: what stays lifts it, however long each part took.
 */
export function createMemoryLog(cycles: number): MemoryLog {
  const samples: Sample[] = [];
  return {
    note: (done, bytes) => void samples.push({ share: done / cycles, bytes }),
    judge() {
      const line = lineThrough(floorsOf(samples));
      const [start, end] = [line(0), line(1)];
      return { start, end, driftPercent: start === 0 ? 0 : (100 * (end - start)) / start };
    },
  };
}

function floorsOf(samples: readonly Sample[]): Sample[] {
  const parts = Map.groupBy(samples, ({ share }) => Math.min(PARTS - 1, Math.floor(share * PARTS)));
  return [...parts].map(([part, within]) => {
    const bytes = within.map((sample) => sample.bytes).sort((a, b) => a - b);
    return { share: (part + 0.5) / PARTS, bytes: bytes[Math.floor(bytes.length / 10)]! };
  });
}

/** Bytes by share of the run; 0 everywhere where there are no samples. */
function lineThrough(samples: readonly Sample[]): (share: number) => number {
  const mean = (of: (sample: Sample) => number) =>
    samples.reduce((sum, sample) => sum + of(sample), 0) / Math.max(1, samples.length);
  const share = mean((sample) => sample.share);
  const bytes = mean((sample) => sample.bytes);
  const spread = mean((sample) => (sample.share - share) ** 2);
  const together = mean((sample) => (sample.share - share) * (sample.bytes - bytes));
  const slope = spread === 0 ? 0 : together / spread;
  return (at) => bytes + slope * (at - share);
}
