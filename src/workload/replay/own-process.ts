import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { Subprocess } from "bun";
import {
  assert,
  HearthError,
  messageOf,
  selfCommand,
  sleep,
  systemClock,
} from "../../core/index.ts";

export interface OwnProcessOptions {
  /** In messages: `agent`. */
  readonly name: string;
  /** A folder that goes with it, in which it runs. */
  readonly folder: string;
  /** Behind the program's own name; it must write its log as JSON to standard error. */
  readonly words: readonly string[];
}

const START_MS = 30_000;
/** Longer than one takes at the most. */
const STOP_MS = 60_000;
const LOG_LINES_KEPT = 20;

/** This program in another process, with an HTTP API, in a folder of its own. */
export class OwnProcess {
  readonly #options: OwnProcessOptions;
  readonly #lastLines: string[] = [];
  #process: Subprocess<"pipe", "ignore", "pipe">;
  #apiUrl: string | null = null;
  #logEnded: Promise<void>;

  constructor(options: OwnProcessOptions) {
    this.#options = options;
    this.#process = this.#spawn();
    this.#logEnded = this.#readLog();
  }

  #spawn(): Subprocess<"pipe", "ignore", "pipe"> {
    const { folder, words } = this.#options;
    return Bun.spawn([...selfCommand(), ...words], {
      cwd: folder,
      // It ends when this pipe does: also when this process is killed.
      stdin: "pipe",
      stdout: "ignore",
      stderr: "pipe",
      // Its own group: Ctrl-C is ours to handle, so that it can drain.
      detached: true,
    });
  }

  /** Of the process that runs now. */
  get pid(): number {
    return this.#process.pid;
  }

  /** Where its HTTP API listens. */
  get apiUrl(): string {
    assert(this.#apiUrl !== null, "a process that serves has said where");
    return this.#apiUrl;
  }

  /** Resolves when its API listens. Throws what it said where it does not. */
  async answers(signal?: AbortSignal): Promise<void> {
    await this.until(START_MS, "answer", signal, async () => this.#apiUrl !== null);
  }

  /** Starts it again after it was ended. */
  async startAgain(): Promise<void> {
    await this.#logEnded;
    this.#apiUrl = null;
    this.#process = this.#spawn();
    this.#logEnded = this.#readLog();
  }

  /** What the API has at this path. Throws ENGINE_CLOSED where nothing answers. */
  async read(path: string, init: RequestInit = {}): Promise<string> {
    try {
      return await (await fetch(`${this.#apiUrl}${path}`, init)).text();
    } catch (cause) {
      throw (await this.ended()) ?? new HearthError("ENGINE_CLOSED", "no answer", { cause });
    }
  }

  /** How it ended, with its last words; null while it runs. */
  async ended(): Promise<HearthError | null> {
    const { exitCode, signalCode } = this.#process;
    if (exitCode === null && signalCode === null) return null;
    await this.#logEnded;
    const how = signalCode === null ? `with code ${exitCode}` : `by ${signalCode}`;
    const words = this.#lastLines.map((line) => `\n  ${line}`).join("");
    return new HearthError("ENGINE_CLOSED", `the ${this.#options.name} ended ${how}${words}`);
  }

  /** Waits until it holds, and throws where it ends before. */
  async until(
    ms: number,
    what: string,
    signal: AbortSignal | undefined,
    holds: () => Promise<boolean>,
  ): Promise<void> {
    const deadline = systemClock.monotonicMs() + ms;
    while (!(await holds())) {
      const ended = await this.ended();
      if (ended !== null) throw ended;
      if (systemClock.monotonicMs() > deadline) {
        const late = `the ${this.#options.name} did not ${what} within ${ms / 1_000} s`;
        throw new HearthError("DEADLINE", late);
      }
      await sleep(systemClock, 10, signal);
    }
  }

  async end(by: "SIGTERM" | "SIGKILL"): Promise<void> {
    this.#process.kill(by);
    const forced = systemClock.after(STOP_MS, () => this.#process.kill("SIGKILL"));
    await this.#process.exited;
    forced[Symbol.dispose]();
  }

  /** Reads the log, in which it says where its API listens. */
  async #readLog(): Promise<void> {
    let rest = "";
    for await (const chunk of this.#process.stderr.pipeThrough(new TextDecoderStream())) {
      const lines = (rest + chunk).split("\n");
      rest = lines.pop()!;
      for (const line of lines) this.#noteLine(line);
    }
  }

  #noteLine(line: string): void {
    this.#lastLines.push(line);
    if (this.#lastLines.length > LOG_LINES_KEPT) this.#lastLines.shift();
    this.#apiUrl ??= /"url":"(http:[^"]+)"/.exec(line)?.[1] ?? null;
  }
}

/** The longest path a Unix socket may have. */
const SOCKET_PATH_BYTES_MAX = 107;

/** A temporary folder that only this user can enter, with room for the name of a socket in it. */
export function makeFolder(): string {
  const parent = tmpdir();
  const fix = "set TMPDIR to a folder that is there, short and yours";
  let folder: string;
  try {
    folder = mkdtempSync(join(parent, "hearth-"));
  } catch (cause) {
    const text = `no temporary folder can be made in ${parent}: ${messageOf(cause)}`;
    throw new HearthError("UNSUPPORTED", text, { cause, fix });
  }
  if (Buffer.byteLength(join(folder, "engine.sock")) <= SOCKET_PATH_BYTES_MAX) return folder;
  rmSync(folder, { recursive: true });
  throw new HearthError("UNSUPPORTED", `a socket in ${parent} would have too long a name`, { fix });
}
