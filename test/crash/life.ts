import { type Random, randomBelow } from "../../src/core/index.ts";
import { BlockOutcome } from "../../src/tiers/index.ts";
import type { CrashAgent } from "./agent.ts";
import { idsOfPrompt, isOneIn, PROMPTS } from "./content.ts";
import { CrashEngine } from "./engine.ts";
import { CrashOperator } from "./operator.ts";
import type { Oracle } from "./oracle.ts";
import type { Tally } from "./tally.ts";

const ENGINES = 3;
const TRIES = 20;
/** By when an agent that answers no more must have ended. */
const DEATH_MS = 5_000;

export interface LifeParts {
  readonly agent: CrashAgent;
  readonly socket: string;
  readonly keeps: boolean;
  readonly oracle: Oracle;
  readonly tally: Tally;
  readonly random: Random;
}

/** What engines and an operator do with one run of the agent. */
export class Life implements AsyncDisposable {
  readonly #parts: LifeParts;
  readonly #engines: CrashEngine[] = [];
  readonly #operator: CrashOperator;
  #isOver = false;

  constructor(parts: LifeParts) {
    this.#parts = parts;
    this.#operator = new CrashOperator(parts.agent.url, parts);
  }

  /** Errors from now on are those of an agent that is ending. */
  expectEnd(): void {
    this.#isOver = true;
  }

  async connect(): Promise<void> {
    await this.#unlessDead(async () => {
      for (let i = 0; i < ENGINES; i++) {
        this.#engines.push(await CrashEngine.connect(this.#parts.socket, this.#parts));
      }
    });
  }

  /** Reads every block there is; true where all were read. */
  async verify(): Promise<boolean> {
    const prompts = Array.from({ length: PROMPTS }, (_, prompt) => prompt);
    const done = await Promise.all(
      this.#engines.map((engine) =>
        this.#unlessDead(async () => {
          for (let next = prompts.pop(); next !== undefined; next = prompts.pop()) {
            await this.#verifyPrompt(engine, next);
          }
        }),
      ),
    );
    return this.#engines.length > 0 && done.every((all) => all);
  }

  async #verifyPrompt(engine: CrashEngine, prompt: number): Promise<void> {
    let ids = idsOfPrompt(prompt);
    for (let tries = 0; tries < TRIES && ids.length > 0; tries++) {
      const outcomes = await engine.read(ids);
      ids.forEach((id, i) => {
        if (outcomes[i] === BlockOutcome.miss) this.#parts.tally.missed(id);
      });
      // The others wait for room, or for each other.
      const isSettled = [BlockOutcome.ok, BlockOutcome.miss] as readonly number[];
      ids = ids.filter((_, i) => !isSettled.includes(outcomes[i]!));
    }
    for (const id of ids) {
      if (this.#parts.oracle.mustHave(id)) this.#parts.tally.complain(`block ${id} never came`);
    }
  }

  /** Requests and commands without end: until the agent is dead, or `stop` is aborted. */
  async load(stop: AbortSignal): Promise<void> {
    const engines = this.#engines.map((engine) => () => engine.serve());
    const command = async () => {
      const { random, keeps } = this.#parts;
      if (isOneIn(random, 6)) await this.#operator.persist(keeps);
      else await this.#operator.purge();
      await Bun.sleep(randomBelow(random, 30));
    };
    await Promise.all(
      [...engines, command].map((act) =>
        this.#unlessDead(async () => {
          while (!stop.aborted) await act();
        }),
      ),
    );
  }

  async persist(): Promise<void> {
    await this.#unlessDead(() => this.#operator.persist(this.#parts.keeps));
  }

  /** False where the agent died meanwhile. Throws what the agent did wrong. */
  async #unlessDead(work: () => Promise<void>): Promise<boolean> {
    try {
      await work();
      return true;
    } catch (thrown) {
      const death = this.#parts.agent.ended.then(() => true);
      const isDead = await Promise.race([death, Bun.sleep(DEATH_MS).then(() => false)]);
      if (!isDead && !this.#isOver) this.#parts.tally.complain(`a request failed: ${thrown}`);
      return false;
    }
  }

  async [Symbol.asyncDispose](): Promise<void> {
    for (const engine of this.#engines.splice(0)) await engine[Symbol.asyncDispose]();
  }
}
