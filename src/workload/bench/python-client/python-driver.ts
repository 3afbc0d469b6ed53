import type { Subprocess } from "bun";
import { HearthError } from "../../../core/index.ts";
import { linesOf } from "../lines.ts";

/** What the driver runs on request. */
export type DriverRun =
  | "large put"
  | "large get"
  | "small put"
  | "small get"
  | "redis put"
  | "redis get";

/** What one run moved, and how long it took. */
export interface Moved {
  readonly bytes: number;
  readonly seconds: number;
}

export interface DriverPlan {
  readonly large_socket: string;
  readonly large_bytes: number;
  readonly small_socket: string;
  readonly small_bytes: number;
  readonly redis_socket: string | null;
}

/** What the driver says of itself. */
export interface DriverAbout {
  readonly python: string;
  /** Whether it has the native library. */
  readonly native: boolean;
  readonly redis: boolean;
  /** Why it cannot reach Redis. */
  readonly why: string | null;
}

export interface PythonDriverOptions {
  readonly python: string;
  /** The folder of hearth_bench and hearth_client. */
  readonly packages: string;
  readonly signal: AbortSignal;
}

/** The Python process that is an engine's client: python/hearth_bench/client.py. */
export class PythonDriver implements AsyncDisposable {
  readonly #process: Subprocess<"pipe", "pipe", "inherit">;
  readonly #lines: AsyncGenerator<string>;
  readonly #signal: AbortSignal;
  readonly #kill = () => this.#process.kill("SIGKILL");

  constructor({ python, packages, signal }: PythonDriverOptions) {
    this.#signal = signal;
    this.#process = Bun.spawn([python, "-m", "hearth_bench.client"], {
      env: { ...process.env, PYTHONPATH: packages },
      stdin: "pipe",
      stdout: "pipe",
      stderr: "inherit",
    });
    signal.addEventListener("abort", this.#kill);
    this.#lines = linesOf(this.#process.stdout);
  }

  async #ask<Answer>(line: string): Promise<Answer> {
    this.#process.stdin.write(`${line}\n`);
    this.#process.stdin.flush();
    const { value } = await this.#lines.next();
    this.#signal.throwIfAborted();
    if (value === undefined) {
      throw new HearthError("UNSUPPORTED", "the Python client ended; its error is above");
    }
    return JSON.parse(value);
  }

  /** Connects and fills what gets read. */
  begin(plan: DriverPlan): Promise<DriverAbout> {
    return this.#ask(JSON.stringify(plan));
  }

  /** One run. */
  run(run: DriverRun): Promise<Moved> {
    return this.#ask(run);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#signal.removeEventListener("abort", this.#kill);
    this.#kill();
    await this.#process.exited;
  }
}
