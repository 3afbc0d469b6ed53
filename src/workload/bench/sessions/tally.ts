import type { SessionTrace } from "./session-trace.ts";

/** What one way of making room did to a trace. The names are those of the JSON that is printed. */
export interface SessionFigures {
  /** Times room was made: the tail of a session freed at once, or one block dropped. */
  readonly evictions: number;
  readonly mean_eviction_tokens: number;
  readonly largest_eviction_tokens: number;
  /** Those of them that freed a session's tail, and how much that was. */
  readonly session_evictions: number;
  readonly mean_session_eviction_tokens: number;
  readonly evicted_tokens: number;
  /** Tokens computed although an earlier request of the trace had computed them. */
  readonly recomputed_tokens: number;
  /** Tokens that were there, of all tokens of all prompts. */
  readonly hit_ratio: number;
  /** Turns that found a part of the conversation gone that the turn before had. */
  readonly turns_prefilled_again: number;
  /** Tokens of those parts. */
  readonly prefilled_again_tokens: number;
  readonly mean_prefilled_again_tokens: number;
}

/** Counts tokens while a trace is simulated. */
export class Tally {
  readonly #trace: SessionTrace;
  readonly #seen: Uint8Array;
  #blockEvictions = 0;
  #sessionEvictions = 0;
  #blockTokens = 0;
  #sessionTokens = 0;
  #largest = 0;
  #prompt = 0;
  #hit = 0;
  #recomputed = 0;
  #turnsAgain = 0;
  #again = 0;

  constructor(trace: SessionTrace) {
    this.#trace = trace;
    this.#seen = new Uint8Array(trace.distinct);
  }

  blockEvicted(block: number): void {
    const tokens = this.#trace.tokens[block]!;
    this.#blockEvictions++;
    this.#blockTokens += tokens;
    this.#largest = Math.max(this.#largest, tokens);
  }

  /** The blocks `trace.blocks[from .. to)` were freed at once. */
  sessionEvicted(from: number, to: number): void {
    const tokens = this.#tokensOf(from, to);
    this.#sessionEvictions++;
    this.#sessionTokens += tokens;
    this.#largest = Math.max(this.#largest, tokens);
  }

  /** Request `request`, whose blocks begin at `from`, found its first `hits` blocks. */
  served(request: number, from: number, hits: number): void {
    const { blocks, ends, kept, tokens } = this.#trace;
    const to = ends[request]!;
    for (let at = from; at < to; at++) {
      const block = blocks[at]!;
      this.#prompt += tokens[block]!;
      if (at < from + hits) this.#hit += tokens[block]!;
      else if (this.#seen[block] === 1) this.#recomputed += tokens[block]!;
      this.#seen[block] = 1;
    }
    if (kept[request]! <= hits) return;
    this.#turnsAgain++;
    this.#again += this.#tokensOf(from + hits, from + kept[request]!);
  }

  #tokensOf(from: number, to: number): number {
    const { blocks, tokens } = this.#trace;
    let sum = 0;
    for (let at = from; at < to; at++) sum += tokens[blocks[at]!]!;
    return sum;
  }

  get promptTokens(): number {
    return this.#prompt;
  }

  figures(): SessionFigures {
    const evictions = this.#blockEvictions + this.#sessionEvictions;
    const evicted = this.#blockTokens + this.#sessionTokens;
    return {
      evictions,
      mean_eviction_tokens: mean(evicted, evictions),
      largest_eviction_tokens: this.#largest,
      session_evictions: this.#sessionEvictions,
      mean_session_eviction_tokens: mean(this.#sessionTokens, this.#sessionEvictions),
      evicted_tokens: evicted,
      recomputed_tokens: this.#recomputed,
      hit_ratio: this.#prompt === 0 ? 0 : Math.round((this.#hit / this.#prompt) * 10_000) / 10_000,
      turns_prefilled_again: this.#turnsAgain,
      prefilled_again_tokens: this.#again,
      mean_prefilled_again_tokens: mean(this.#again, this.#turnsAgain),
    };
  }
}

function mean(sum: number, count: number): number {
  return count === 0 ? 0 : Math.round(sum / count);
}
