import { HearthError, selfCommand, stringifyJson } from "../../../core/index.ts";
import { linesOf } from "../lines.ts";
import type { News, Order, Setup } from "./orders.ts";

type NewsOf<Did extends News["did"]> = Extract<News, { did: Did }>;

/** A process of this same program that is one end of a carrier; disposing kills it. */
export class PeerProcess implements AsyncDisposable {
  readonly #child: Bun.Subprocess<"pipe", "pipe", "inherit">;
  readonly #news: AsyncGenerator<string>;
  port = 0;

  private constructor(signal: AbortSignal) {
    this.#child = Bun.spawn([...selfCommand(), "bench", "peer", "--serve"], {
      // It stops when this pipe ends: also when this process is killed.
      stdin: "pipe",
      stdout: "pipe",
      stderr: "inherit",
      signal,
    });
    this.#news = linesOf(this.#child.stdout);
  }

  static async start(setup: Setup, signal: AbortSignal): Promise<PeerProcess> {
    const started = new PeerProcess(signal);
    started.#write(setup);
    started.port = (await started.#hear("start")).port;
    return started;
  }

  /** Does what it is told, and says that it did. */
  tell<Did extends Order["do"]>(order: Extract<Order, { do: Did }>): Promise<NewsOf<Did>> {
    this.#write(order);
    return this.#hear(order.do as Did);
  }

  #write(document: Setup | Order): void {
    this.#child.stdin.write(`${stringifyJson(document)}\n`);
    this.#child.stdin.flush();
  }

  async #hear<Did extends News["did"]>(did: Did): Promise<NewsOf<Did>> {
    const next = await this.#news.next();
    if (next.done) throw new HearthError("INTERNAL", "the benchmark's other process ended");
    const news = JSON.parse(next.value) as News;
    if (news.did === did) return news as NewsOf<Did>;
    throw new HearthError("INTERNAL", `the benchmark's process said ${news.did} for ${did}`);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#child.kill("SIGKILL");
    await this.#child.exited;
  }
}
