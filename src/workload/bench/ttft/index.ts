export { benchTtft, type TtftBenchOptions, type TtftRow } from "./ttft-bench.ts";
export { TTFT_COMPUTES, TTFT_PROMPTS, TTFT_SHAPES, type TtftShape } from "./ttft-plan.ts";
