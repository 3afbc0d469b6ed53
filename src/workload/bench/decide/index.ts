export { benchDecide, type DecideBenchOptions, type DecideBenchResult } from "./decide-bench.ts";
