import { closeSync, openSync, readFileSync, statSync } from "node:fs";
import { processGroups } from "./process-groups.ts";

const STOP_MS = 20_000;
const GROUP_END_MS = 3_000;

export interface ProgramOptions {
  readonly command: readonly string[];
  readonly env: Readonly<Record<string, string | undefined>>;
  readonly cwd: string;
  readonly logPath: string;
}

/** A program and all its children: a process group of its own that ends with this process. */
export class Program implements AsyncDisposable {
  readonly logPath: string;
  readonly #child: Bun.Subprocess;
  readonly #logStart: number;

  constructor({ command, env, cwd, logPath }: ProgramOptions) {
    this.logPath = logPath;
    const log = openSync(logPath, "a");
    this.#logStart = statSync(logPath).size;
    try {
      this.#child = Bun.spawn([...command], {
        ...{ cwd, env, detached: true },
        stdio: ["ignore", log, log],
      });
    } finally {
      closeSync(log);
    }
    processGroups.watch(this.#child.pid);
  }

  get pid(): number {
    return this.#child.pid;
  }

  get isRunning(): boolean {
    return this.#child.exitCode === null && this.#child.signalCode === null;
  }

  /** The log of this start. */
  log(): string {
    return readFileSync(this.logPath).subarray(this.#logStart).toString();
  }

  logTail(lines = 15): string {
    return this.log().trimEnd().split("\n").slice(-lines).join("\n");
  }

  /** Sends a signal to the whole group; false if none of it is left. */
  signal(name: NodeJS.Signals): boolean {
    return processGroups.send(this.pid, name);
  }

  /** `kill -9` of the group. */
  async kill(): Promise<void> {
    this.signal("SIGKILL");
    await this.#child.exited;
    await this.#groupEnd();
  }

  /** SIGTERM to the program, SIGKILL to what is left of the group after 20 s. */
  async stop(): Promise<void> {
    if (this.isRunning) process.kill(this.pid, "SIGTERM");
    const timer = setTimeout(() => this.signal("SIGKILL"), STOP_MS);
    await this.#child.exited;
    clearTimeout(timer);
    this.signal("SIGKILL");
    await this.#groupEnd();
  }

  async #groupEnd(): Promise<void> {
    // A zombie that its new parent does not collect keeps the group; it holds no resources.
    const deadline = performance.now() + GROUP_END_MS;
    while (this.signal("SIGKILL") && performance.now() < deadline) await Bun.sleep(10);
    processGroups.forget(this.pid);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.kill();
  }
}
