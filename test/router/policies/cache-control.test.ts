import { describe, expect, test } from "bun:test";
import { BLOCK, done, missing, namesOf, PolicyKit } from "./kit.ts";

const ON = { cacheControl: { mode: "on", ttlMs: 300_000, ttlMaxMs: 3_600_000 } } as const;
const PROMPT = "sys tools a b c";

function marked(kit: PolicyKit, owner: string, blocks: number, ttlMs: number | null = null) {
  return (prompt: string, worker = "w") => {
    const id = kit.route(null, prompt, worker);
    kit.policies.marks.cacheControl(id, owner, [{ promptTokens: blocks * BLOCK + 1, ttlMs }]);
    kit.prefilled(id);
    kit.free(id);
    return id;
  };
}

describe("what a message marks", () => {
  test("a marked prefix is pinned by its deepest block for owner and TTL", async () => {
    using kit = new PolicyKit(ON);
    const id = kit.route(null, PROMPT);
    kit.policies.marks.cacheControl(id, "tenant", [{ promptTokens: 2 * BLOCK, ttlMs: null }]);
    expect(kit.sent).toEqual([]);
    kit.prefilled(id);
    expect(kit.sent).toEqual([
      {
        worker: "w",
        command: {
          ...{ type: "Cache", block_hashes: namesOf(PROMPT, 1, 2), pin: true },
          ...{ ttl_seconds: 300, owner: "tenant" },
        },
      },
    ]);
    await kit.settle();
    kit.free(id);
    expect(kit.sent).toHaveLength(1);
    expect(kit.actions.get(id)?.[0]).toMatchObject({ command: "Cache", outcome: "1 done" });
  });

  test("a pin is renewed only after half of its TTL", async () => {
    using kit = new PolicyKit(ON);
    const ask = marked(kit, "tenant", 2);
    for (let minute = 0; minute < 6; minute++) {
      ask(PROMPT);
      await kit.pass(60_000);
    }
    expect(kit.sent).toHaveLength(2);
  });

  test("TTLs are capped and the last marks count", async () => {
    using kit = new PolicyKit(ON);
    const id = kit.route(null, "a b c d e f");
    const marks = [1, 2, 3, 4, 5, 6].map((blocks) => ({
      ...{ promptTokens: blocks * BLOCK, ttlMs: 9e9 },
    }));
    kit.policies.marks.cacheControl(id, "tenant", marks);
    kit.free(id);
    expect(kit.sent.map(({ command }) => [command.block_hashes, command.ttl_seconds])).toEqual(
      [2, 3, 4, 5].map((block) => [namesOf("a b c d e f", block, block + 1), 3_600]),
    );
  });

  test("a mark over the owner's budget is declined; shared prefixes count once", async () => {
    const budget = { ownerTokensMax: 5 * BLOCK };
    using kit = new PolicyKit({ cacheControl: { ...ON.cacheControl, ...budget } });
    const ask = marked(kit, "tenant", 4);
    ask("sys tools a b");
    ask("sys tools a c");
    const over = ask("sys tools x y");
    await kit.settle();
    expect(kit.sent).toHaveLength(2);
    expect(kit.actions.get(over)).toEqual([
      {
        ...{ policy: "cache_control", command: "Cache", worker: "w" as never },
        ...{ isDryRun: false, outcome: "declined: owner_budget" },
      },
    ]);
    expect(kit.counts("cache_control").declined).toEqual({ owner_budget: 1 });
    // Another owner, and another worker, have budgets of their own.
    marked(kit, "other", 4)("sys tools x y");
    ask("sys tools x y", "w2");
    expect(kit.sent).toHaveLength(4);
    await kit.pass(301_000);
    ask("sys tools x y");
    expect(kit.sent).toHaveLength(5);
  });

  test("all owners share a budget per worker", async () => {
    const budget = { workerTokensMax: 5 * BLOCK };
    using kit = new PolicyKit({ cacheControl: { ...ON.cacheControl, ...budget } });
    for (const owner of ["a", "b", "c"]) marked(kit, owner, 2)(`${owner} sys`);
    expect(kit.counts("cache_control").declined).toEqual({ worker_budget: 1 });
  });

  test("a short prefix is not pinned", async () => {
    using kit = new PolicyKit({ cacheControl: { ...ON.cacheControl, tokensMin: 3 * BLOCK } });
    marked(kit, "tenant", 2)(PROMPT);
    expect(kit.sent).toEqual([]);
    expect(kit.counts("cache_control").declined).toEqual({ short: 1 });
  });
});

describe("what may go wrong with it", () => {
  test("blocks not resident yet are retried a few times", async () => {
    using kit = new PolicyKit(ON);
    kit.answer = () => (kit.sent.length < 3 ? missing() : done());
    marked(kit, "tenant", 2)(PROMPT);
    await kit.pass(20_000);
    expect(kit.sent).toHaveLength(3);
    kit.answer = () => missing();
    marked(kit, "tenant", 2)("other tools");
    await kit.pass(20_000);
    expect(kit.sent).toHaveLength(6);
  });

  test("a refused pin does not count", async () => {
    const budget = { ownerTokensMax: 2 * BLOCK };
    using kit = new PolicyKit({ cacheControl: { ...ON.cacheControl, ...budget } });
    const rejected = { done: 0, rejected: 1 };
    kit.answer = () => ({ kind: "receipt", counts: rejected, bytes: 0, ttlSeconds: null });
    const ask = marked(kit, "tenant", 2);
    ask(PROMPT);
    await kit.settle();
    kit.answer = () => ({ kind: "refused", why: "busy" });
    ask("x y z");
    await kit.settle();
    expect(kit.sent).toHaveLength(2);
    kit.answer = () => ({ kind: "no_answer" });
    ask("u v w");
    await kit.settle();
    // It may be kept now: the budget is used up until it must have ended.
    ask("x y z");
    expect(kit.sent).toHaveLength(3);
    await kit.pass(301_000);
    ask("x y z");
    expect(kit.sent).toHaveLength(4);
  });

  test("a flood of marks is limited", async () => {
    using kit = new PolicyKit({ cacheControl: { ...ON.cacheControl, pinsMax: 10 } });
    for (let i = 0; i < 30; i++) {
      marked(kit, `tenant${i}`, 2)(`sys${i} a`);
      await kit.settle();
    }
    expect(kit.sent).toHaveLength(10);
    expect(kit.counts("cache_control").declined).toEqual({ pins: 20 });
    kit.left("w");
    marked(kit, "tenant", 2)("sys a");
    expect(kit.sent).toHaveLength(11);
  });

  test("marks of unknown requests are ignored", () => {
    using kit = new PolicyKit(ON);
    kit.policies.marks.cacheControl("nobody", "tenant", [{ promptTokens: 8, ttlMs: null }]);
    expect(kit.sent).toEqual([]);
  });
});
