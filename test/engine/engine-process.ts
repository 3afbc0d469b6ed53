import { readFileSync } from "node:fs";
import { join } from "node:path";
import { waitFor } from "../support/index.ts";

const CHILDREN = join(import.meta.dir, "children");

/** An engine in another process; children/ defines the commands of each kind. */
export class EngineProcess implements AsyncDisposable {
  readonly #process: Bun.Subprocess<"pipe", "pipe", "inherit">;
  readonly #lines: AsyncIterator<string>;

  private constructor(socketPath: string, tenant: string, child: string) {
    this.#process = Bun.spawn([process.execPath, join(CHILDREN, child), socketPath, tenant], {
      stdin: "pipe",
      stdout: "pipe",
      stderr: "inherit",
    });
    this.#lines = linesOf(this.#process.stdout);
  }

  static async start(
    socketPath: string,
    tenant = "test",
    child = "engine-child.ts",
  ): Promise<EngineProcess> {
    const engine = new EngineProcess(socketPath, tenant, child);
    const first = await engine.answer();
    if (first !== "ready") throw new Error(`an engine said ${JSON.stringify(first)}`);
    return engine;
  }

  get pid(): number {
    return this.#process.pid;
  }

  tell(...words: string[]): void {
    this.#process.stdin.write(`${JSON.stringify(words)}\n`);
    this.#process.stdin.flush();
  }

  /** The next line of its output. Undefined when the process has ended. */
  async answer(): Promise<unknown> {
    const { done, value } = await this.#lines.next();
    return done ? undefined : JSON.parse(value);
  }

  ask(...words: string[]): Promise<unknown> {
    this.tell(...words);
    return this.answer();
  }

  /** Resolves when the kernel has stopped it. */
  async stop(): Promise<void> {
    this.#process.kill("SIGSTOP");
    await waitFor(() => / T /.test(readFileSync(`/proc/${this.pid}/stat`, "utf8")));
  }

  goOn(): void {
    this.#process.kill("SIGCONT");
  }

  async kill(): Promise<void> {
    this.#process.kill("SIGKILL");
    await this.#process.exited;
  }

  get exited(): Promise<number> {
    return this.#process.exited;
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.kill();
  }
}

async function* linesOf(stream: ReadableStream<Uint8Array>): AsyncGenerator<string> {
  let rest = "";
  const decoder = new TextDecoder();
  for await (const chunk of stream) {
    const lines = (rest + decoder.decode(chunk, { stream: true })).split("\n");
    rest = lines.pop()!;
    yield* lines;
  }
}
