import { existsSync } from "node:fs";
import type { Subprocess } from "bun";
import { HearthError, sleep, systemClock } from "../../core/index.ts";

/** Yields the whole lines of a stream as they arrive. */
export async function* linesOf(stream: ReadableStream<Uint8Array>): AsyncGenerator<string> {
  const decoder = new TextDecoder();
  let rest = "";
  for await (const chunk of stream) {
    const lines = (rest + decoder.decode(chunk, { stream: true })).split("\n");
    rest = lines.pop()!;
    yield* lines;
  }
}

interface LineProcessOptions {
  readonly signal: AbortSignal;
  /** Variables to add to the environment. */
  readonly env?: Readonly<Record<string, string>>;
  /** Collect the standard error of the process instead of showing it. */
  readonly keepsErrors?: boolean;
}

/**
 * Another process that reads lines from its standard input and answers each with JSON documents,
 * one per line. The process must stop at the end of its input, so that it also stops if this
 * process is killed. Disposing kills it.
 */
export class LineProcess implements AsyncDisposable {
  /** All output on standard error, if it is collected. */
  readonly errors: Promise<string>;
  readonly #process: Subprocess<"pipe", "pipe", "pipe" | "inherit">;
  readonly #lines: AsyncGenerator<string>;
  readonly #signal: AbortSignal;

  constructor(words: string[], { signal, env, keepsErrors = false }: LineProcessOptions) {
    this.#signal = signal;
    this.#process = Bun.spawn(words, {
      env: { ...process.env, ...env },
      stdin: "pipe",
      stdout: "pipe",
      stderr: keepsErrors ? "pipe" : "inherit",
      signal,
      killSignal: "SIGKILL",
    });
    this.#lines = linesOf(this.#process.stdout);
    const { stderr } = this.#process;
    this.errors = stderr === undefined ? Promise.resolve("") : stderr.text();
  }

  send(line: string): void {
    this.#process.stdin.write(`${line}\n`);
    this.#process.stdin.flush();
  }

  /**
   * Returns the next document. Throws the signal's reason, or INTERNAL if the process has ended.
   */
  async next(): Promise<unknown> {
    const document = await this.nextOrEnd();
    if (document !== undefined) return document;
    throw new HearthError("INTERNAL", "the benchmark's other process ended");
  }

  /** Returns the next document; undefined if the process has ended. Throws the signal's reason. */
  async nextOrEnd(): Promise<unknown> {
    const { value } = await this.#lines.next();
    this.#signal.throwIfAborted();
    return value === undefined ? undefined : JSON.parse(value);
  }

  /** Closes the input and waits until the process ends. Throws INTERNAL if it fails. */
  async stop(): Promise<void> {
    this.#process.stdin.end();
    const code = await this.#process.exited;
    if (code === 0) return;
    throw new HearthError("INTERNAL", `the benchmark's other process ended with code ${code}`);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#process.kill("SIGKILL");
    await this.#process.exited;
  }
}

const START_MS = 60_000;
const POLL_MS = 10;

interface ServerOptions {
  /** Path of a file that the server creates when it is ready. */
  readonly ready: string;
  readonly stopBy: "SIGTERM" | "SIGKILL";
  readonly signal: AbortSignal;
}

/**
 * Starts a server process and waits until it is ready. Disposing stops it. Throws UNSUPPORTED if it
 * does not start.
 */
export async function startServer(
  words: string[],
  { ready, stopBy, signal }: ServerOptions,
): Promise<AsyncDisposable> {
  const server = Bun.spawn(words, { stdin: "ignore", stdout: "ignore", stderr: "inherit" });
  const stop = async () => {
    server.kill(stopBy);
    await server.exited;
  };
  const deadline = systemClock.monotonicMs() + START_MS;
  while (!existsSync(ready)) {
    if (server.exitCode !== null || systemClock.monotonicMs() > deadline) {
      await stop();
      throw new HearthError("UNSUPPORTED", `${words.join(" ")} did not start`);
    }
    await sleep(systemClock, POLL_MS, signal);
  }
  return { [Symbol.asyncDispose]: stop };
}
