import { expect, test } from "bun:test";
import fc from "fast-check";
import {
  decodeSavedIngest,
  type EngineEvent,
  encodeSavedIngest,
  type IngestChange,
  noCounts,
  Translator,
} from "../../src/events/index.ts";
import { loadNative } from "../../src/native/index.ts";
import { describeNative } from "../support/index.ts";
import { localHashes, sequenceHashes } from "./literal-hashes.ts";

const BLOCK = 4;
const BLOCKS = 14;

/** A follower of the literal engine: a translator and the resulting set of blocks. */
class Follower {
  readonly counts = noCounts();
  readonly #totalBlocks: number | null;
  translator: Translator;
  held = new Set<bigint>();

  constructor(isFromStart: boolean, totalBlocks: number | null) {
    this.#totalBlocks = totalBlocks;
    this.translator = this.#open();
    this.translator.begin(isFromStart);
  }

  #open(): Translator {
    const options = { native: loadNative(), blockTokens: null, knownBlocksMax: 1_000 };
    return new Translator({ ...options, totalBlocks: this.#totalBlocks }, this.counts);
  }

  take(changes: readonly IngestChange[]): void {
    for (const { change } of changes) {
      if (change.kind === "cleared") this.held.clear();
      else if (change.kind === "stored") for (const hash of change.hashes) this.held.add(hash);
      else for (const hash of change.hashes) this.held.delete(hash);
    }
  }

  apply(events: readonly EngineEvent[]): void {
    this.take(this.translator.apply(events));
  }

  /** Simulates a restart of the router. */
  async restart(): Promise<void> {
    const state = { next: 1, lastPayload: 7n, ...this.translator.state() };
    const saved = decodeSavedIngest(await encodeSavedIngest(state, new AbortController().signal))!;
    this.translator = this.#open();
    this.translator.restore(saved);
    this.held = new Set();
    for (const _step of this.translator.blocks.announceSteps());
    this.take(this.translator.blocks.changes.take());
  }

  /** Blocks of a prompt that a request would reuse. */
  overlap(tokens: readonly number[]): number {
    const hashes = sequenceHashes(localHashes(Uint32Array.from(tokens), BLOCK));
    const most = Math.floor((tokens.length - 1) / BLOCK);
    let blocks = 0;
    while (blocks < most && this.held.has(hashes[blocks]!)) blocks++;
    return blocks;
  }
}

/** Prompts with common prefixes; those of exactly one block are stored twice. */
const prompt = fc
  .record({
    system: fc.nat({ max: 2 }),
    user: fc.nat({ max: 3 }),
    length: fc.integer({ min: BLOCK, max: 6 * BLOCK }),
  })
  .map(({ system, user, length }) =>
    Array.from({ length }, (_, at) => (at < 2 * BLOCK ? 100 * system + at : 1_000 * user + at)),
  );

const asking = fc.constantFrom<RequestKind[]>("plain", "plain", "full", "logprobs");

const step = fc.oneof(
  { weight: 6, arbitrary: fc.record({ kind: fc.constant("ask"), prompt, request: asking }) },
  { weight: 3, arbitrary: fc.record({ kind: fc.constant("twins"), prompt, more: fc.nat(6) }) },
  { weight: 1, arbitrary: fc.record({ kind: fc.constant("clear") }) },
  { weight: 1, arbitrary: fc.record({ kind: fc.constant("restart") }) },
) as fc.Arbitrary<
  | { kind: "ask"; prompt: number[]; request: RequestKind }
  | { kind: "twins"; prompt: number[]; more: number }
  | { kind: "clear" | "restart" }
>;
type Step = typeof step extends fc.Arbitrary<infer Value> ? Value : never;

function run(engine: LiteralVllm, one: Step): void {
  if (one.kind === "clear") engine.clear();
  if (one.kind === "ask") {
    const request = engine.start(one.prompt, one.request);
    if (request !== null) engine.finish(request);
  }
  if (one.kind !== "twins") return;
  // Both fill the same blocks while they decode: two copies of each.
  const started = [engine.start(one.prompt), engine.start(one.prompt)];
  const twins = started.filter((request): request is RunningRequest => request !== null);
  for (let at = 0; at < one.more; at++) {
    for (const request of twins) engine.decode(request, 5_000 + at);
  }
  for (const request of twins) engine.finish(request);
}

const asked = fc.array(prompt, { minLength: 4, maxLength: 4 });

const tokensFrom = (first: number, count: number) =>
  Array.from({ length: count }, (_, at) => first + at);

/** A follower of an engine with two copies of a block, one of which may be an announcement. */
function twoCopies(totalBlocks: number | null = null) {
  const engine = new LiteralVllm(BLOCKS, BLOCK);
  const follower = new Follower(true, totalBlocks);
  const hot = tokensFrom(1, 2 * BLOCK + 1);
  const turn = (request: RunningRequest | null) => {
    follower.apply(engine.takeEvents());
    return request!;
  };
  const once = (tokens: number[]) => engine.finish(turn(engine.start(tokens)));
  // It runs on while its twin of exactly one block ends, whose copy is then evicted first.
  const running = turn(engine.start(hot));
  once(hot.slice(0, BLOCK));
  for (let other = 1; engine.copiesOf(hot, 0) === 2; other++) once(tokensFrom(1_000 * other, 12));
  return { engine, follower, hot, running, turn };
}

describeNative("a literal vLLM", () => {
  test("a prompt of one block does not make a hot prefix known as absent", () => {
    const { engine, follower, hot, running, turn } = twoCopies();
    expect(engine.cachedBlocks(hot)).toBe(2);
    expect([follower.overlap(hot), follower.translator.isComplete]).toEqual([0, false]);
    // A request that stores after the prefix proves that the prefix is resident.
    for (let at = 0; at < BLOCK; at++) engine.decode(running, 9_000 + at);
    turn(running);
    expect([follower.overlap(hot), follower.translator.isComplete]).toEqual([2, true]);
  });

  test("a late follower that lost a second copy of a hot block learns that the first is held", () => {
    const engine = new LiteralVllm(BLOCKS, BLOCK);
    const hot = tokensFrom(1, 2 * BLOCK + 1);
    // Two copies of block 0 from before the follower: the idle one is evicted first.
    const running = engine.start(hot)!;
    engine.finish(engine.start(hot.slice(0, BLOCK))!);
    engine.takeEvents();
    const follower = new Follower(false, BLOCKS);
    const names = [engine.nameOf(hot, 0), engine.nameOf(hot, 1)];
    const store = (token: number) => {
      for (let at = 0; at < BLOCK; at++) engine.decode(running, token + at);
      follower.apply(engine.takeEvents());
      const prompt = { tokens: Uint32Array.from(hot), cacheSalt: null };
      follower.take(follower.translator.learn(names, prompt));
    };
    store(8_000);
    expect(follower.overlap(hot)).toBe(2);
    for (let other = 1; engine.copiesOf(hot, 0) === 2; other++) {
      engine.finish(engine.start(tokensFrom(1_000 * other, 8))!);
      follower.apply(engine.takeEvents());
    }
    // The removal seemed to be that of the only copy; the next block behind it shows the other.
    expect([follower.overlap(hot), engine.cachedBlocks(hot)]).toEqual([0, 2]);
    store(9_000);
    expect(follower.overlap(hot)).toBe(2);
  });

  test("prompt_logprobs on a partly evicted prompt stores certain copies", () => {
    const engine = new LiteralVllm(BLOCKS, BLOCK);
    const follower = new Follower(true, null);
    const prompt = tokensFrom(1, 3 * BLOCK);
    engine.finish(engine.start(prompt.slice(0, BLOCK))!);
    engine.finish(engine.start(prompt, "logprobs")!);
    follower.apply(engine.takeEvents());
    for (let other = 1; engine.copiesOf(prompt, 0) > 0; other++) {
      engine.finish(engine.start(tokensFrom(1_000 * other, BLOCK + 1))!);
      follower.apply(engine.takeEvents());
      expect(follower.overlap([...prompt, 0])).toBe(engine.cachedBlocks([...prompt, 0]));
      expect(follower.translator.isComplete).toBe(true);
    }
  });

  test("copies that fill the cache settle the possible ones", () => {
    const engine = new LiteralVllm(5, 4);
    const follower = new Follower(true, 5);
    const prompt = tokensFrom(1, 2 * BLOCK + 1);
    for (const kind of ["plain", "full"] as const) engine.finish(engine.start(prompt, kind)!);
    follower.apply(engine.takeEvents());
    for (let other = 1; engine.cachedBlocks(prompt) > 0; other++) {
      engine.finish(engine.start(tokensFrom(1_000 * other, BLOCK))!);
    }
    follower.apply(engine.takeEvents());
    expect([follower.overlap(prompt), follower.translator.isComplete]).toEqual([0, true]);
  });

  test("is followed exactly, or the difference is reported as unknown", async () => {
    const seen = { known: 0, unknown: 0 };
    const property = fc.asyncProperty(
      fc.array(step, { maxLength: 40 }),
      asked,
      async (steps, prompts) => {
        const engine = new LiteralVllm(BLOCKS, BLOCK);
        const follower = new Follower(true, null);
        for (const one of steps) {
          run(engine, one);
          follower.apply(engine.takeEvents());
          if (one.kind === "restart") await follower.restart();
          const { isComplete } = follower.translator;
          if (isComplete) seen.known++;
          else seen.unknown++;
          for (const tokens of prompts) {
            const [found, truth] = [follower.overlap(tokens), engine.cachedBlocks(tokens)];
            if (isComplete) expect(found).toBe(truth);
            else expect(found).toBeLessThanOrEqual(truth);
          }
        }
      },
    );
    await fc.assert(property, { numRuns: 200 });
    expect(seen.known).toBeGreaterThan(10 * seen.unknown);
    expect(seen.unknown).toBeGreaterThan(0);
  });

  test("followed late never appears to have more blocks, and is exact once known", async () => {
    const seen = { complete: 0, learned: 0 };
    const property = fc.asyncProperty(
      fc.array(step, { minLength: 1, maxLength: 30 }),
      fc.array(step, { maxLength: 40 }),
      asked,
      async (before, after, prompts) => {
        const engine = new LiteralVllm(BLOCKS, BLOCK);
        for (const one of before) run(engine, one);
        engine.takeEvents();
        const follower = new Follower(false, BLOCKS);
        for (const one of after) {
          run(engine, one);
          follower.apply(engine.takeEvents());
          if (one.kind === "restart") await follower.restart();
          for (const tokens of prompts) {
            const full = Math.floor(tokens.length / BLOCK);
            const names = Array.from({ length: full }, (_, at) => engine.nameOf(tokens, at));
            const before = follower.held.size;
            const prompt = { tokens: Uint32Array.from(tokens), cacheSalt: null };
            follower.take(follower.translator.learn(names, prompt));
            if (follower.held.size > before) seen.learned++;
            const [found, truth] = [follower.overlap(tokens), engine.cachedBlocks(tokens)];
            expect(found).toBeLessThanOrEqual(truth);
            if (!follower.translator.isComplete) continue;
            expect(found).toBe(truth);
            seen.complete++;
          }
        }
      },
    );
    await fc.assert(property, { numRuns: 300 });
    expect(Math.min(seen.complete, seen.learned)).toBeGreaterThan(10);
  });
});

interface Slot {
  name: bigint | null;
  users: number;
}

/** A running request: its tokens so far and the slots of its blocks. */
interface RunningRequest {
  readonly tokens: number[];
  readonly slots: number[];
  /** Number of its blocks that have names. */
  named: number;
  /** Blocks that were reused at its start. */
  readonly hits: number;
}

type RequestKind = "plain" | "full" | "logprobs";

const ELSEWHERE = { group: null, locality: null, ownership: null } as const;
const NOTHING = {
  ...{ loraName: null, loraId: null, extras: null, cacheSalt: null, sessionId: null },
  eagleNext: null,
} as const;

/**
 * vLLM's block pool, literally: a free queue evicted from the front, copies of equal blocks that
 * are not merged, and the published events. A request never reuses its last token.
 */
class LiteralVllm {
  readonly #blockTokens: number;
  readonly #slots: Slot[];
  readonly #free: number[];
  readonly #cached = new Map<bigint, Set<number>>();
  events: EngineEvent[] = [];

  /** `blocks`: as counted by vLLM, including one that no request gets. */
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
   * Null: too few free blocks. `full`: the request announces reused blocks; `logprobs`: it requests
   * the prompt's logprobs and reuses nothing.
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

  /** Appends a token. Returns false without a free block for it. */
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

  /** Call only while no request runs. */
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
