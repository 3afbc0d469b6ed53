import { readFileSync } from "node:fs";
import { join } from "node:path";
import type { Pair } from "./contract-kit.ts";

/** A peer in its own process, to be killed. */
export class Child implements AsyncDisposable {
  readonly #process;
  readonly #lines: AsyncIterator<string>;

  constructor(path: string, pair: Pair, role: "server" | "client", port: number) {
    const credentials = pair.cluster.host(role === "server" ? "far-server" : "far-client");
    const task = JSON.stringify({ path, role, port, credentials, cluster: pair.cluster.name });
    this.#process = Bun.spawn(["bun", join(import.meta.dir, "child.ts")], {
      stdin: Buffer.from(task),
      stdout: "pipe",
      stderr: "inherit",
    });
    this.#lines = linesOf(this.#process.stdout);
  }

  /** The next line of its output. */
  async line(): Promise<string> {
    const { value, done } = await this.#lines.next();
    if (done) throw new Error("the child ended without a word");
    return value;
  }

  /** Its resident memory in MiB. */
  get residentMib(): number {
    const status = readFileSync(`/proc/${this.#process.pid}/status`, "utf8");
    return Number(/^VmRSS:\s+(\d+) kB$/m.exec(status)?.[1]) / 1024;
  }

  kill(): void {
    this.#process.kill("SIGKILL");
  }

  signal(name: "SIGSTOP" | "SIGCONT"): void {
    this.#process.kill(name);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.kill();
    await this.#process.exited;
  }
}

async function* linesOf(stream: ReadableStream<Uint8Array>): AsyncGenerator<string> {
  let text = "";
  const decoder = new TextDecoder();
  for await (const chunk of stream) {
    text += decoder.decode(chunk, { stream: true });
    const lines = text.split("\n");
    text = lines.pop()!;
    yield* lines;
  }
}
