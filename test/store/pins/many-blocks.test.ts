import { describe, expect, test } from "bun:test";
import { NO_NODE, type NodeId, seededRandom } from "../../../src/core/index.ts";
import { BlockTable, Tier } from "../../../src/store/blocks/index.ts";
import { PIN_BLOCKS_PER_CALL, type PinRequest } from "../../../src/store/pins/index.ts";
import { must, SPACE } from "../blocks/blocks.ts";
import { HoldKit } from "./hold-kit.ts";
import { MemoryDisk, type MemoryLedger } from "./memory-ledger.ts";
import { verifyPins } from "./verify-pins.ts";

/** Blocks of one row. */
const PART = 4_096;
const COUNT = 5 * PART + 17;
const all = { kind: null, owner: null, after: 0, max: 9 } as const;

/** A kit over a table of many blocks in chains of a hundred; `nodes[n]` is block n. */
class ManyKit {
  readonly kit: HoldKit;
  readonly nodes: NodeId[] = [];

  constructor(ledger: MemoryLedger, clock = new HoldKit().clock) {
    const table = new BlockTable({ nodesMax: COUNT + 1, random: seededRandom(3) });
    this.kit = new HoldKit({ ledger, table }, clock);
    this.kit.capacityBytes = 1e12;
    for (let n = 0; n < COUNT; n++) {
      const source = {
        layer: 0,
        keys: keyOf(n),
        digests: new Uint8Array(keyOf(n).buffer),
        parentKeys: n % 100 === 0 ? new Uint32Array(8) : keyOf(n - 1),
        bytes: new Uint32Array([100]),
      };
      this.nodes.push(must(table.insertResident(source, 0, SPACE, n % 100 !== 0, Tier.ssd)));
    }
  }

  readonly find = (digest: Uint8Array): NodeId => {
    const n = new Uint32Array(digest.slice().buffer)[1]!;
    return this.nodes[n]!;
  };

  ask(kind: "pin" | "lease", nodes: readonly NodeId[]): PinRequest {
    const name = kind === "lease" ? "night" : null;
    return {
      kind,
      owner: "a",
      name,
      nodes,
      ttlMs: null,
      priority: null,
      idleMs: null,
      purges: true,
    };
  }

  held(): NodeId[] {
    return this.nodes.filter((node) => this.kit.table.pinsOf(node) > 0);
  }
}

const keyOf = (n: number) => new Uint32Array([Math.imul(n + 1, 0x9e37_79b1), n, 1, 1, 1, 1, 1, 1]);

async function restarted(disk: MemoryDisk, { kit }: ManyKit): Promise<ManyKit> {
  const next = new ManyKit(disk.open(), kit.clock);
  await next.kit.holds.restore(next.find);
  verifyPins(next.kit.holds);
  return next;
}

/** Bytes of records that are put while `run` does its work. */
async function written(ledger: MemoryLedger, run: () => unknown): Promise<number> {
  const before = ledger.bytesPut;
  await run();
  await ledger.commit();
  return ledger.bytesPut - before;
}

describe("a hold of many blocks", () => {
  test("comes back after a restart as it was, in order, and goes on", async () => {
    const disk = new MemoryDisk();
    const many = new ManyKit(disk.open());
    await many.kit.holds.addAll(many.ask("lease", many.nodes.slice(0, -10)));
    many.kit.holds.extend("night", "a", many.nodes.slice(-10));
    await many.kit.holds.commit();
    const next = await restarted(disk, many);
    expect(next.kit.holds.lease("night")).toMatchObject({ id: 1, blocks: COUNT });
    const ended = await next.kit.holds.endLease("night");
    ended!.forget();
    expect(ended!.nodes).toEqual(next.nodes);
    await next.kit.holds.commit();
    expect([disk.holds.size, disk.parts.size]).toEqual([0, 0]);
  });

  test("costs to change what was touched, once a turn however often", async () => {
    const disk = new MemoryDisk();
    const ledger = disk.open();
    const many = new ManyKit(ledger);
    const { holds } = many.kit;
    const whole = await written(ledger, () => holds.addAll(many.ask("pin", many.nodes)));
    expect(whole).toBeGreaterThanOrEqual(36 * COUNT);
    const one = 36 * PART;
    const unpin = (n: number) => holds.letGo("pin", "a", [many.nodes[n]!]);
    expect(await written(ledger, () => unpin(9_000))).toBeLessThan(one);
    const often = await written(ledger, () => {
      for (let n = 0; n < 64; n++) unpin(n);
    });
    expect(often).toBeLessThan(one);
    const rest = many.held();
    const next = await restarted(disk, many);
    expect(next.held().length).toBe(rest.length);
    expect(next.held()).toEqual(rest);
    expect(await next.kit.holds.letGoAll("pin", "a", next.nodes)).toEqual(
      next.nodes.map((_, n) => n >= 64 && n !== 9_000),
    );
    await next.kit.holds.commit();
    expect([disk.holds.size, disk.parts.size]).toEqual([0, 0]);
  });

  test("of which the first part or a later one is empty, is the rest", async () => {
    const disk = new MemoryDisk();
    const many = new ManyKit(disk.open());
    const { holds } = many.kit;
    await holds.addAll(many.ask("pin", many.nodes));
    const step = PART;
    await holds.letGoAll("pin", "a", many.nodes.slice(0, step));
    await holds.letGoAll("pin", "a", many.nodes.slice(2 * step, 3 * step));
    await holds.commit();
    expect(disk.parts.size).toBe(4);
    const rest = many.held();
    const next = await restarted(disk, many);
    expect(next.held()).toEqual(rest);
    expect(next.kit.holds.list(all).holds).toMatchObject([{ id: 1, blocks: rest.length }]);
  });

  test("whose blocks are missing after the start is written again where they were", async () => {
    const disk = new MemoryDisk();
    const many = new ManyKit(disk.open());
    await many.kit.holds.addAll(many.ask("pin", many.nodes));
    await many.kit.holds.commit();
    const ledger = disk.open();
    const next = new ManyKit(ledger, many.kit.clock);
    const gone = next.nodes[PART + 5];
    const bytes = await written(ledger, () =>
      next.kit.holds.restore((digest) => {
        const node = next.find(digest);
        return node === gone ? NO_NODE : node;
      }),
    );
    expect(bytes).toBe(36 * (PART - 1));
    expect(next.kit.holds.list(all).holds).toMatchObject([{ blocks: COUNT - 1 }]);
  });
});

