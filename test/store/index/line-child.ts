import { join } from "node:path";

/** A process that speaks in lines. */
export class LineChild implements AsyncDisposable {
  readonly #process: Bun.Subprocess<"ignore", "pipe", "inherit">;
  readonly #chunks: AsyncIterator<Uint8Array>;
  readonly #decoder = new TextDecoder();
  #text = "";

  constructor(command: readonly string[]) {
    this.#process = Bun.spawn([...command], { stdin: "ignore", stdout: "pipe", stderr: "inherit" });
    this.#chunks = this.#process.stdout[Symbol.asyncIterator]();
  }

  /** A file of `children/` under this Bun. */
  static ofFile(name: string, ...words: string[]): LineChild {
    return new LineChild([process.execPath, join(import.meta.dir, "children", name), ...words]);
  }

  /** The next line; null at the end. */
  async line(): Promise<string | null> {
    for (;;) {
      const end = this.#text.indexOf("\n");
      if (end >= 0) {
        const line = this.#text.slice(0, end);
        this.#text = this.#text.slice(end + 1);
        return line;
      }
      const { done, value } = await this.#chunks.next();
      if (done) return null;
      this.#text += this.#decoder.decode(value, { stream: true });
    }
  }

  /** SIGKILL; its earlier output can still be read. */
  async kill(): Promise<void> {
    this.#process.kill("SIGKILL");
    await this.#process.exited;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.kill();
  }
}
