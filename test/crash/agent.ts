import type { Subprocess } from "bun";

export interface AgentOptions {
  readonly executable: string;
  readonly configPath: string;
  readonly folder: string;
  /** Planned faults, as zig/base/faults.zig describes them; empty: none. */
  readonly plan: string;
  /** The file that says by how much its wall clock is wrong; without one it is right. */
  readonly wallOffset?: string | undefined;
}

/** How an agent ended. */
export interface End {
  readonly code: number | null;
  readonly signal: string | number | null;
}

const LINES_KEPT = 30;

/** One run of the compiled executable. */
export class CrashAgent {
  /** Its last lines on standard error, for a report. */
  readonly lastLines: string[] = [];
  readonly ended: Promise<End>;
  /** Milliseconds from exec to serving; null where it ended before that. */
  readonly ready: Promise<number | null>;
  url = "";
  /** When it was ready, on this process's monotonic clock. */
  readyMs = 0;
  /** Whether a signal of ours has ended it, or will. */
  killedByUs = false;
  readonly #process: Subprocess<"ignore", "ignore", "pipe">;

  constructor({ executable, configPath, folder, plan, wallOffset }: AgentOptions) {
    const startMs = performance.now();
    this.#process = Bun.spawn([executable, "agent", "--config", configPath], {
      cwd: folder,
      env: {
        ...process.env,
        HEARTH_FAULTS: plan,
        ...(wallOffset === undefined ? {} : { HEARTH_WALL_OFFSET: wallOffset }),
      },
      stdin: "ignore",
      stdout: "ignore",
      stderr: "pipe",
    });
    const ready = Promise.withResolvers<number | null>();
    this.ready = ready.promise;
    const logEnded = this.#readLog(() => {
      this.readyMs = performance.now();
      ready.resolve(this.readyMs - startMs);
    });
    this.ended = this.#process.exited.then(async (): Promise<End> => {
      await logEnded;
      ready.resolve(null);
      const { exitCode: code, signalCode: signal } = this.#process;
      return { code, signal };
    });
  }

  async #readLog(onReady: () => void): Promise<void> {
    let rest = "";
    for await (const chunk of this.#process.stderr.pipeThrough(new TextDecoderStream())) {
      const lines = (rest + chunk).split("\n");
      rest = lines.pop()!;
      for (const line of lines) {
        this.lastLines.push(line);
        if (this.lastLines.length > LINES_KEPT) this.lastLines.shift();
        if (line.includes('"message":"api listening"')) this.url = JSON.parse(line).url;
        if (line.includes('"message":"agent ready"')) onReady();
      }
    }
  }

  kill(): void {
    this.killedByUs = true;
    this.#process.kill("SIGKILL");
  }

  /** Asks it to drain and end. */
  stop(): void {
    this.#process.kill("SIGTERM");
  }
}
