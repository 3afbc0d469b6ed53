import { join } from "node:path";

/** A process of the lane. Takes commands line by line, and answers each with a line. */
export class Child implements AsyncDisposable {
  readonly #process: Bun.Subprocess<"pipe", "pipe", "inherit">;
  readonly #lines: AsyncIterator<string>;

  private constructor(file: string, words: readonly string[]) {
    this.#process = Bun.spawn([process.execPath, join(import.meta.dir, file), ...words], {
      stdin: "pipe",
      stdout: "pipe",
      stderr: "inherit",
    });
    this.#lines = linesOf(this.#process.stdout);
  }

  /** Ready when it resolves. */
  static async start(file: string, ...words: string[]): Promise<Child> {
    const child = new Child(file, words);
    await child.#answer();
    return child;
  }

  async ask<T>(...words: (string | number)[]): Promise<T> {
    this.#process.stdin.write(`${JSON.stringify(words)}\n`);
    this.#process.stdin.flush();
    return (await this.#answer()) as T;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#process.kill("SIGKILL");
    await this.#process.exited;
  }

  async #answer(): Promise<unknown> {
    const { done, value } = await this.#lines.next();
    if (done) throw new Error("a process of the lane ended");
    return JSON.parse(value);
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

/** The other end: answers each line of standard input, until it ends. */
export async function obey(
  commands: Readonly<Record<string, (...words: string[]) => unknown>>,
): Promise<void> {
  console.log(JSON.stringify("ready"));
  for await (const line of linesOf(Bun.stdin.stream())) {
    const [name, ...words] = JSON.parse(line) as [string, ...string[]];
    const answer = await commands[name]!(...words);
    console.log(JSON.stringify(answer ?? null));
  }
  process.exit(0);
}
