import { expect, test } from "bun:test";
import fc from "fast-check";
import { describeNative } from "../support/index.ts";
import { type BlockName, chain } from "./names.ts";
import type { Handle, StoreEngine } from "./store-engine.ts";
import { openStoreKit, PAGE, type StoreKit } from "./store-kit.ts";
import { type ModelEngine, StoreModel } from "./store-model.ts";

const SLOTS = 6;
const SEED = 20_260_711;
const RUNS = 50;
const STEPS_MAX = 120;
const NAMES: BlockName[] = [
  ..."a a/b a/b/c a/b/c/d a/b/e a/f a/f/g".split(" "),
  ..."h h/i h/i/j k l m n".split(" "),
];

/** Weights of the kinds of steps. */
const KINDS = {
  put: 8,
  reserve: 3,
  commit: 4,
  corrupt: 1,
  abort: 1,
  get: 5,
  acquire: 3,
  release: 5,
  session: 1,
  sessionEnd: 1,
  abandon: 0.2,
  die: 0.2,
};
type Kind = keyof typeof KINDS;

interface Step {
  readonly kind: Kind;
  readonly engine: number;
  readonly names: readonly BlockName[];
  readonly pick: number;
}

const name = fc.constantFrom(...NAMES);

const steps: fc.Arbitrary<Step> = fc.record({
  kind: fc.oneof(
    ...(Object.keys(KINDS) as Kind[]).map((kind) => ({
      arbitrary: fc.constant(kind),
      weight: 5 * KINDS[kind],
    })),
  ),
  engine: fc.nat({ max: 3 }),
  // A prompt from its beginning, or blocks in any order.
  names: fc.oneof(name.map(chain), fc.array(name, { minLength: 1, maxLength: 5 })),
  pick: fc.nat({ max: 1_000 }),
});

interface Pair {
  real: StoreEngine;
  model: ModelEngine;
  /** Slots granted to the real engine and not released yet. */
  written: Handle[];
  read: Handle[];
  old: Handle[];
  over: boolean;
}

/** The store's answers and the expected ones. */
type Answers = [readonly string[], readonly string[]];

/** The store and its model. Two engines share a namespace, a third one has its own. */
class Bench {
  readonly kit: StoreKit;
  readonly model = new StoreModel(SLOTS);
  readonly pairs: Pair[];
  readonly seen: Map<string, number>;

  constructor(seen: Map<string, number>) {
    this.seen = seen;
    this.kit = openStoreKit({ arenaBytes: SLOTS * 2 * PAGE, blocksMax: 64 });
    this.pairs = [1, 1, 2, 1].map((namespace) => this.#open(namespace));
  }

  #open(namespace: number): Pair {
    return {
      real: this.kit.engine(namespace),
      model: this.model.openEngine(namespace),
      written: [],
      read: [],
      old: [],
      over: false,
    };
  }

  async apply(step: Step): Promise<void> {
    let pair = this.pairs[step.engine]!;
    if (pair.over && step.kind !== "die") {
      pair.real.die();
      this.model.die(pair.model);
      pair = this.#open(pair.model.namespace);
      this.pairs[step.engine] = pair;
    }
    const [real, expected] = await this.#run(pair, step);
    for (const outcome of expected) {
      const name = `${step.kind} ${outcome}`;
      this.seen.set(name, (this.seen.get(name) ?? 0) + 1);
    }
    expect({ ...step, outcome: real }).toEqual({ ...step, outcome: expected });
    this.compare();
  }

