import { expect, test } from "bun:test";
import fc from "fast-check";
import { NO_NODE } from "../../../src/core/index.ts";
import { Tier } from "../../../src/store/blocks/index.ts";
import { ManualClock } from "../../support/index.ts";
import { HoldKit, outcomes } from "./hold-kit.ts";
import { HoldModel, LAST, type ModelBlock, PARENTS, pathTo } from "./hold-model.ts";
import { MemoryDisk } from "./memory-ledger.ts";

const SEED = 20_261_122;
/** Blocks that pins may keep, and those of one owner. */
const HOST_BLOCKS = 9;
const OWNER_BLOCKS = 5;
const CAPACITY_BLOCKS = 100;

const owner = fc.constantFrom("a", "b", "c");
const name = fc.constantFrom("night", "day");
const blocks = fc.array(fc.integer({ min: 1, max: LAST }), { minLength: 1, maxLength: 5 });
const ttlMs = fc.constantFrom(null, 10_000, 20_000, 30_000, 60_000);
const tier = fc.constantFrom("ram" as const, "ssd" as const);
const one = <K extends string>(kind: K) => fc.constant(kind);
const number = fc.integer({ min: 1, max: LAST });

const step = fc.oneof(
  { weight: 4, arbitrary: fc.record({ kind: one("put"), block: number, tier }) },
  { weight: 2, arbitrary: fc.record({ kind: one("copy"), block: number, tier }) },
  { weight: 2, arbitrary: fc.record({ kind: one("leave"), block: number, tier }) },
  { weight: 2, arbitrary: fc.record({ kind: one("use"), block: number }) },
  { weight: 6, arbitrary: fc.record({ kind: one("pin"), owner, blocks, ttlMs }) },
  {
    weight: 3,
    arbitrary: fc.record({
      kind: one("retain"),
      owner,
      blocks,
      priority: fc.integer({ min: 1, max: 99 }),
    }),
  },
  { weight: 3, arbitrary: fc.record({ kind: one("lease"), owner, name, blocks, ttlMs }) },
  { weight: 2, arbitrary: fc.record({ kind: one("extend"), owner, name, blocks }) },
  { weight: 3, arbitrary: fc.record({ kind: one("unpin"), owner, blocks }) },
  { weight: 2, arbitrary: fc.record({ kind: one("release"), owner, blocks }) },
  { weight: 1, arbitrary: fc.record({ kind: one("renew"), name }) },
  { weight: 1, arbitrary: fc.record({ kind: one("endLease"), name }) },
  { weight: 2, arbitrary: fc.record({ kind: one("wait"), tens: fc.integer({ min: 1, max: 3 }) }) },
  { weight: 2, arbitrary: fc.record({ kind: one("relieve"), tier, isSoft: fc.boolean() }) },
  { weight: 1, arbitrary: fc.record({ kind: one("restart"), isReboot: fc.boolean() }) },
);
type Step = typeof step extends fc.Arbitrary<infer T> ? T : never;

const LEASE_TTL_MAX_MS = 40_000;

/** The registry and the model side by side. */
class Pair {
  readonly clock = new ManualClock();
  readonly disk = new MemoryDisk();
  readonly model = new HoldModel();
  readonly seen: Set<string>;
  kit: HoldKit;

  constructor(seen: Set<string>) {
    this.seen = seen;
    this.kit = this.#newKit();
    this.model.hostBudget = HOST_BLOCKS * 100;
    this.model.ownerBudget = OWNER_BLOCKS * 100;
  }

