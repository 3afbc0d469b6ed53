import { existsSync, renameSync, rmSync } from "node:fs";
import { join } from "node:path";
import { run } from "../../../scripts/lib/run.ts";
import { cacheFolder } from "./cache.ts";
import type { Installed } from "./install.ts";
import { say } from "./say.ts";

const MAKE_MODEL = join(import.meta.dir, "..", "make-model.py");

/** Environment of every Python process here: no downloads, no GPU, one compute thread. */
export const OFFLINE: Readonly<Record<string, string>> = {
  HF_HUB_OFFLINE: "1",
  TRANSFORMERS_OFFLINE: "1",
  OMP_NUM_THREADS: "1",
};

export interface Model {
  readonly folder: string;
  readonly vocabulary: number;
  /** Bytes of KV in a block of `BLOCK_TOKENS` tokens, over all layers. */
  readonly blockBytes: number;
}

export interface ModelOptions {
  readonly seed: number;
  /** Further options of make-model.py, such as `--layers 8`. */
  readonly extra?: readonly string[];
}

/** The block size of every lane: vLLM on CPU takes multiples of 32 only. */
export const BLOCK_TOKENS = 32;

interface Config {
  readonly num_hidden_layers: number;
  readonly num_key_value_heads: number;
  /** Absent from configurations of latent attention. */
  readonly head_dim?: number;
  readonly kv_lora_rank?: number;
  readonly qk_rope_head_dim?: number;
  readonly vocab_size: number;
  readonly dtype: string;
}

async function describe(folder: string): Promise<Model> {
  const config: Config = await Bun.file(join(folder, "config.json")).json();
  const { num_hidden_layers: layers, num_key_value_heads: heads, kv_lora_rank: latent } = config;
  const item = config.dtype === "float32" ? 4 : 2;
  const perToken =
    latent === undefined
      ? 2 * heads * (config.head_dim ?? 0)
      : latent + (config.qk_rope_head_dim ?? 0);
  const blockBytes = layers * perToken * item * BLOCK_TOKENS;
  return { folder, vocabulary: config.vocab_size, blockBytes };
}

/** A model with random weights, kept in the cache folder under its options. */
export async function ensureModel(engine: Installed, options: ModelOptions): Promise<Model> {
  const extra = options.extra ?? [];
  const digest = Bun.hash.xxHash32(`${extra.join(" ")} ${await Bun.file(MAKE_MODEL).text()}`);
  const name = `seed-${options.seed}-${digest.toString(16)}`;
  const folder = join(cacheFolder(), "models", name);
  if (existsSync(join(folder, "config.json"))) return describe(folder);
  say(`making a model with seed ${options.seed}`);
  const half = `${folder}.part`;
  rmSync(half, { recursive: true, force: true });
  const command = [engine.python, MAKE_MODEL, half, "--seed", `${options.seed}`, ...extra];
  const env = { ...process.env, ...OFFLINE, CUDA_VISIBLE_DEVICES: "" };
  const { ok, output } = await run(command, { env });
  if (!ok) throw new Error(`the model could not be made: ${output}`);
  renameSync(half, folder);
  return describe(folder);
}
