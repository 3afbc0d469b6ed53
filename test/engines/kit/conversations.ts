import type { Answer } from "./client.ts";
import type { Prompts } from "./prompts.ts";

export interface WorkloadShape {
  readonly conversations: number;
  readonly turns: number;
  readonly systems: number;
  readonly systemTokens: number;
  readonly turnTokens: readonly [min: number, max: number];
}

/** The users' messages: the same for every engine. */
export class Workload {
  /** The order in which conversations take their turn, for each turn. */
  readonly order: readonly (readonly number[])[];
  readonly #systems: readonly number[][];
  readonly #questions: readonly (readonly number[][])[];

  constructor(prompts: Prompts, shape: WorkloadShape) {
    const { conversations, turns, systems, systemTokens, turnTokens } = shape;
    const rounds = Array.from({ length: turns }, () => null);
    const places = Array.from({ length: conversations }, (_, index) => index);
    this.#systems = Array.from({ length: systems }, () => prompts.tokens(systemTokens));
    this.#questions = places.map(() =>
      rounds.map(() => prompts.tokens(prompts.between(...turnTokens))),
    );
    this.order = rounds.map(() => prompts.shuffle(places));
  }

  system(conversation: number): readonly number[] {
    return this.#systems[conversation % this.#systems.length]!;
  }

  question(conversation: number, turn: number): readonly number[] {
    return this.#questions[conversation]![turn]!;
  }
}

/** The conversations of one engine: prompts grow with its answers. */
export class Chats {
  readonly #workload: Workload;
  readonly #histories = new Map<number, number[]>();

  constructor(workload: Workload) {
    this.#workload = workload;
  }

  /** The prompt of the next turn. */
  ask(conversation: number, turn: number): number[] {
    const before = this.#histories.get(conversation) ?? [...this.#workload.system(conversation)];
    const prompt = [...before, ...this.#workload.question(conversation, turn)];
    this.#histories.set(conversation, prompt);
    return [...prompt];
  }

  take(conversation: number, { steps }: Answer): void {
    this.#histories.get(conversation)!.push(...steps.map(({ token }) => token));
  }
}
