import { describe, test } from "bun:test";
import { findPyzmq, type PyzmqVerdict } from "../../scripts/lib/pyzmq.ts";
import { isRequired } from "../../scripts/lib/required.ts";
import { noteSkip } from "./skips.ts";

let verdict: PyzmqVerdict | null = null;

/**
 * A `describe` for suites against ZeroMQ's own library, by way of pyzmq. Where there is none they
 * are skipped with a printed reason; under `REQUIRE_PYZMQ=1` or `CI=true` they fail.
 */
export function describePyzmq(name: string, suite: () => void): void {
  verdict ??= findPyzmq();
  const { kind } = verdict;
  if (kind === "ready") {
    describe(name, suite);
  } else if (isRequired("PYZMQ")) {
    const { why } = verdict;
    test(`${name}: pyzmq`, () => {
      throw new Error(why);
    });
  } else {
    noteSkip(name, verdict.why);
    describe.skip(name, suite);
  }
}

/**
 * A Python process with `zmq` and a context `c`. Its output is read line by line; text written
 * to it reaches its standard input, and without it it ends.
 */
export class PyzmqProcess implements AsyncDisposable {
  readonly lines: string[] = [];
  readonly #child: Bun.Subprocess<"pipe", "pipe", "inherit">;
  readonly #read: Promise<void>;

  constructor(script: string) {
    verdict ??= findPyzmq();
    if (verdict.kind !== "ready") throw new Error(verdict.why);
    const program = `import sys, time, zmq\nc = zmq.Context()\n${script}`;
    this.#child = Bun.spawn([verdict.path, "-u", "-c", program], {
      env: { ...process.env, ...verdict.env },
      stdin: "pipe",
      stdout: "pipe",
      stderr: "inherit",
    });
    this.#read = this.#readLines();
  }

  async #readLines(): Promise<void> {
    const decoder = new TextDecoder();
    let rest = "";
    for await (const bytes of this.#child.stdout) {
      const parts = (rest + decoder.decode(bytes, { stream: true })).split("\n");
      rest = parts.pop()!;
      this.lines.push(...parts);
    }
  }

  write(line: string): void {
    this.#child.stdin.write(`${line}\n`);
    this.#child.stdin.flush();
  }

  signal(name: "SIGSTOP" | "SIGCONT"): void {
    this.#child.kill(name);
  }

  /** As a crash would: SIGKILL. */
  async kill(): Promise<void> {
    this.#child.kill("SIGKILL");
    await this.#child.exited;
  }

  /** Its exit code, after all that it printed was read. */
  async ended(): Promise<number> {
    const code = await this.#child.exited;
    await this.#read;
    return code;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.kill();
    await this.#read;
  }
}
