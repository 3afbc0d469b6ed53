import type { ActiveRequest, TargetLoad } from "../../../src/router/index.ts";

interface Live {
  readonly request: ActiveRequest;
  prefillTokens: number;
  outputTokens: number;
  aliveAtMs: number;
}

/** The port's words, one by one, over a list of live requests. */
export class LiteralLoad {
  readonly #blockTokens: number;
  readonly #expiryMs: number;
  live: Live[] = [];

  constructor(blockTokens: number, expiryMs: number) {
    this.#blockTokens = blockTokens;
    this.#expiryMs = expiryMs;
  }

  add(request: ActiveRequest, nowMs: number): void {
    this.free(request.id);
    const { prefillTokens } = request;
    this.live.push({ request, prefillTokens, outputTokens: 0, aliveAtMs: nowMs });
  }

  prefillComplete(id: string, nowMs: number): boolean {
    const live = this.#find(id);
    if (live === undefined) return false;
    Object.assign(live, { prefillTokens: 0, aliveAtMs: nowMs });
    return true;
  }

  output(id: string, tokens: number, nowMs: number): boolean {
    const live = this.#find(id);
    if (live === undefined) return false;
    if (tokens > 0) live.prefillTokens = 0;
    live.outputTokens = Math.max(live.outputTokens, tokens);
    live.aliveAtMs = nowMs;
    return true;
  }

  free(id: string): boolean {
    const before = this.live.length;
    this.live = this.live.filter(({ request }) => request.id !== id);
    return this.live.length < before;
  }

  expire(nowMs: number): string[] {
    const ended = this.live.filter(({ aliveAtMs }) => aliveAtMs + this.#expiryMs <= nowMs);
    this.live = this.live.filter((live) => !ended.includes(live));
    return ended.map(({ request }) => request.id);
  }

  of(target: number): TargetLoad {
    const live = this.#on(target);
    const output = live.map(({ outputTokens }) => Math.ceil(outputTokens / this.#blockTokens));
    return {
      activeBlocks: this.#prompts(target).size + output.reduce((sum, each) => sum + each, 0),
      activePrefillTokens: live.reduce((sum, { prefillTokens }) => sum + prefillTokens, 0),
      activeRequests: live.length,
    };
  }

  additional(target: number, hashes: BigUint64Array, promptTokens: number): number {
    const known = this.#prompts(target);
    const there = [...hashes].filter((hash) => known.has(hash)).length;
    return Math.ceil(promptTokens / this.#blockTokens) - there;
  }

  #prompts(target: number): Set<bigint> {
    return new Set(this.#on(target).flatMap(({ request }) => [...request.hashes]));
  }

  #on(target: number): Live[] {
    return this.live.filter(({ request }) => request.target === target);
  }

  #find(id: string): Live | undefined {
    return this.live.find(({ request }) => request.id === id);
  }
}
