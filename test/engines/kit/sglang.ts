import { join } from "node:path";
import { waitFor } from "../../support/index.ts";
import type { Answer, Question, Step } from "./client.ts";
import { connectorPath } from "./connectors.ts";
import { BLOCK_TOKENS, OFFLINE } from "./model.ts";
import { freePort, Server, type ServerOptions, started } from "./server.ts";

const TIMEOUT_MS = 300_000;
const FLUSH_MS = 60_000;

/** Lets stock SGLang run on a CPU: a stand-in for its CUDA kernels, and HiCache in host memory. */
export const CPU_SHIMS = join(import.meta.dir, "..", "fixtures", "sglang_cpu");

export interface HearthBackend {
  readonly socket: string;
  /** File to which a recording subclass of the backend appends its calls. */
  readonly recordTo?: string;
}

export interface SglangOptions extends ServerOptions {
  /** Keeps the KV cache in Hearth through HiCache; without it HiCache is off. */
  readonly hearth?: HearthBackend;
  readonly tokensMax?: number;
}

function hicache({ socket, recordTo }: HearthBackend): string[] {
  const extra = {
    backend_name: "hearth",
    module_path: recordTo === undefined ? "hearth_sglang" : "hearth_sglang_recorder",
    class_name: "HearthStorage",
    interface_v1: 1,
    hicache_storage_pass_prefix_keys: true,
    socket,
  };
  return [
    ...["--enable-hierarchical-cache", "--hicache-ratio", "2", "--hicache-io-backend", "direct"],
    ...["--hicache-mem-layout", "layer_first", "--hicache-write-policy", "write_through"],
    ...["--hicache-storage-prefetch-policy", "wait_complete"],
    ...["--hicache-storage-backend", "dynamic"],
    ...["--hicache-storage-backend-extra-config", JSON.stringify(extra), "--enable-metrics"],
  ];
}

function commandFor({ engine, model, hearth, tokensMax = 8_192 }: SglangOptions, port: number) {
  return [
    ...[engine.python, "-m", "sglang.launch_server", "--model-path", model.folder],
    ...["--served-model-name", "tiny", "--host", "127.0.0.1", "--port", `${port}`],
    ...["--device", "cpu", "--attention-backend", "torch_native", "--dtype", "float32"],
    ...["--page-size", `${BLOCK_TOKENS}`, "--max-total-tokens", `${tokensMax}`],
    ...["--max-running-requests", "4", "--chunked-prefill-size", "2048"],
    ...["--mem-fraction-static", "0.6", "--disable-overlap-schedule", "--skip-server-warmup"],
    ...["--random-seed", "0"],
    ...(hearth === undefined ? [] : hicache(hearth)),
  ];
}

function environment({ hearth }: SglangOptions, pythonPath: string) {
  return {
    ...process.env,
    ...OFFLINE,
    PYTHONPATH: pythonPath,
    HEARTH_SGLANG_RECORD: hearth?.recordTo,
    CUDA_VISIBLE_DEVICES: "",
    SGLANG_USE_CPU_ENGINE: "1",
    PYTHONDONTWRITEBYTECODE: undefined,
  };
}

interface Generated {
  readonly output_ids: readonly number[];
  readonly meta_info: {
    readonly prompt_tokens: number;
    readonly cached_tokens: number;
    readonly output_token_logprobs: readonly (readonly [number, number, unknown])[];
    readonly output_top_logprobs: readonly (readonly (readonly [number, number, unknown])[])[];
  };
}

function stepsOf({ meta_info }: Generated): Step[] {
  return meta_info.output_token_logprobs.map(([logprob, token], index) => {
    const best = (meta_info.output_top_logprobs[index] ?? []).map(([value]) => value);
    return { token, logprob, best: best.sort((a, b) => b - a).slice(0, 2) };
  });
}

/** A real `sglang.launch_server`. */
export class Sglang extends Server {
  private constructor(options: SglangOptions, pythonPath: string) {
    const [port, env] = [freePort(), environment(options, pythonPath)];
    super(options, { command: commandFor(options, port), env, port });
  }

  static async start(options: SglangOptions): Promise<Sglang> {
    return started(new Sglang(options, await connectorPath(CPU_SHIMS)));
  }

  async ask({ prompt, tokens, timeoutMs }: Question): Promise<Answer> {
    const sampling = { max_new_tokens: tokens, temperature: 0, ignore_eos: true };
    const began = performance.now();
    const answer = await fetch(`${this.url}/generate`, {
      method: "POST",
      headers: { "content-type": "application/json" },
      body: JSON.stringify({
        ...{ input_ids: prompt, sampling_params: sampling },
        ...{ return_logprob: true, top_logprobs_num: 2 },
      }),
      keepalive: false,
      signal: AbortSignal.timeout(timeoutMs ?? TIMEOUT_MS),
    });
    if (!answer.ok) throw new Error(`status ${answer.status}: ${await answer.text()}`);
    const generated = (await answer.json()) as Generated;
    const totalMs = performance.now() - began;
    const steps = stepsOf(generated);
    if (steps.length !== tokens) throw new Error(`${steps.length} of ${tokens} tokens came`);
    const { prompt_tokens: promptTokens, cached_tokens: cachedTokens } = generated.meta_info;
    return {
      ...{ steps, promptTokens, cachedTokens, totalMs, firstTokenMs: totalMs },
      transferParams: null,
    };
  }

  /** Sum of a counter of its metrics over all labels; 0 if it is not there. */
  async counter(name: string): Promise<number> {
    const answer = await fetch(`${this.url}/metrics`, { signal: AbortSignal.timeout(FLUSH_MS) });
    const lines = (await answer.text()).split("\n");
    const samples = lines.filter(
      (line) => line.startsWith(`${name}{`) || line.startsWith(`${name} `),
    );
    return samples.reduce((sum, line) => sum + Number(line.slice(line.lastIndexOf(" ") + 1)), 0);
  }

  /** Empties the radix cache and HiCache's host memory; refused while blocks are written. */
  async flushCache(): Promise<void> {
    const flush = async () => {
      await Bun.sleep(200);
      return this.post("/flush_cache");
    };
    await waitFor(flush, FLUSH_MS, "flush_cache being accepted");
  }
}