  async #run(pair: Pair, step: Step): Promise<Answers> {
    const { real, model, written } = pair;
    const { kind, names } = step;
    switch (kind) {
      case "put": {
        const expected = this.model.reserve(model, names);
        const granted = names.filter((_, i) => expected[i] === "ok");
        const right = granted.map(() => true);
        this.model.commit(model, granted, right);
        return [await real.put(...names), expected];
      }
      case "reserve": {
        const handles = real.reserve(...names);
        written.push(...handles.filter(({ outcome }) => outcome === "ok"));
        return [handles.map(({ outcome }) => outcome), this.model.reserve(model, names)];
      }
      case "get":
      case "acquire":
        return this.#read(pair, step);
      case "session":
      case "sessionEnd":
        return this.#converse(pair, step);
      case "abandon":
      case "die":
        return this.#end(pair, step);
      default:
        return this.#giveBack(pair, step);
    }
  }

  #read({ real, model, read }: Pair, { kind, names, pick }: Step): Answers {
    const stopAtMiss = pick % 2 === 0;
    const handles = real.acquire(names, { stopAtMiss });
    const expected = this.model.acquire(model, names, stopAtMiss);
    const got = handles.filter(({ outcome }) => outcome === "ok");
    expect(got.every((handle) => real.proves(handle))).toBe(true);
    const gotNames = got.map(({ name }) => name);
    if (kind === "acquire") read.push(...got);
    else expect(real.release(got)).toEqual(this.model.release(model, gotNames));
    return [handles.map(({ outcome }) => outcome), expected];
  }

  #converse({ real, model }: Pair, { kind, names, pick }: Step): Answers {
    const session = BigInt(1 + (pick % 2));
    const [last] = names as [BlockName];
    if (kind === "sessionEnd") {
      return [[real.sessionRelease(session)], [this.model.sessionRelease(model, session)]];
    }
    const expected = this.model.sessionCommit(model, session, last);
    return [[real.sessionCommit(session, last)], [expected]];
  }

  #end(pair: Pair, { kind, engine }: Step): Answers {
    const { real, model } = pair;
    this.model.abandon(model);
    if (kind === "abandon") {
      real.abandon();
      pair.over = true;
    } else {
      real.die();
      this.model.die(model);
      this.pairs[engine] = this.#open(model.namespace);
    }
    return [[], []];
  }

  /** Commits, aborts or releases some slots, occasionally more often than allowed. */
  async #giveBack({ real, model, written, read, old }: Pair, step: Step): Promise<Answers> {
    const { kind, pick } = step;
    const held = kind === "release" ? read : written;
    const count = 1 + (pick % 4);
    const taken = held.splice(pick % Math.max(1, held.length - count), count);
    const late = kind !== "release" && pick % 7 === 0 ? old.slice(-1) : [];
    const handles = [...taken, ...late];
    const stale = late.map(() => "stale");
    old.push(...taken);
    const takenNames = taken.map(({ name }) => name);
    if (kind === "abort") {
      return [real.abort(handles), [...this.model.abort(model, takenNames), ...stale]];
    }
    if (kind === "release") {
      return [real.release(handles), [...this.model.release(model, takenNames), ...stale]];
    }
    real.write(taken);
    const right = taken.map((_, i) => kind === "commit" || i !== pick % taken.length);
    const sums = real.checksumsOf(taken).map((sum, i) => (right[i] ? sum : sum ^ 1n));
    const outcomes = await real.commit(
      handles,
      pick % 2 === 0 || !right.every(Boolean) ? sums : [],
    );
    return [outcomes, [...this.model.commit(model, takenNames, right), ...stale]];
  }

  /** Compares the visible blocks of each namespace, the references and all slots. */
  compare(): void {
    for (const { real, model } of [this.pairs[0]!, this.pairs[2]!]) {
      const there = NAMES.filter((name) => real.match([name])[0] === 1);
      expect(there).toEqual(NAMES.filter((name) => this.model.isResident(name, model.namespace)));
    }
    for (const { real, model } of this.pairs) {
      const holds = [...model.holds.values()].reduce(
        (sum, { writing, reads }) => sum + (writing ? 1 : reads),
        0,
      );
      expect(real.holder.held).toBe(holds + model.quarantined);
    }
    const { slotsUsed, slotsQuarantined, ramBlocks, sessions, tableNodes } = this.kit.snapshot();
    expect({ slotsUsed, slotsQuarantined, ramBlocks, sessions, tableNodes }).toEqual({
      slotsUsed: SLOTS - this.model.free,
      slotsQuarantined: this.pairs.reduce((sum, { model }) => sum + model.quarantined, 0),
      ramBlocks: this.model.residentBlocks().length,
      sessions: this.model.sessions.size,
      tableNodes: this.model.nodes.size,
    });
  }

  /** Ends all engines and checks that the remaining blocks are complete and correct. */
  end(): void {
    for (const { real, model } of this.pairs) {
      real.die();
      this.model.abandon(model);
      this.model.die(model);
    }
    this.kit.expectNothingLeft();
    const reader = this.kit.engine(1);
    for (const name of NAMES) {
      const there = this.model.isResident(name, 1);
      expect(reader.get(name)).toEqual([there ? "ok" : "miss"]);
    }
  }
}

describeNative("the RAM store against a literal model", () => {
  test("gives the same answers, evictions and references after every step", async () => {
    const seen = new Map<string, number>();
    await fc.assert(
      fc.asyncProperty(fc.array(steps, { maxLength: STEPS_MAX, size: "max" }), async (list) => {
        const bench = new Bench(seen);
        await using _ = bench.kit;
        for (const step of list) await bench.apply(step);
        bench.end();
      }),
      { seed: SEED, numRuns: RUNS },
    );
    // The steps reach every answer; otherwise the comparison would prove little.
    for (const answer of [
      ...["reserve ok", "reserve full", "reserve present", "reserve pending", "corrupt corrupt"],
      ...["commit ok", "commit stale", "abort ok", "put full", "acquire ok", "acquire miss"],
      ...["acquire skipped", "release ok", "session ok", "session miss"],
    ]) {
      expect({ answer, times: seen.get(answer) ?? 0 }).not.toEqual({ answer, times: 0 });
    }
  });
});
