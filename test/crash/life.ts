import { type Random, randomBelow } from "../../src/core/index.ts";
import { BlockOutcome } from "../../src/store/index.ts";
import type { CrashAgent } from "./agent.ts";
import type { CommandLife } from "./commands/commander.ts";
import type { WallClock } from "./commands/wall-clock.ts";
import { idsOfPrompt, isOneIn, PROMPTS } from "./content.ts";
import { CrashEngine } from "./engine.ts";
import { CrashOperator } from "./operator.ts";
import type { Oracle } from "./oracle.ts";
import type { Profile } from "./profiles.ts";
import type { Tally } from "./tally.ts";

const ENGINES = 3;
const TRIES = 20;
const TRY_MS = 10;
/** Of what one engine does while others are at work. */
const FLOOD_ONE_IN = 60;
/** While no engine is at work. */
const PRUNES = 3;
/** The wall clock stays as it is for no longer than that. */
const JUMP_MS = 400;
/** By when an agent that answers no more must have ended. */
const DEATH_MS = 5_000;

export interface LifeParts {
  readonly agent: CrashAgent;
  readonly socket: string;
  readonly profile: Profile;
  /** Null: no commands are sent. */
  readonly commands: CommandLife | null;
  readonly wall: WallClock | null;
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

  /** What was acknowledged before the start is there: holds first, then bytes. */
  async begin(): Promise<boolean> {
    const { commands } = this.#parts;
    const isSeen = commands === null || (await this.#unlessDead(() => commands.begin()));
    return isSeen && (await this.verify());
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
      // Blocks on their way to SSD keep their places in RAM until they are there.
      await Bun.sleep(tries * TRY_MS);
      const outcomes = await engine.read(ids);
      ids.forEach((id, i) => {
        if (outcomes[i] === BlockOutcome.miss) this.#parts.tally.missed(id);
      });
      // The others wait for room, or for each other.
      const isSettled = [BlockOutcome.ok, BlockOutcome.miss] as readonly number[];
      ids = ids.filter((_, i) => !isSettled.includes(outcomes[i]!));
    }
    for (const id of ids) {
      if (this.#parts.tally.promises.mustHave(id))
        this.#parts.tally.complain(`block ${id} never came`);
    }
  }

  /** Requests and commands without end: until the agent is dead, or `stop` is aborted. */
  async load(stop: AbortSignal): Promise<void> {
    const { random, profile, commands, wall } = this.#parts;
    const flood = profile.commands?.flood ?? null;
    const engines = this.#engines.map((engine, i) => () => {
      const mayFlood = flood !== null && i === 0 && isOneIn(random, FLOOD_ONE_IN);
      return mayFlood ? engine.flood(flood, stop) : engine.serve();
    });
    const command = async () => {
      if (isOneIn(random, 6)) await this.#operator.persist(profile.keeps);
      else await this.#operator.purge();
      await Bun.sleep(randomBelow(random, 30));
    };
    const work = [
      ...[...engines, command].map((act) => async () => {
        while (!stop.aborted) await act();
      }),
      ...(commands === null ? [] : [() => commands.operate(stop), () => commands.watch(stop)]),
    ];
    const over = Promise.all(work.map((one) => this.#unlessDead(one))).then(() => true);
    const pause = () => Bun.sleep(randomBelow(random, JUMP_MS)).then(() => false);
    while (wall !== null && !(await Promise.race([over, pause()]))) wall.jump(random);
    await over;
  }

  /** After load: what was acknowledged is as it was, also when three times what fits came by. */
  async audit(): Promise<void> {
    const { profile, commands, random } = this.#parts;
    if (commands === null) return;
    await this.#unlessDead(async () => {
      const flood = profile.commands?.flood ?? null;
      if (flood !== null) await this.#flood(flood, commands);
      await commands.audit();
      if (isOneIn(random, 2)) await commands.strip();
      for (let i = 0; i < PRUNES; i++) await commands.prune();
      if (isOneIn(random, 2)) await commands.flush();
      await commands.audit();
    });
    await this.verify();
  }

  async #flood(bytes: number, commands: CommandLife): Promise<void> {
    const { signal } = new AbortController();
    const each = bytes / this.#engines.length;
    await Promise.all(this.#engines.map((engine) => engine.flood(each, signal)));
    commands.flooded();
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
