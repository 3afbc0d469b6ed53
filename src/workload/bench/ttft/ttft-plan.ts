import { fileBytesOf } from "../../../store/kvb/index.ts";

/** A dense transformer with grouped queries, 16 bits a value. */
export interface Shape {
  readonly layers: number;
  readonly hidden: number;
  readonly heads: number;
  readonly kv_heads: number;
  readonly head_dim: number;
  readonly intermediate: number;
  readonly vocabulary: number;
}

export const TTFT_SHAPES = {
  "qwen3-14b": {
    layers: 40,
    hidden: 5120,
    heads: 40,
    kv_heads: 8,
    head_dim: 128,
    intermediate: 17_408,
    vocabulary: 151_936,
  },
  tiny: {
    layers: 4,
    hidden: 64,
    heads: 4,
    kv_heads: 2,
    head_dim: 16,
    intermediate: 128,
    vocabulary: 1_000,
  },
} as const satisfies Record<string, Shape>;
export type TtftShape = keyof typeof TTFT_SHAPES;

/** `hash`: no transformer, for a host without PyTorch. */
export const TTFT_COMPUTES = ["torch", "hash"] as const;
/** Turns of one conversation, as deep as it was when pins were measured. */
export const TTFT_PROMPTS: readonly number[] = [3_158, 4_810, 7_347, 10_826, 15_002];

/** What the driver reads; its fields are those of `Plan` in python/hearth_bench/plan.py. */
export interface TtftPlan {
  readonly socket: string;
  readonly library: string | null;
  readonly device: string;
  readonly compute: (typeof TTFT_COMPUTES)[number];
  readonly shape: Shape;
  readonly block_tokens: number;
  readonly prompts: readonly number[];
  readonly rounds: number;
  readonly connections: number;
}

/** At least so many tokens of a prompt are computed, however much of it is restored. */
const COMPUTED_MIN = 64;
const BYTES_PER_VALUE = 2;
const PAGE = 4096;
const SPARE_BYTES = 2 ** 26;

/** What an agent needs to keep one layer of each block of all prompts. */
export function needsOf({ shape, block_tokens: tokens, prompts }: TtftPlan): {
  readonly blocks: number;
  readonly ramBytes: number;
  readonly ssdBytes: number;
} {
  const wholeBlocks = prompts.map((count) =>
    Math.floor(Math.max(0, count - COMPUTED_MIN) / tokens),
  );
  const blocks = shape.layers * wholeBlocks.reduce((sum, count) => sum + count, 0);
  const bytes = 2 * tokens * shape.kv_heads * shape.head_dim * BYTES_PER_VALUE;
  return {
    blocks,
    ramBytes: blocks * Math.ceil(bytes / PAGE) * PAGE + SPARE_BYTES,
    ssdBytes: Math.ceil(1.2 * blocks * fileBytesOf(bytes)) + SPARE_BYTES,
  };
}
