import { describe, expect, test } from "bun:test";
import { namesOf, PolicyKit } from "./kit.ts";

const ON = { contextRewrite: { mode: "on", settleMs: 60_000, markedSettleMs: 5_000 } } as const;

/** Blocks behind the first one that a prune removes. */
const after = (text: string, block: number) => namesOf(text, block, block + 1)[0];

describe("a prompt that was rewritten", () => {
  test("unshared blocks of the old branch are pruned after the first unused block", async () => {
    using kit = new PolicyKit(ON);
    await kit.ask("s", "sys a b c d e");
    const cause = await kit.ask("s", "sys a summary x");
    await kit.pass(59_000);
    expect(kit.sent).toEqual([]);
    await kit.pass(2_000);
    expect(kit.sent).toEqual([
      {
        worker: "w",
        command: { type: "Prune", after_block_hash: after("sys a b c d e", 2) },
      },
    ]);
    expect(kit.actions.get(cause)).toEqual([
      {
        policy: "context_rewrite",
        command: "Prune",
        worker: "w" as never,
        isDryRun: false,
        outcome: "1 done",
      },
    ]);
    await kit.pass(600_000);
    expect(kit.sent).toHaveLength(1);
  });

  test("a prompt marked as rewritten is pruned sooner", async () => {
    using kit = new PolicyKit(ON);
    await kit.ask("s", "sys a b c d e");
    const id = kit.route("s", "sys a summary x");
    kit.policies.marks.rewritten(id);
    kit.free(id);
    await kit.pass(6_000);
    expect(kit.of("Prune")).toHaveLength(1);
  });

  test("blocks of another active session are never pruned", async () => {
    using kit = new PolicyKit(ON);
    await kit.ask("s", "sys a b c d e");
    await kit.ask("other", "sys a b c d z");
    await kit.ask("s", "sys summary");
    await kit.pass(61_000);
    // `e` alone is the session's own: one block, and behind it there is nothing to prune.
    expect(kit.sent).toEqual([]);
    expect(kit.counts("context_rewrite").declined).toEqual({ short: 1 });
  });

  test("blocks of a request without a session are not pruned", async () => {
    using kit = new PolicyKit(ON);
    await kit.ask("s", "sys a b c d e f");
    await kit.ask(null, "sys a b");
    await kit.ask("s", "sys summary");
    await kit.pass(61_000);
    expect(kit.of("Prune").map(({ command }) => command.after_block_hash)).toEqual([
      after("sys a b c d e f", 3),
    ]);
  });

  test("a branch that the session returns to is not pruned", async () => {
    using kit = new PolicyKit(ON);
    await kit.ask("s", "sys a b c d e");
    await kit.ask("s", "sys task x y z");
    await kit.pass(30_000);
    await kit.ask("s", "sys a b c d e f");
    await kit.pass(31_000);
    await kit.ask("s", "sys task x y z u");
    await kit.pass(59_000);
    expect(kit.sent).toEqual([]);
    expect(kit.counts("context_rewrite").declined).toEqual({ came_back: 1 });
  });

  test("a prompt that only continues is not a rewrite", async () => {
    using kit = new PolicyKit(ON);
    for (const more of ["a", "a b", "a b c"]) await kit.ask("s", `sys ${more}`);
    await kit.pass(120_000);
    expect(kit.sent).toEqual([]);
  });

  test("nothing is pruned after a possibly active session was evicted", async () => {
    const sessions = { blocksMax: 40, sessionMs: 600_000 };
    using kit = new PolicyKit({ ...ON, sessions });
    await kit.ask("crowd", "p q r s t u v w");
    for (let i = 0; i < 5; i++) await kit.ask(`other${i}`, `x${i} y z u v w p q`);
    await kit.ask("s", "sys a b c");
    await kit.ask("s", "sys d");
    await kit.pass(61_000);
    expect(kit.sent).toEqual([]);
    expect(kit.counts("context_rewrite").declined).toEqual({ crowded: 1 });
  });

  test("no prune is sent for a worker that left or a session that ended", async () => {
    using kit = new PolicyKit(ON);
    await kit.ask("s", "sys a b c d", "gone");
    await kit.ask("s", "sys x");
    await kit.ask("t", "tea a b c d");
    await kit.ask("t", "tea x");
    kit.left("gone");
    kit.policies.marks.sessionEnded("t");
    await kit.pass(120_000);
    expect(kit.sent).toEqual([]);
  });

  test("blocks kept or missing at the agent are reported and not retried", async () => {
    using kit = new PolicyKit(ON);
    kit.answer = () => ({
      ...{ kind: "receipt", bytes: 0, ttlSeconds: null },
      counts: { done: 1, held: 2, missing: 0 },
    });
    await kit.ask("s", "sys a b c d e");
    const cause = await kit.ask("s", "sys x");
    await kit.pass(120_000);
    expect(kit.sent).toHaveLength(1);
    expect(kit.actions.get(cause)?.[0]?.outcome).toBe("1 done, 2 held");
    expect(kit.counts("context_rewrite").blocks).toEqual({ done: 1, held: 2, missing: 0 });
  });
});
