import { HearthError, selfCommand, stringifyJson, systemClock } from "../../../core/index.ts";
import { linesOf } from "../lines.ts";
import type { FilesNews, FilesOrder } from "./files-child.ts";

export interface FilesProcessOptions {
  readonly folder: string;
  readonly blocksMax: number;
  readonly blockBytes: number;
  readonly depth: number;
  readonly method: string;
  readonly signal: AbortSignal;
}

type News<Did extends FilesNews["did"]> = Extract<FilesNews, { did: Did }>;

/** A process of this same program that runs `serveFilesBench`; disposing kills it. */
export class FilesProcess implements AsyncDisposable {
  readonly #child: Bun.Subprocess<"pipe", "pipe", "inherit">;
  readonly #news: AsyncGenerator<string>;
  /** From the start of the process until its tier had recovered. */
  readySeconds = 0;
  found: News<"open"> = { did: "open", blocks: 0, adopted: 0, rssMb: 0 };

  private constructor(options: FilesProcessOptions) {
    const { folder, blocksMax, blockBytes, depth, method, signal } = options;
    const words = ["--serve", folder, "--files", `${blocksMax}`, "--block-bytes", `${blockBytes}B`];
    const how = ["--depth", `${depth}`, "--method", method];
    this.#child = Bun.spawn([...selfCommand(), "bench", "ssd", ...words, ...how], {
      // It stops when this pipe ends: also when this process is killed.
      stdin: "pipe",
      stdout: "pipe",
      stderr: "inherit",
      signal,
    });
    this.#news = linesOf(this.#child.stdout);
  }

  static async start(options: FilesProcessOptions): Promise<FilesProcess> {
    const startMs = systemClock.monotonicMs();
    const started = new FilesProcess(options);
    started.found = await started.hear("open");
    started.readySeconds = (systemClock.monotonicMs() - startMs) / 1_000;
    return started;
  }

  tell(order: FilesOrder): void {
    this.#child.stdin.write(`${stringifyJson(order)}\n`);
    this.#child.stdin.flush();
  }

  /** The next news of this kind; `onOther` hears of those before it. */
  async hear<Did extends FilesNews["did"]>(
    did: Did,
    onOther: (news: FilesNews) => void = () => {},
  ): Promise<News<Did>> {
    while (true) {
      const next = await this.#news.next();
      if (next.done) throw new HearthError("INTERNAL", "the benchmark's other process ended");
      const news = JSON.parse(next.value) as FilesNews;
      if (news.did === did) return news as News<Did>;
      onOther(news);
    }
  }

  /** As an agent is stopped: everything is written down. */
  async stop(): Promise<void> {
    this.#child.stdin.end();
    const code = await this.#child.exited;
    if (code === 0) return;
    throw new HearthError("INTERNAL", `the benchmark's other process ended with code ${code}`);
  }

  async kill(): Promise<void> {
    this.#child.kill("SIGKILL");
    await this.#child.exited;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.kill();
  }
}
