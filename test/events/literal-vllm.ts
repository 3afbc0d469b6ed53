import type { EngineEvent } from "../../src/events/index.ts";

interface Slot {
  name: bigint | null;
  users: number;
}

/** A request that runs: its tokens so far and the slots of its blocks. */
export interface RunningRequest {
  readonly tokens: number[];
  readonly slots: number[];
  /** Blocks of it that were given their names. */
  named: number;
  /** Blocks that were reused when it began. */
  readonly hits: number;
}

export type RequestKind = "plain" | "full" | "logprobs";

const ELSEWHERE = { group: null, locality: null, ownership: null } as const;
const NOTHING = {
  ...{ loraName: null, loraId: null, extras: null, cacheSalt: null, sessionId: null },
  eagleNext: null,
} as const;

/**
 * vLLM's block pool, literally: a free queue whose front is evicted first, copies of equal blocks
 * that are not merged, and the events that it publishes. A request never reuses its last token.
 */
export class LiteralVllm {
  readonly #blockTokens: number;
  readonly #slots: Slot[];
  readonly #free: number[];
  readonly #cached = new Map<bigint, Set<number>>();
  events: EngineEvent[] = [];

  /** `blocks`: as vLLM counts them, one of which no request gets. */
  constructor(blocks: number, blockTokens: number) {
    this.#blockTokens = blockTokens;
    this.#slots = Array.from({ length: blocks - 1 }, () => ({ name: null, users: 0 }));
    this.#free = this.#slots.map((_, at) => at);
  }

  nameOf(tokens: readonly number[], block: number): bigint {
    const prefix = tokens.slice(0, (block + 1) * this.#blockTokens);
    return Bun.hash.xxHash3(`literal ${prefix.join(" ")}`);
  }

  /** Blocks of a prompt that a request would reuse now. */
  cachedBlocks(tokens: readonly number[]): number {
    const most = Math.floor((tokens.length - 1) / this.#blockTokens);
    let hits = 0;
    while (hits < most && this.#cached.has(this.nameOf(tokens, hits))) hits++;
    return hits;
  }

  copiesOf(tokens: readonly number[], block: number): number {
    return this.#cached.get(this.nameOf(tokens, block))?.size ?? 0;
  }

  /**
   * Null: there are too few free blocks. `full`: it announces what it reuses; `logprobs`: it asks
   * for those of its prompt, and reuses nothing.
   */
  start(tokens: readonly number[], kind: RequestKind = "plain"): RunningRequest | null {
    const hits = kind === "logprobs" ? 0 : this.cachedBlocks(tokens);
    const reused = Array.from({ length: hits }, (_, block) => {
      return this.#cached.get(this.nameOf(tokens, block))!.values().next().value!;
    });
    if (kind === "full" && hits > 0) this.#publishStored(tokens, 0, hits);
    const needed = Math.ceil(tokens.length / this.#blockTokens) - hits;
    const freeOf = (slot: number) => this.#slots[slot]!.users === 0;
    if (this.#free.length - reused.filter(freeOf).length < needed) return null;
    for (const slot of reused) this.#use(slot);
    const slots = [...reused, ...Array.from({ length: needed }, () => this.#take())];
    const request = { tokens: [...tokens], slots, named: hits, hits };
    this.#nameFull(request);
    return request;
  }

  /** One more token. False: there is no free block for it. */
  decode(request: RunningRequest, token: number): boolean {
    if (request.tokens.length % this.#blockTokens === 0) {
      if (this.#free.length === 0) return false;
      request.slots.push(this.#take());
    }
    request.tokens.push(token);
    this.#nameFull(request);
    return true;
  }

  finish({ slots }: RunningRequest): void {
    const [plain, named]: [number[], number[]] = [[], []];
    for (const at of slots.toReversed()) {
      const slot = this.#slots[at]!;
      slot.users--;
      if (slot.users === 0) (slot.name === null ? plain : named).push(at);
    }
    this.#free.unshift(...plain);
    this.#free.push(...named);
  }

  /** To be called while nothing runs. */
  clear(): void {
    this.#cached.clear();
    for (const slot of this.#slots) slot.name = null;
    this.events.push({ kind: "cleared", ownership: null });
  }

  takeEvents(): EngineEvent[] {
    return this.events.splice(0);
  }

  #use(at: number): void {
    const slot = this.#slots[at]!;
    if (slot.users === 0) this.#free.splice(this.#free.indexOf(at), 1);
    slot.users++;
  }

  #take(): number {
    const at = this.#free.shift()!;
    const slot = this.#slots[at]!;
    slot.users = 1;
    if (slot.name === null) return at;
    const copies = this.#cached.get(slot.name)!;
    copies.delete(at);
    if (copies.size === 0) this.#cached.delete(slot.name);
    this.events.push({ kind: "removed", hashes: [slot.name], medium: "GPU", ...ELSEWHERE });
    slot.name = null;
    return at;
  }

  #nameFull(request: RunningRequest): void {
    const full = Math.floor(request.tokens.length / this.#blockTokens);
    if (request.named >= full) return;
    for (let block = request.named; block < full; block++) {
      const name = this.nameOf(request.tokens, block);
      const at = request.slots[block]!;
      this.#slots[at]!.name = name;
      this.#cached.set(name, (this.#cached.get(name) ?? new Set()).add(at));
    }
    this.#publishStored(request.tokens, request.named, full);
    request.named = full;
  }

  #publishStored(tokens: readonly number[], from: number, to: number): void {
    const hashes = Array.from({ length: to - from }, (_, at) => this.nameOf(tokens, from + at));
    const own = tokens.slice(from * this.#blockTokens, to * this.#blockTokens);
    this.events.push({
      ...{ kind: "stored", hashes, parent: from === 0 ? null : this.nameOf(tokens, from - 1) },
      ...{ tokens: Uint32Array.from(own), blockTokens: this.#blockTokens, medium: "GPU" },
      ...{ ...ELSEWHERE, ...NOTHING },
    });
  }
}
