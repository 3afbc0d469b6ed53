import { join } from "node:path";
import { type Answer, complete, type Endpoint, type Question } from "./client.ts";
import { connectorPath } from "./connectors.ts";
import { BLOCK_TOKENS, OFFLINE } from "./model.ts";
import { freePort, Server, type ServerOptions, started } from "./server.ts";

export interface HearthConnector {
  readonly socket: string;
  /** `kv_connector_extra_config` beside the socket. */
  readonly extra?: Readonly<Record<string, unknown>>;
}

export interface VllmOptions extends ServerOptions {
  readonly hearth?: HearthConnector;
  /** Another `--kv-transfer-config`. */
  readonly transfer?: Readonly<Record<string, unknown>>;
  /** Blocks of the engine's own KV cache. */
  readonly blocks?: number;
  readonly lengthMax?: number;
  readonly tensorParallel?: number;
  readonly args?: readonly string[];
  readonly env?: Readonly<Record<string, string>>;
  /** Runs on this host's GPU in bfloat16, with the cache size that vLLM chooses. */
  readonly isGpu?: boolean;
}

/** GiB that the KV cache may take; `--num-gpu-blocks-override` sets the blocks. */
const CACHE_GIB = "1";

function transferConfig({ hearth, transfer }: VllmOptions): Record<string, unknown> | null {
  if (hearth === undefined) return transfer ?? null;
  return {
    kv_connector: "HearthConnector",
    kv_connector_module_path: "hearth_vllm",
    kv_role: "kv_both",
    kv_load_failure_policy: "recompute",
    kv_connector_extra_config: { "hearth.socket": hearth.socket, ...hearth.extra },
  };
}

function commandFor(options: VllmOptions, port: number): string[] {
  const { engine, model, blocks = 512, lengthMax = 8192, tensorParallel = 1 } = options;
  const transfer = transferConfig(options);
  const cache = options.isGpu ? [] : ["--num-gpu-blocks-override", `${blocks}`];
  return [
    ...[join(engine.folder, "bin", "vllm"), "serve", model.folder, "--served-model-name", "tiny"],
    ...["--host", "127.0.0.1", "--port", `${port}`],
    ...["--dtype", options.isGpu ? "bfloat16" : "float32", "--block-size", `${BLOCK_TOKENS}`],
    ...cache,
    ...["--max-model-len", `${lengthMax}`, "--tensor-parallel-size", `${tensorParallel}`],
    ...["--enable-prompt-tokens-details", "--max-num-seqs", "8", "--seed", "0"],
    ...(transfer === null ? [] : ["--kv-transfer-config", JSON.stringify(transfer)]),
    ...(options.args ?? []),
  ];
}

/** Environment of a vLLM without a GPU. */
export const ON_CPU = {
  CUDA_VISIBLE_DEVICES: "",
  VLLM_CPU_KVCACHE_SPACE: CACHE_GIB,
  VLLM_CPU_OMP_THREADS_BIND: "nobind",
  // Up to three engines share the cores: threads that spin after a step would keep them busy.
  OMP_WAIT_POLICY: "PASSIVE",
};

function environmentFor({ env, isGpu }: VllmOptions, pythonPath: string) {
  return {
    ...process.env,
    ...OFFLINE,
    ...(isGpu ? {} : ON_CPU),
    PYTHONPATH: pythonPath,
    VLLM_NO_USAGE_STATS: "1",
    VLLM_SERVER_DEV_MODE: "1",
    VLLM_LOGGING_LEVEL: "INFO",
    PYTHONDONTWRITEBYTECODE: undefined,
    ...env,
  };
}

/** A real `vllm serve`. */
export class Vllm extends Server implements Endpoint {
  readonly model = "tiny";

  private constructor(options: VllmOptions, pythonPath: string) {
    const [port, env] = [freePort(), environmentFor(options, pythonPath)];
    super(options, { command: commandFor(options, port), env, port });
  }

  static async start(options: VllmOptions): Promise<Vllm> {
    return started(new Vllm(options, await connectorPath()));
  }

  ask(question: Question): Promise<Answer> {
    return complete(this, question);
  }

  /** Empties the engine's own prefix cache; `external`: the connector forgets its blocks too. */
  async resetPrefixCache({ external = false } = {}): Promise<void> {
    const path = `/reset_prefix_cache?reset_external=${external}`;
    if (!(await this.post(path))) throw new Error(`${path} failed`);
  }
}
