import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { Subprocess } from "bun";
import { ROOT } from "../../scripts/lib/paths.ts";

export interface SoakAgentOptions {
  /** The executable to try; null = the checkout's sources. */
  readonly binary: string | null;
  readonly ramBytes: number;
  readonly leaseMs: number;
}

/** What the soak wants to know of `GET /v1/status`. */
export interface SoakStatus {
  readonly arena: { readonly bytes: number; readonly ready_bytes: number };
  readonly ram: { readonly blocks: number; readonly slots: readonly { readonly used: number }[] };
  readonly table: { readonly blocks: number; readonly gpu_blocks: number };
  readonly engine: {
    readonly connections: number;
    readonly slots_held: number;
    readonly slots_quarantined: number;
    readonly cut_off: number;
  };
  readonly counters: Readonly<Record<string, number>>;
}

const START_MS = 30_000;
const STOP_MS = 15_000;
const LINES_KEPT = 40;

/**
 * An agent in a process of its own, with an arena so small that every slot is used over and over.
 */
export class SoakAgent implements AsyncDisposable {
  readonly socketPath: string;
  /** Lines of level error: failures of the agent's own. */
  readonly errors: string[] = [];
  readonly #folder: string;
  readonly #process: Subprocess<"ignore", "ignore", "pipe">;
  readonly #lastLines: string[] = [];
  #url: string | null = null;

  private constructor(folder: string, options: SoakAgentOptions) {
    this.#folder = folder;
    this.socketPath = join(folder, "engine.sock");
    const config = join(folder, "hearth.toml");
    writeFileSync(config, configFor(this.socketPath, options));
    const program =
      options.binary === null ? [process.execPath, join(ROOT, "src/main.ts")] : [options.binary];
    this.#process = Bun.spawn([...program, "agent", "--config", config], {
      cwd: folder,
      stdin: "ignore",
      stdout: "ignore",
      stderr: "pipe",
    });
    void this.#readLog();
  }

  /** Resolves when it serves and has all of its memory. Throws with what it said otherwise. */
  static async start(options: SoakAgentOptions): Promise<SoakAgent> {
    const agent = new SoakAgent(mkdtempSync(join(tmpdir(), "hearth-")), options);
    const deadline = performance.now() + START_MS;
    while (!(await agent.#isReady())) {
      if (agent.#process.exitCode === null && performance.now() < deadline) {
        await Bun.sleep(20);
        continue;
      }
      await agent[Symbol.asyncDispose]();
      throw new Error(`the agent did not start:\n${agent.#lastLines.join("\n")}`);
    }
    return agent;
  }

  async #isReady(): Promise<boolean> {
    if (this.#url === null) return false;
    const { arena } = await this.status();
    return arena.bytes === arena.ready_bytes;
  }

  async status(): Promise<SoakStatus> {
    const response = await fetch(`${this.#url}/v1/status`);
    return (await response.json()) as SoakStatus;
  }

  /** Memory of the process without the arena, which is shared: anonymous pages and mapped files. */
  residentBytes(): number {
    const status = readFileSync(`/proc/${this.#process.pid}/status`, "utf8");
    const kib = (name: string) =>
      Number(new RegExp(`^${name}:\\s+([0-9]+) kB$`, "m").exec(status)![1]);
    return (kib("RssAnon") + kib("RssFile")) * 1024;
  }

  async #readLog(): Promise<void> {
    let rest = "";
    for await (const chunk of this.#process.stderr.pipeThrough(new TextDecoderStream())) {
      const lines = (rest + chunk).split("\n");
      rest = lines.pop()!;
      for (const line of lines) {
        this.#url ??= /"url":"(http:[^"]+)"/.exec(line)?.[1] ?? null;
        if (line.includes('"level":"error"') && this.errors.length < LINES_KEPT)
          this.errors.push(line);
        this.#lastLines.push(line);
        if (this.#lastLines.length > LINES_KEPT) this.#lastLines.shift();
      }
    }
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#process.kill("SIGTERM");
    const forced = setTimeout(() => this.#process.kill("SIGKILL"), STOP_MS);
    await this.#process.exited;
    clearTimeout(forced);
    rmSync(this.#folder, { recursive: true, force: true });
  }
}

function configFor(socketPath: string, { ramBytes, leaseMs }: SoakAgentOptions): string {
  return [
    "[kv]",
    `ram_gib = ${ramBytes / 2 ** 30}`,
    "blocks_max = 8192",
    // The flood must evict every older block; the learned policy keeps some that were reused.
    'policy = "lru"',
    'lock_memory = "off"',
    'huge_pages = "off"',
    "[engine]",
    `socket = ${JSON.stringify(socketPath)}`,
    `lease = "${leaseMs}ms"`,
    'acquire_deadline = "500ms"',
    "[api]",
    'listen = "127.0.0.1:0"',
    "[log]",
    'format = "json"',
    "",
  ].join("\n");
}
