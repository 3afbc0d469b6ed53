import { expect, test } from "bun:test";
import fc from "fast-check";
import { LAYER_ALL } from "../../../src/core/index.ts";
import {
  type Arrival,
  type IncomingBlock,
  type Loan,
  type PulledBlock,
  purgeBlocks,
} from "../../../src/store/index.ts";
import { describeNative } from "../../support/index.ts";
import { type BlockName, chain, digestOf } from "../names.ts";
import type { Handle, StoreEngine } from "../store-engine.ts";
import { namespaceKey, openStoreKit, PAGE, type StoreKit } from "../store-kit.ts";
import { type ModelEngine, type ModelLanding, StoreModel } from "../store-model.ts";
import { verifyStore } from "../verify-store.ts";
import { PeerHost } from "./peer-kit.ts";

const SLOTS = 6;
const SEED = 20_261_122;
const RUNS = 60;
const STEPS_MAX = 120;
const NAMES: BlockName[] = "a a/b a/b/c a/b/d a/e f f/g f/g/h i j k".split(" ");
/** Blocks of another namespace. */
const FOREIGN: BlockName[] = ["x", "x/y"];

/** Weights of the kinds of steps. */
const KINDS = {
  land: 8,
  arrive: 8,
  lie: 1,
  abandon: 1,
  release: 6,
  lend: 4,
  giveBack: 4,
  put: 3,
  foreign: 0.5,
  reserve: 2,
  commit: 3,
  abort: 1,
  acquire: 3,
  unread: 4,
  purge: 2,
  evict: 1,
  session: 1,
  sessionEnd: 1,
};
type Kind = keyof typeof KINDS;

interface Step {
  readonly kind: Kind;
  readonly name: BlockName;
  readonly pick: number;
}

const steps: fc.Arbitrary<Step> = fc.record({
  kind: fc.oneof(
    ...(Object.keys(KINDS) as Kind[]).map((kind) => ({
      arbitrary: fc.constant(kind),
      weight: 2 * KINDS[kind],
    })),
  ),
  name: fc.constantFrom(...NAMES, ...FOREIGN.slice(1)),
  pick: fc.nat({ max: 1_000 }),
});

/** Wrong attributes that a peer may send. */
const LIES: readonly Partial<PulledBlock>[] = [
  { digest: digestOf("nobody's") },
  { layer: 0 },
  { namespace: namespaceKey(2) },
  { bytes: 5_001 },
  { checksum: 99n },
  { aliases: [new Uint8Array(3)] },
];

/** The store's answer and the expected one. */
type Answers = readonly [unknown, unknown];

/** The store and its model: one engine, another namespace, and peers. */
class Bench {
  readonly kit: StoreKit = openStoreKit({ arenaBytes: SLOTS * 2 * PAGE, blocksMax: 64 });
  readonly model = new StoreModel(SLOTS);
  readonly seen: Map<string, number>;
  readonly #peer = new PeerHost(this.kit.store);
  readonly #engine: StoreEngine = this.kit.engine();
  readonly #own: ModelEngine = this.model.openEngine(1);
  readonly #stranger: StoreEngine = this.kit.engine(2);
  readonly #foreign: ModelEngine = this.model.openEngine(2);
  readonly #incoming: { real: IncomingBlock; model: ModelLanding; name: BlockName }[] = [];
  readonly #arrivals: { real: Arrival; name: BlockName }[] = [];
  readonly #loans: { real: Loan; name: BlockName }[] = [];
  readonly #written: Handle[] = [];
  readonly #read: Handle[] = [];

  constructor(seen: Map<string, number>) {
    this.seen = seen;
  }

  async apply(step: Step): Promise<void> {
    const answers = await this.#run(step);
    if (answers === null) return;
    const [real, expected] = answers;
    expect({ ...step, answer: real }).toEqual({ ...step, answer: expected });
    const name = `${step.kind} ${expected}`;
    this.seen.set(name, (this.seen.get(name) ?? 0) + 1);
    verifyStore(this.kit.store);
    this.#compare();
  }

