import type { Subprocess } from "bun";
import { HearthError } from "../../../core/index.ts";
import { linesOf } from "../lines.ts";
import type { TtftPlan } from "./ttft-plan.ts";

/** What the driver measured of one prompt; milliseconds of each sample. */
export interface Measured {
  readonly event: "ram" | "ssd";
  readonly prompt_tokens: number;
  readonly restored_tokens: number;
  readonly bytes: number;
  readonly prefill_ms?: readonly number[];
  readonly restore_ms: readonly number[];
  readonly load_ms: readonly number[];
  readonly identical: boolean;
  readonly bare_gbps: number;
}
export type DriverEvent = Measured | { readonly event: "started" | "stored" | "done" };

export interface TtftDriverOptions {
  /** The interpreter, and the folder of the packages it runs. */
  readonly python: string;
  readonly driver: string;
  readonly compute: TtftPlan["compute"];
  readonly signal: AbortSignal;
}

const WORDS_KEPT = 4_000;

/** The Python process that stands for an engine: python/hearth_bench/ttft.py. */
export class TtftDriver implements AsyncDisposable {
  readonly #process: Subprocess<"pipe", "pipe", "pipe">;
  readonly #events: AsyncGenerator<string>;
  readonly #signal: AbortSignal;
  readonly #words: Promise<string>;

  constructor({ python, driver: folder, compute, signal }: TtftDriverOptions) {
    this.#signal = signal;
    this.#process = Bun.spawn([python, "-m", "hearth_bench.ttft", compute], {
      env: { ...process.env, PYTHONPATH: folder },
      stdin: "pipe",
      stdout: "pipe",
      stderr: "pipe",
    });
    signal.addEventListener("abort", this.#kill);
    this.#events = linesOf(this.#process.stdout);
    this.#words = this.#process.stderr.text();
  }

  readonly #kill = () => this.#process.kill("SIGKILL");

  #say(line: string): void {
    this.#process.stdin.write(`${line}\n`);
    this.#process.stdin.flush();
  }

  /** Once it has said that it started: there is an agent to be measured. */
  begin(plan: TtftPlan): void {
    this.#say(JSON.stringify(plan));
  }

  /** The agent began anew and has everything on SSD alone. */
  beginAnew(): void {
    this.#say("ssd");
  }

  /** What it says next. Throws UNSUPPORTED with its last words where it ended instead. */
  async next(): Promise<DriverEvent> {
    const { value } = await this.#events.next();
    this.#signal.throwIfAborted();
    if (value !== undefined) return JSON.parse(value);
    const words = (await this.#words).trim().slice(-WORDS_KEPT);
    const last = words.split("\n").at(-1);
    const fix = "give --python one that has PyTorch, or measure with --compute hash";
    const hint = last?.includes("torch") ? { fix } : {};
    throw new HearthError("UNSUPPORTED", `the driver ended: ${last || "without a word"}`, {
      cause: words,
      ...hint,
    });
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#signal.removeEventListener("abort", this.#kill);
    this.#kill();
    await this.#process.exited;
  }
}