describe("many blocks at once", () => {
  test("are taken in turns of the loop, and a crash in between leaves nothing", async () => {
    const disk = new MemoryDisk();
    const ledger = disk.open();
    const many = new ManyKit(ledger);
    const added = many.kit.holds.addAll(many.ask("pin", many.nodes));
    expect(many.held()).toHaveLength(PIN_BLOCKS_PER_CALL);
    await ledger.commit();
    expect([disk.holds.size, disk.parts.size]).toEqual([0, 0]);
    // One goes before its turn comes.
    many.kit.table.removeResidency(many.nodes.at(-1)!, Tier.ssd);
    const { id, results } = await added;
    expect([id, results.length, results.at(-1)]).toEqual([1, COUNT, { outcome: "missing" }]);
    expect(results.filter(({ outcome }) => outcome === "done")).toHaveLength(COUNT - 1);
    verifyPins(many.kit.holds);
  });

  test("refused for the budget: the figures are there, whichever slice it was", async () => {
    const many = new ManyKit(new MemoryDisk().open());
    many.kit.capacityBytes = 2 * 100 * (PIN_BLOCKS_PER_CALL + 100);
    const { results, figures, id } = await many.kit.holds.addAll(many.ask("pin", many.nodes));
    const done = results.filter(({ outcome }) => outcome === "done").length;
    expect([id, done]).toEqual([1, PIN_BLOCKS_PER_CALL + 100]);
    expect(figures).toMatchObject({ ownerUsedBytes: 100 * done });
  });

  test("are let go of in turns, whatever ends the hold, and it is over at once", async () => {
    const many = new ManyKit(new MemoryDisk().open());
    const { holds, clock } = many.kit;
    await holds.addAll({ ...many.ask("lease", many.nodes), ttlMs: 5_000 });
    clock.advance(6_000);
    expect(holds.lease("night")).toBeNull();
    expect(holds.list(all).holds).toEqual([]);
    expect(many.held()).toHaveLength(COUNT - PIN_BLOCKS_PER_CALL);
    verifyPins(holds);
    expect(await holds.letGoAll("pin", "a", many.nodes)).not.toContain(true);
    await holds[Symbol.asyncDispose]();
    expect(many.held()).toEqual([]);
    expect(many.kit.ended).toMatchObject([{ nodes: many.nodes }]);
    verifyPins(holds);
  });

  test("that are relieved give room at once, and as often as one asks", async () => {
    const many = new ManyKit(new MemoryDisk().open());
    const { holds } = many.kit;
    await holds.addAll(many.ask("pin", many.nodes));
    let rounds = 0;
    while (holds.relieve("ssd", "no room", "hard")) rounds++;
    expect([rounds, many.held()]).toEqual([Math.ceil(COUNT / PIN_BLOCKS_PER_CALL), []]);
    expect(holds.counts()).toMatchObject({ relieved: 1, pin: { holds: 0, blocks: 0, bytes: 0 } });
    expect(many.kit.said()).toMatchObject([{ kind: "hold_relieved", blocks: COUNT }]);
    verifyPins(holds);
  });
});
