/** The load of workers, said as plainly as it can be: the live requests, and sums over them. */
interface Live {
  readonly target: number;
  readonly hashes: readonly bigint[];
  readonly promptTokens: number;
  prefillTokens: number;
  outputTokens: number;
  lastMs: number;
}

export const EXPIRY_MS = 300_000;

export class LiteralSlots {
  readonly #live = new Map<string, Live>();
  readonly #blockTokens: number;

  constructor(blockTokens: number) {
    this.#blockTokens = blockTokens;
  }

  get requests(): number {
    return this.#live.size;
  }

  has(id: string): boolean {
    return this.#live.has(id);
  }

  add(
    id: string,
    target: number,
    prompt: { hashes: readonly bigint[]; promptTokens: number; prefillTokens: number },
    nowMs: number,
  ): void {
    this.#live.set(id, { target, ...prompt, outputTokens: 0, lastMs: nowMs });
  }

  prefillComplete(id: string, nowMs: number): boolean {
    const live = this.#live.get(id);
    if (live === undefined) return false;
    live.prefillTokens = 0;
    live.lastMs = nowMs;
    return true;
  }

  output(id: string, tokens: number, nowMs: number): boolean {
    const live = this.#live.get(id);
    if (live === undefined) return false;
    live.outputTokens = Math.max(live.outputTokens, tokens);
    if (tokens > 0) live.prefillTokens = 0;
    live.lastMs = nowMs;
    return true;
  }

  free(id: string): boolean {
    return this.#live.delete(id);
  }

  expire(nowMs: number): number {
    let gone = 0;
    for (const [id, live] of this.#live) {
      if (nowMs - live.lastMs < EXPIRY_MS) continue;
      this.#live.delete(id);
      gone++;
    }
    return gone;
  }

  dropTarget(target: number): void {
    for (const [id, live] of this.#live) if (live.target === target) this.#live.delete(id);
  }

  #of(target: number): Live[] {
    return [...this.#live.values()].filter((live) => live.target === target);
  }

  activeRequests(target: number): number {
    return this.#of(target).length;
  }

  activePrefillTokens(target: number): number {
    return this.#of(target).reduce((sum, live) => sum + live.prefillTokens, 0);
  }

  /** Different full blocks of the prompts, and for each request the blocks of its output. */
  activeBlocks(target: number): number {
    const different = new Set<bigint>();
    let output = 0;
    for (const { hashes, outputTokens } of this.#of(target)) {
      for (const hash of hashes) different.add(hash);
      output += Math.ceil(outputTokens / this.#blockTokens);
    }
    return different.size + output;
  }

  /** Blocks a prompt would add there. */
  additionalBlocks(target: number, hashes: readonly bigint[], promptTokens: number): number {
    const different = new Set(this.#of(target).flatMap((live) => live.hashes));
    const known = hashes.filter((hash) => different.has(hash)).length;
    return Math.ceil(promptTokens / this.#blockTokens) - known;
  }
}