  /** Null if the step is not applicable. */
  #run(step: Step): Answers | null | Promise<Answers | null> {
    switch (step.kind) {
      case "land":
      case "arrive":
      case "lie":
      case "abandon":
        return this.#pull(step);
      case "release": {
        const arrival = take(this.#arrivals, step.pick);
        if (arrival === null) return null;
        arrival.real.release(step.pick % 2 === 0);
        this.model.unlock(arrival.name);
        return ["released", "released"];
      }
      case "lend":
      case "giveBack":
        return this.#lend(step);
      case "purge":
      case "evict":
        return this.#remove(step);
      case "session":
        return [
          this.#engine.sessionCommit(1n, step.name),
          this.model.sessionCommit(this.#own, 1n, step.name),
        ];
      case "sessionEnd":
        return [this.#engine.sessionRelease(1n), this.model.sessionRelease(this.#own, 1n)];
      default:
        return this.#serve(step);
    }
  }

  #pull({ kind, name, pick }: Step): Answers | null {
    if (kind === "land") {
      const real = this.#peer.land(name);
      const model = this.model.land(name);
      if (typeof real === "string" || typeof model === "string") {
        return [typeof real === "string" ? real : "ok", typeof model === "string" ? model : "ok"];
      }
      this.#incoming.push({ real, model, name });
      return ["ok", "ok"];
    }
    const landing = take(this.#incoming, pick);
    if (landing === null) return null;
    if (kind === "abandon") {
      landing.real.abandon();
      this.model.abandonLanding(landing.model);
      return ["gone", "gone"];
    }
    const lie = kind === "lie" ? LIES[pick % LIES.length] : {};
    const committed = this.#peer.commit(landing.name, landing.real, lie);
    const expected = this.model.commitLanding(landing.model, kind !== "lie");
    if (committed.kind === "ok") {
      this.#arrivals.push({ real: committed.arrival, name: landing.name });
    }
    return [committed.kind, expected];
  }

  async #lend({ kind, name, pick }: Step): Promise<Answers | null> {
    if (kind === "lend") {
      const real = await this.#peer.lend(name);
      const expected = this.model.lend(name);
      if (typeof real === "string") return [real, expected ? "lent" : "absent"];
      this.#loans.push({ real, name });
      return ["lent", expected ? "lent" : "absent"];
    }
    const loan = take(this.#loans, pick);
    if (loan === null) return null;
    // The bytes have been those of the block until now.
    expect(this.#peer.proves(loan.name, loan.real)).toBe(true);
    loan.real.release();
    this.model.unlock(loan.name);
    return ["given back", "given back"];
  }

  async #remove({ kind, name }: Step): Promise<Answers> {
    if (kind === "evict") {
      const expected = this.model.dropOne() ? "dropped" : "none";
      return [this.kit.store.ram.dropOne(), expected];
    }
    const expected = this.model.purge(name);
    const address = { digest: digestOf(name), layer: LAYER_ALL };
    return [(await purgeBlocks(this.kit.store, [address]))[0], expected];
  }

  async #serve({ kind, name, pick }: Step): Promise<Answers | null> {
    const { model } = this;
    if (kind === "put" || kind === "foreign") {
      const [real, own] =
        kind === "put" ? [this.#engine, this.#own] : [this.#stranger, this.#foreign];
      const names = kind === "put" ? chain(name) : FOREIGN.slice(0, 1 + (pick % 2));
      const expected = model.reserve(own, names);
      const granted = names.filter((_, i) => expected[i] === "ok");
      model.commit(
        own,
        granted,
        granted.map(() => true),
      );
      return [(await real.put(...names)).join(), expected.join()];
    }
    if (kind === "reserve") {
      const [handle] = this.#engine.reserve(name);
      const [expected] = model.reserve(this.#own, [name]);
      if (handle!.outcome === "ok") this.#written.push(handle!);
      return [handle!.outcome, expected];
    }
    if (kind === "acquire") {
      const [handle] = this.#engine.acquire([name]);
      const [expected] = model.acquire(this.#own, [name], false);
      if (handle!.outcome === "ok") {
        this.#read.push(handle!);
        expect(this.#engine.proves(handle!)).toBe(true);
      }
      return [handle!.outcome, expected];
    }
    const handle = take(kind === "unread" ? this.#read : this.#written, pick);
    if (handle === null) return null;
    if (kind === "unread") {
      return [this.#engine.release([handle])[0], model.release(this.#own, [handle.name])[0]];
    }
    if (kind === "abort") {
      return [this.#engine.abort([handle])[0], model.abort(this.#own, [handle.name])[0]];
    }
    this.#engine.write([handle]);
    const [outcome] = await this.#engine.commit([handle]);
    return [outcome, model.commit(this.#own, [handle.name], [true])[0]];
  }

  #compare(): void {
    const there = NAMES.filter((name) => this.#engine.match([name])[0] === 1);
    expect(there).toEqual(NAMES.filter((name) => this.model.isResident(name, 1)));
    const { slotsUsed, ramBlocks, sessions, tableNodes } = this.kit.snapshot();
    expect({ slotsUsed, ramBlocks, sessions, tableNodes }).toEqual({
      slotsUsed: SLOTS - this.model.free,
      ramBlocks: this.model.residentBlocks().length,
      sessions: this.model.sessions.size,
      tableNodes: this.model.nodes.size,
    });
    const { table } = this.kit.store;
    expect(table.evictableBlocks(2)).toBe(this.model.order.length);
  }

  /** Releases all blocks and checks that the remaining ones are complete and correct. */
  end(): void {
    for (const { real } of this.#incoming) real.abandon();
    for (const { real } of this.#arrivals) real.release(false);
    for (const { real } of this.#loans) real.release();
    this.kit.expectNothingLeft();
    expect(this.kit.store.incoming.areNone).toBe(true);
    expect(this.kit.store.incoming.slotBytes).toBe(0);
    const reader = this.kit.engine(1);
    for (const name of NAMES) {
      const there = this.model.isResident(name, 1);
      expect(reader.get(name)).toEqual([there ? "ok" : "miss"]);
    }
  }
}

/** Removes one element. */
function take<T>(list: T[], pick: number): T | null {
  return list.splice(pick % Math.max(1, list.length), 1)[0] ?? null;
}

describeNative("a store with peers, against a literal model", () => {
  test("gives the same answers, evictions and locks after every step", async () => {
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
      ...["land ok", "land full", "land present", "arrive ok", "arrive unwanted"],
      ...["lie corrupt", "abandon gone", "release released", "lend lent", "lend absent"],
      ...["giveBack given back", "reserve ok", "reserve full", "reserve pending", "commit ok"],
      ...["acquire ok", "purge done", "purge held", "purge missing", "evict dropped"],
      ...["session ok", "sessionEnd ok"],
    ]) {
      expect({ answer, times: seen.get(answer) ?? 0 }).not.toEqual({ answer, times: 0 });
    }
  });
});
