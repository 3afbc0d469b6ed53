import { join } from "node:path";
import { ROOT } from "../../../scripts/lib/paths.ts";
import { waitFor } from "../../support/index.ts";
import { type Answer, complete, type Endpoint, type Question } from "./client.ts";
import type { Installed } from "./install.ts";
import { type Metrics, readMetrics } from "./metrics.ts";
import { BLOCK_TOKENS, type Model, OFFLINE } from "./model.ts";
import { Program } from "./programs.ts";
import { say } from "./say.ts";

/** A hang detector: a start takes 40 to 130 s on two busy cores. */
const READY_MS = 600_000;

export interface HearthConnector {
  readonly socket: string;
  /** `kv_connector_extra_config` beside the socket. */
  readonly extra?: Readonly<Record<string, unknown>>;
}

export interface VllmOptions {
  readonly name: string;
  readonly engine: Installed;
  readonly model: Model;
  /** A folder for logs. */
  readonly folder: string;
  readonly hearth?: HearthConnector;
  /** Another `--kv-transfer-config`. */
  readonly transfer?: Readonly<Record<string, unknown>>;
  /** Blocks of the engine's own KV cache. */
  readonly blocks?: number;
  readonly lengthMax?: number;
  readonly tensorParallel?: number;
  readonly args?: readonly string[];
  readonly env?: Readonly<Record<string, string>>;
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
  return [
    ...[join(engine.folder, "bin", "vllm"), "serve", model.folder, "--served-model-name", "tiny"],
    ...["--host", "127.0.0.1", "--port", `${port}`, "--dtype", "float32"],
    ...["--block-size", `${BLOCK_TOKENS}`, "--num-gpu-blocks-override", `${blocks}`],
    ...["--max-model-len", `${lengthMax}`, "--tensor-parallel-size", `${tensorParallel}`],
    ...["--enable-prompt-tokens-details", "--max-num-seqs", "8", "--seed", "0"],
    ...(transfer === null ? [] : ["--kv-transfer-config", JSON.stringify(transfer)]),
    ...(options.args ?? []),
  ];
}

function environmentFor({ env }: VllmOptions): Record<string, string | undefined> {
  return {
    ...process.env,
    ...OFFLINE,
    PYTHONPATH: join(ROOT, "python"),
    CUDA_VISIBLE_DEVICES: "",
    VLLM_CPU_KVCACHE_SPACE: CACHE_GIB,
    VLLM_CPU_OMP_THREADS_BIND: "nobind",
    VLLM_NO_USAGE_STATS: "1",
    VLLM_SERVER_DEV_MODE: "1",
    VLLM_LOGGING_LEVEL: "INFO",
    PYTHONDONTWRITEBYTECODE: undefined,
    ...env,
  };
}

/** A port that was free a moment ago. */
export function freePort(): number {
  const server = Bun.listen({ hostname: "127.0.0.1", port: 0, socket: { data: () => undefined } });
  const { port } = server;
  server.stop(true);
  return port;
}

/** A real `vllm serve`. */
export class Vllm implements AsyncDisposable, Endpoint {
  readonly url: string;
  readonly options: VllmOptions;
  readonly model = "tiny";
  #program: Program;
  readonly #command: string[];

  private constructor(options: VllmOptions) {
    this.options = options;
    const port = freePort();
    this.url = `http://127.0.0.1:${port}`;
    this.#command = commandFor(options, port);
    this.#program = this.#spawn();
  }

  #spawn(): Program {
    const { folder, name } = this.options;
    const logPath = join(folder, `${name}.log`);
    return new Program({
      ...{ command: this.#command, env: environmentFor(this.options), cwd: folder, logPath },
    });
  }

  /** Starts a server and returns it without waiting; `ready` waits. */
  static launch(options: VllmOptions): Vllm {
    say(`starting vLLM ${options.name}`);
    return new Vllm(options);
  }

  static async start(options: VllmOptions): Promise<Vllm> {
    const server = Vllm.launch(options);
    try {
      await server.ready();
      return server;
    } catch (error) {
      await server[Symbol.asyncDispose]();
      throw error;
    }
  }

  /** Waits until the server answers, and sends the request that compiles the sampler. */
  async ready(): Promise<void> {
    const { name } = this.options;
    await waitFor(() => this.#isHealthy(), READY_MS, `${name} being ready`);
    await this.ask({ prompt: [7, 8, 9], tokens: 2, timeoutMs: READY_MS });
    say(`${name} is ready`);
  }

  async #isHealthy(): Promise<boolean> {
    if (!this.#program.isRunning) {
      // Ends the wait at once: the condition cannot become true.
      throw new EngineEnded(`${this.options.name} ended:\n${this.#program.logTail(40)}`);
    }
    await Bun.sleep(200);
    const answer = await fetch(`${this.url}/health`, { keepalive: false }).catch(() => null);
    return answer?.ok === true;
  }

  get pid(): number {
    return this.#program.pid;
  }

  get isRunning(): boolean {
    return this.#program.isRunning;
  }

  log(): string {
    return this.#program.log();
  }

  ask(question: Question): Promise<Answer> {
    return complete(this, question);
  }

  metrics(): Promise<Metrics> {
    return readMetrics(`${this.url}/metrics`);
  }

  /** Empties the engine's own prefix cache. */
  async resetPrefixCache(): Promise<void> {
    const answer = await fetch(`${this.url}/reset_prefix_cache`, { method: "POST" });
    if (!answer.ok) throw new Error(`reset_prefix_cache: ${answer.status} ${await answer.text()}`);
  }

  /** Ends the server and starts it again on the same port. */
  async restart(how: "stop" | "kill" = "stop"): Promise<void> {
    await this.#program[how]();
    say(`restarting vLLM ${this.options.name}`);
    this.#program = this.#spawn();
    await this.ready();
  }

  async kill(): Promise<void> {
    await this.#program.kill();
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#program.stop();
  }
}

class EngineEnded extends Error {}
