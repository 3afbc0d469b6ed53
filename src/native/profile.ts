/**
 * The profile switch: with `HEARTH_NATIVE_PROFILE=1` every native call is timed, and a table of
 * calls, p50 and p99 per function goes to stderr when the process ends.
 */

type NativeCall = (...args: unknown[]) => number;

/** Buckets at powers of 2^(1/4) nanoseconds: a quantile is right to 19 %. */
const BUCKETS = 160;
const PER_DOUBLING = 4;

interface Samples {
  calls: number;
  totalNs: number;
  buckets: Uint32Array;
}

function quantileNs(samples: Samples, quantile: number): number {
  let left = Math.ceil(samples.calls * quantile);
  for (let bucket = 0; bucket < BUCKETS; bucket++) {
    left -= samples.buckets[bucket]!;
    if (left <= 0) return 2 ** (bucket / PER_DOUBLING);
  }
  return Number.POSITIVE_INFINITY;
}

function timed(call: NativeCall, samples: Samples): NativeCall {
  return (...args) => {
    const start = Bun.nanoseconds();
    const result = call(...args);
    const ns = Bun.nanoseconds() - start;
    samples.calls++;
    samples.totalNs += ns;
    const bucket = Math.floor(Math.log2(Math.max(1, ns)) * PER_DOUBLING);
    const index = Math.min(BUCKETS - 1, bucket);
    samples.buckets[index] = samples.buckets[index]! + 1;
    return result;
  };
}

/** Wraps every function of `symbols`; returns the wrapped ones and what prints the table. */
export function profileCalls<T extends Record<string, unknown>>(
  symbols: T,
): { symbols: T; report: () => string } {
  const all = new Map<string, Samples>();
  const wrapped: Record<string, unknown> = {};
  for (const [name, call] of Object.entries(symbols)) {
    const samples = { calls: 0, totalNs: 0, buckets: new Uint32Array(BUCKETS) };
    all.set(name, samples);
    wrapped[name] = timed(call as NativeCall, samples);
  }
  return { symbols: wrapped as T, report: () => formatProfile(all) };
}

function formatProfile(all: Map<string, Samples>): string {
  const used = [...all].filter(([, samples]) => samples.calls > 0);
  used.sort(([, a], [, b]) => b.totalNs - a.totalNs);
  const lines = ["native function                   calls    p50 us    p99 us  total ms"];
  for (const [name, samples] of used) {
    const cells = [
      name.padEnd(30),
      String(samples.calls).padStart(8),
      (quantileNs(samples, 0.5) / 1e3).toFixed(2).padStart(9),
      (quantileNs(samples, 0.99) / 1e3).toFixed(2).padStart(9),
      (samples.totalNs / 1e6).toFixed(1).padStart(9),
    ];
    lines.push(cells.join(" "));
  }
  return lines.join("\n");
}
