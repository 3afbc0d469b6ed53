import { expect, test } from "bun:test";
import fc from "fast-check";
import {
  decodeFeed,
  type EngineEvent,
  encodeFeed,
  type FeedChange,
  localHashes,
  noCounts,
  sequenceHashes,
  Translator,
} from "../../src/kvevents/index.ts";
import { loadNative } from "../../src/native/index.ts";
import { describeNative } from "../support/index.ts";
import { LiteralVllm, type RunningRequest } from "./literal-vllm.ts";

const BLOCK = 4;
const BLOCKS = 14;

/** A follower of the literal engine: a translator, and the blocks that it says are held. */
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

  take(changes: readonly FeedChange[]): void {
    for (const { change } of changes) {
      if (change.kind === "cleared") this.held.clear();
      else if (change.kind === "stored") for (const hash of change.hashes) this.held.add(hash);
      else for (const hash of change.hashes) this.held.delete(hash);
    }
  }

  apply(events: readonly EngineEvent[]): void {
    this.take(this.translator.apply(events));
  }

  /** What a restart of the router does. */
  async restart(): Promise<void> {
    const state = { next: 1, lastPayload: 7n, ...this.translator.state() };
    const saved = decodeFeed(await encodeFeed(state, new AbortController().signal))!;
    this.translator = this.#open();
    this.translator.restore(saved);
    this.held = new Set();
    for (const _step of this.translator.announceSteps());
    this.take(this.translator.take());
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

/** Prompts that share beginnings, with more than one block: shorter ones are stored twice. */
const prompt = fc
  .record({
    system: fc.nat({ max: 2 }),
    user: fc.nat({ max: 3 }),
    length: fc.integer({ min: BLOCK + 1, max: 6 * BLOCK }),
  })
  .map(({ system, user, length }) =>
    Array.from({ length }, (_, at) => (at < 2 * BLOCK ? 100 * system + at : 1_000 * user + at)),
  );

const step = fc.oneof(
  { weight: 6, arbitrary: fc.record({ kind: fc.constant("ask"), prompt, isFull: fc.boolean() }) },
  { weight: 3, arbitrary: fc.record({ kind: fc.constant("twins"), prompt, more: fc.nat(6) }) },
  { weight: 1, arbitrary: fc.record({ kind: fc.constant("clear") }) },
  { weight: 1, arbitrary: fc.record({ kind: fc.constant("restart") }) },
) as fc.Arbitrary<
  | { kind: "ask"; prompt: number[]; isFull: boolean }
  | { kind: "twins"; prompt: number[]; more: number }
  | { kind: "clear" | "restart" }
>;
type Step = typeof step extends fc.Arbitrary<infer Value> ? Value : never;

function run(engine: LiteralVllm, one: Step): void {
  if (one.kind === "clear") engine.clear();
  if (one.kind === "ask") {
    const request = engine.start(one.prompt, one.isFull);
    if (request !== null) engine.finish(request);
  }
  if (one.kind !== "twins") return;
  // Both fill the same blocks while they answer: two copies of each.
  const started = [engine.start(one.prompt, false), engine.start(one.prompt, false)];
  const twins = started.filter((request): request is RunningRequest => request !== null);
  for (let at = 0; at < one.more; at++) {
    for (const request of twins) engine.decode(request, 5_000 + at);
  }
  for (const request of twins) engine.finish(request);
}

const asked = fc.array(prompt, { minLength: 4, maxLength: 4 });

describeNative("a literal vLLM", () => {
  test("is followed exactly: twins, full reports, clears, restarts of the router", async () => {
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
          expect(follower.translator.isComplete).toBe(true);
          for (const tokens of prompts) {
            expect(follower.overlap(tokens)).toBe(engine.cachedBlocks(tokens));
          }
        }
      },
    );
    await fc.assert(property, { numRuns: 200 });
  });

  test("followed late never seems to hold more, and exactly that once known", async () => {
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
