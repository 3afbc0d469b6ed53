import { join } from "node:path";
import type { Subprocess } from "bun";
import { pythonEnvironment } from "../../scripts/lib/python.ts";

/** One line of JSON from a Python process of the soak; each process sends some of these. */
export interface Told {
  readonly done?: number;
  readonly totals?: { readonly killed: number; readonly stopped: number; readonly exited: number };
  readonly wrong_bytes?: number;
  readonly verified?: number;
  readonly violation?: string;
  readonly stored?: number;
  readonly wanted?: number;
  readonly stayed?: number;
}

/** A Python process that lives as long as its standard input is open, or until its work is done. */
export class CrewMember implements AsyncDisposable {
  readonly #process: Subprocess<"pipe", "pipe", "pipe">;
  readonly #name: string;
  readonly #over: Promise<void>;
  readonly #errors: Promise<string>;

  constructor(python: string, script: string, args: string[], onTold: (told: Told) => void) {
    this.#name = script;
    this.#process = Bun.spawn([python, join(import.meta.dir, script), ...args], {
      env: { ...pythonEnvironment(), PYTHONDONTWRITEBYTECODE: "1" },
      stdin: "pipe",
      stdout: "pipe",
      stderr: "pipe",
    });
    this.#errors = new Response(this.#process.stderr).text();
    this.#over = this.#listen(onTold);
  }

  async #listen(onTold: (told: Told) => void): Promise<void> {
    let rest = "";
    for await (const chunk of this.#process.stdout.pipeThrough(new TextDecoderStream())) {
      const lines = (rest + chunk).split("\n");
      rest = lines.pop()!;
      for (const line of lines) onTold(JSON.parse(line) as Told);
    }
  }

  /** Resolves when its work is done and all it said was heard. Throws what it printed else. */
  async finished(): Promise<void> {
    await this.#over;
    const code = await this.#process.exited;
    if (code !== 0) throw new Error(`${this.#name} ended with ${code}:\n${await this.#errors}`);
  }

  /** Tells it that nobody needs more of it, and waits for its last words. */
  async dismissed(): Promise<void> {
    this.#process.stdin.end();
    await this.finished();
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#process.stdin.end();
    this.#process.kill("SIGTERM");
    await this.#process.exited;
  }
}
