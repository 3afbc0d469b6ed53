export { benchEngine, type EngineBenchOptions, type EngineBenchResult } from "./engine-bench.ts";
export { serveEngineBench, startBenchServer } from "./engine-server.ts";
export { benchHash, type HashBench } from "./hash-bench.ts";
