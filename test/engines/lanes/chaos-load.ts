import { type Answer, complete, type Endpoint } from "../kit/client.ts";
import { compare } from "../kit/compare.ts";
import type { Prompts } from "../kit/prompts.ts";

const WIDTH = 3;
export const TOKENS_OUT = 8;

/** Prompts with the answers of an engine without Hearth. */
export interface Known {
  readonly sent: readonly number[][];
  readonly answers: readonly Answer[];
}

/** Requests without a pause against an engine that may be killed; counts what they got. */
export class Load {
  requests = 0;
  /** Requests that an engine's own death cut off; they are sent again. */
  cut = 0;
  ties = 0;
  cachedTokens = 0;
  promptTokens = 0;
  readonly wrong: string[] = [];
  readonly failed: string[] = [];
  readonly firstTokenMs: number[] = [];

  readonly #engine: Endpoint;
  readonly #known: Known;
  readonly #chance: Prompts;
  #isEnding = false;
  #lives = 0;
  #up: Promise<void> = Promise.resolve();
  #workers: Promise<void>[] = [];

  constructor(engine: Endpoint, known: Known, chance: Prompts) {
    this.#engine = engine;
    this.#known = known;
    this.#chance = chance;
  }

  start(): void {
    this.#workers = Array.from({ length: WIDTH }, () => this.#work());
  }

  async end(): Promise<void> {
    this.#isEnding = true;
    await Promise.all(this.#workers);
  }

  /** Requests in flight may fail and later ones wait while `restart` runs. */
  async during(restart: () => Promise<void>): Promise<void> {
    const { promise, resolve } = Promise.withResolvers<void>();
    this.#lives += 1;
    this.#up = promise;
    try {
      await restart();
    } finally {
      resolve();
    }
  }

  async #work(): Promise<void> {
    while (!this.#isEnding) {
      await this.#up;
      await this.#one(this.#chance.between(0, this.#known.sent.length - 1));
    }
  }

  async #one(index: number): Promise<void> {
    const life = this.#lives;
    try {
      const prompt = this.#known.sent[index]!;
      const answer = await complete(this.#engine, { prompt, tokens: TOKENS_OUT });
      this.#take(index, answer);
    } catch (thrown) {
      if (life !== this.#lives) this.cut += 1;
      else this.failed.push(`prompt ${index}: ${thrown}`);
      await Bun.sleep(100);
    }
  }

  #take(index: number, answer: Answer): void {
    this.requests += 1;
    this.promptTokens += answer.promptTokens;
    this.cachedTokens += answer.cachedTokens;
    this.firstTokenMs.push(answer.firstTokenMs);
    const wanted = this.#known.answers[index]!;
    const { ties, wrong } = compare([wanted], [answer]);
    this.ties += ties;
    if (wrong.length === 0) return;
    const tokens = ({ steps }: Answer) => steps.map(({ token }) => token).join(" ");
    this.wrong.push(`prompt ${index}: ${tokens(answer)} instead of ${tokens(wanted)}`);
  }
}
