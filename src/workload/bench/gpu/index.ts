export { benchGpu, type GpuBenchOptions, type GpuBenchResult } from "./gpu-bench.ts";
