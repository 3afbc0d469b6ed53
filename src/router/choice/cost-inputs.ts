/**
 * One candidate: tokens of the prompt it holds in each tier (device first, then what goes on from
 * there on host, then on disk), and its load.
 */
export interface CostInput {
  readonly deviceTokens: number;
  readonly hostTokens: number;
  readonly diskTokens: number;
  readonly prefillTokens: number;
  readonly activeBlocks: number;
  readonly additionalBlocks: number;
  readonly activeRequests: number;
}

type Filled<T> = { -readonly [Key in keyof T]: T[Key] };

const WORDS = 7;

/** Those of all candidates, by place: 28 bytes each, so that thousands of decisions can be kept. */
export class CostInputs {
  readonly count: number;
  readonly #words: Uint32Array;

  constructor(count: number) {
    this.count = count;
    this.#words = new Uint32Array(count * WORDS);
  }

  set(place: number, input: CostInput): void {
    const words = this.#words;
    const from = place * WORDS;
    words[from] = input.deviceTokens;
    words[from + 1] = input.hostTokens;
    words[from + 2] = input.diskTokens;
    words[from + 3] = input.prefillTokens;
    words[from + 4] = input.activeBlocks;
    words[from + 5] = input.additionalBlocks;
    words[from + 6] = input.activeRequests;
  }

  /** `into`: written and handed back, where one is given. */
  at(place: number, into: Filled<CostInput> = emptyInput()): Filled<CostInput> {
    const words = this.#words;
    const from = place * WORDS;
    into.deviceTokens = words[from]!;
    into.hostTokens = words[from + 1]!;
    into.diskTokens = words[from + 2]!;
    into.prefillTokens = words[from + 3]!;
    into.activeBlocks = words[from + 4]!;
    into.additionalBlocks = words[from + 5]!;
    into.activeRequests = words[from + 6]!;
    return into;
  }

  prefillTokensAt(place: number): number {
    return this.#words[place * WORDS + 3]!;
  }

  activeRequestsAt(place: number): number {
    return this.#words[place * WORDS + 6]!;
  }
}

export function emptyInput(): Filled<CostInput> {
  return {
    deviceTokens: 0,
    hostTokens: 0,
    diskTokens: 0,
    prefillTokens: 0,
    activeBlocks: 0,
    additionalBlocks: 0,
    activeRequests: 0,
  };
}
