export { benchPrefix, type PrefixBenchOptions, type PrefixBenchResult } from "./prefix-bench.ts";