  #newKit(): HoldKit {
    const kit = new HoldKit({ nodesMax: 64, ledger: this.disk.open() }, this.clock);
    kit.capacityBytes = CAPACITY_BLOCKS * 100;
    kit.shares = { host: HOST_BLOCKS / 100, owner: OWNER_BLOCKS / 100 };
    kit.leaseTtlMaxMs = LEASE_TTL_MAX_MS;
    return kit;
  }

  #there(asked: readonly number[]): number[] {
    return [...new Set(asked)].filter((block) => this.model.blocks.has(block));
  }

  async apply(one: Step): Promise<void> {
    const { kit, model } = this;
    switch (one.kind) {
      case "put":
      case "copy":
      case "leave":
      case "use":
        this.#block(one.kind, one.block, "tier" in one ? one.tier : "ram");
        return;
      case "pin":
      case "retain":
      case "lease":
        this.#add(one);
        return;
      case "extend": {
        const hold = model.holds.find((other) => other.name === one.name);
        const there = this.#there(one.blocks);
        const isMine = hold?.owner === one.owner;
        const said = isMine ? model.join(hold, there) : there.map(() => "rejected");
        const added = kit.holds.extend(one.name, one.owner, kit.nodes(...there));
        expect(outcomes(added)).toEqual(said as never);
        this.seen.add(isMine ? "extend" : "extend another's");
        return;
      }
      case "unpin":
      case "release": {
        const kind = one.kind === "unpin" ? "pin" : "retain";
        const there = this.#there(one.blocks);
        const said = model.letGo(kind, one.owner, there);
        expect(kit.holds.letGo(kind, one.owner, kit.nodes(...there))).toEqual(said);
        if (said.includes(true)) this.seen.add(one.kind);
        return;
      }
      case "renew": {
        const hold = model.holds.find((other) => other.name === one.name);
        if (hold !== undefined) hold.endMs = model.nowMs + 30_000;
        expect(kit.holds.renew(one.name, 30_000)).toBe(hold !== undefined);
        return;
      }
      case "endLease": {
        const hold = model.holds.find((other) => other.name === one.name);
        model.holds = model.holds.filter((other) => other !== hold);
        const ended = await kit.holds.endLease(one.name);
        expect(ended?.nodes ?? null).toEqual(hold === undefined ? null : kit.nodes(...hold.blocks));
        ended?.forget();
        return;
      }
      case "wait":
        this.#wait(one.tens * 10_000);
        return;
      case "relieve": {
        this.#wait(10_000);
        const gone = model.relieve(one.tier, one.isSoft);
        const level = one.isSoft ? "soft" : "hard";
        expect(kit.holds.relieve(one.tier, "no room", level)).toBe(gone !== null);
        if (gone !== null) this.seen.add(`${level} ${one.tier}`);
        return;
      }
      case "restart":
        await this.#restart(one.isReboot);
        return;
      default:
        one satisfies never;
    }
  }

  #add(one: Extract<Step, { kind: "pin" | "retain" | "lease" }>): void {
    const { kit, model } = this;
    const there = this.#there(one.blocks);
    const ttlMs = "ttlMs" in one ? one.ttlMs : null;
    const granted = Math.min(ttlMs ?? LEASE_TTL_MAX_MS, LEASE_TTL_MAX_MS);
    const asked = {
      kind: one.kind,
      owner: one.owner,
      name: "name" in one ? one.name : null,
      priority: "priority" in one ? one.priority : null,
    };
    const before = model.holds.length;
    const ends = one.kind === "lease" ? granted : ttlMs;
    const said = model.add({ ...asked, ttlMs: ends, blocks: there });
    const nodes = kit.nodes(...there);
    const added = kit.holds.add({ ...asked, ttlMs, idleMs: null, nodes });
    expect(outcomes(added)).toEqual(said as never);
    for (const outcome of said) this.seen.add(outcome);
    expect(added.id !== null).toBe(model.holds.length > before);
    if (added.id !== null) Object.assign(model.holds.at(-1)!, { id: added.id });
  }

  #wait(ms: number): void {
    const before = this.model.holds.length;
    this.clock.advance(ms);
    this.model.advance(ms);
    if (this.model.holds.length < before) this.seen.add("expired");
  }

  #block(kind: "put" | "copy" | "leave" | "use", n: number, on: "ram" | "ssd"): void {
    const { kit, model } = this;
    const block = model.blocks.get(n);
    const node = kit.node(n);
    const usedSeconds = kit.nowSeconds();
    if (kind === "put") {
      for (const at of pathTo(n).filter((other) => !model.blocks.has(other))) {
        kit.putOne(at, PARENTS[at]! || null, Tier[on]);
        model.blocks.set(at, { ram: on === "ram", ssd: on === "ssd", usedSeconds });
      }
    } else if (block === undefined) return;
    else if (kind === "use") {
      kit.use(n);
      block.usedSeconds = usedSeconds;
    } else if (kind === "copy") {
      if (!block[on]) kit.table.addResidency(node, Tier[on]);
      block[on] = true;
    } else this.#leave(n, block, on);
  }

  /** As an eviction: one copy of two, or the last one of a block that nothing needs. */
  #leave(n: number, block: ModelBlock, on: "ram" | "ssd"): void {
    const { model, kit } = this;
    if (!block[on]) return;
    const isLast = !(block.ram && block.ssd);
    const hasChild = PARENTS.some((parent, child) => parent === n && model.blocks.has(child));
    if (isLast && (hasChild || model.isKept(n))) return;
    kit.table.removeResidency(kit.node(n), Tier[on]);
    block[on] = false;
    if (!isLast) return;
    model.blocks.delete(n);
    expect(kit.node(n)).toBe(NO_NODE);
  }

  async #restart(isReboot: boolean): Promise<void> {
    const { model } = this;
    await this.kit.holds.commit();
    await this.kit.holds[Symbol.asyncDispose]();
    await this.kit.holds.commit();
    if (isReboot) this.clock.reboot();
    this.kit = this.#newKit();
    for (const [n, { ram, ssd, usedSeconds }] of [...model.blocks].sort(([a], [b]) => a - b)) {
      const node = this.kit.putOne(n, PARENTS[n]! || null, ram ? Tier.ram : Tier.ssd);
      if (ram && ssd) this.kit.table.addResidency(node, Tier.ssd);
      this.kit.table.setUses(node, 1, usedSeconds);
    }
    await this.kit.holds.restore(this.kit.find);
    this.seen.add(isReboot ? "reboot" : "restart");
  }

  compare(): void {
    const { kit, model } = this;
    kit.verify();
    for (const n of model.blocks.keys()) {
      expect([n, kit.pins(n)]).toEqual([n, [model.at(n).length]]);
      expect(kit.table.isKept(kit.node(n))).toBe(model.isKept(n));
      const holders = new Set(
        model.at(n).map(({ kind, owner, name }) => `${kind} ${owner} ${name ?? ""}`),
      );
      const said = kit.holds.holdersOf(kit.node(n));
      expect(said).toHaveLength(holders.size);
      const names = said.map((by) => `${by.kind} ${by.owner} ${by.name ?? ""}`);
      expect(new Set(names)).toEqual(holders);
    }
    for (const who of ["a", "b", "c"]) {
      expect(kit.holds.figures(who)).toMatchObject({
        hostUsedBytes: model.hostUsed(),
        ownerUsedBytes: model.ownerUsed(who),
      });
    }
    const { holds } = kit.holds.list({ kind: null, owner: null, after: 0, max: 1_000 });
    expect(holds.map(({ id, blocks, remainingMs }) => ({ id, blocks, remainingMs }))).toEqual(
      model.holds.map(({ id, blocks, endMs }) => ({
        id,
        blocks: blocks.length,
        remainingMs: endMs === null ? null : endMs - model.nowMs,
      })),
    );
  }
}

test("holds do what a list of them would", async () => {
  const seen = new Set<string>();
  await fc.assert(
    fc.asyncProperty(fc.array(step, { maxLength: 60, size: "max" }), async (list) => {
      const pair = new Pair(seen);
      for (const one of list) {
        await pair.apply(one);
        pair.compare();
      }
    }),
    { seed: SEED, numRuns: 150 },
  );
  const rare = ["done", "rejected", "unpin", "release", "expired", "restart", "reboot"];
  for (const word of ["extend", "extend another's"]) expect(seen.has(word)).toBe(true);
  const relieved = ["soft ram", "soft ssd", "hard ram", "hard ssd"];
  for (const word of [...rare, ...relieved]) expect([word, seen.has(word)]).toEqual([word, true]);
});
