import { describe, expect, test } from "bun:test";
import { done, missing, namesOf, PolicyKit } from "./kit.ts";

const ON = { coldWorker: { mode: "on", phaseMs: 120_000 } } as const;
const SYS = "sys tools docs";

/** Three conversations with one beginning, and one that begins alone. */
async function traffic(kit: PolicyKit): Promise<void> {
  for (const name of ["a", "b", "c"]) await kit.ask(name, `${SYS} ${name}1 ${name}2`, "old");
  for (const name of ["d", "e"]) await kit.ask(name, `less shared ${name}`, "other");
  await kit.ask("f", "alone x y", "old");
}

describe("a cold worker", () => {
  test("the most common prefixes come from the worker that served them last", async () => {
    using kit = new PolicyKit(ON);
    await traffic(kit);
    kit.joined("new");
    expect(kit.sent).toEqual([
      {
        worker: "new",
        command: {
          type: "Warm",
          block_keys: [...namesOf(SYS), ...namesOf("less shared")],
          target_tier: "CPU_TIER1",
          sources: ["old", "other"],
        },
      },
    ]);
    await kit.pass(130_000);
    expect(kit.sent).toHaveLength(1);
  });

  test("a cold worker also gets prefixes that became common meanwhile", async () => {
    using kit = new PolicyKit(ON);
    await traffic(kit);
    kit.joined("new");
    await kit.pass(3_000);
    await kit.ask("g", "alone x z", "new");
    await kit.pass(5_000);
    expect(kit.sent.map(({ command }) => command.block_keys)).toEqual([
      [...namesOf(SYS), ...namesOf("less shared")],
      namesOf("alone x"),
    ]);
    await kit.pass(120_000);
    await kit.ask("h", "alone x y u", "old");
    await kit.pass(60_000);
    expect(kit.sent).toHaveLength(2);
  });

  test("turns of one conversation count once", async () => {
    using kit = new PolicyKit(ON);
    for (const more of ["", " a", " a b", " a b c"]) await kit.ask("s", `mine only${more}`, "old");
    kit.joined("new");
    expect(kit.sent).toEqual([]);
  });

  test("a returning worker gets the latest prompts of its own sessions", async () => {
    using kit = new PolicyKit(ON);
    await kit.ask("s", "sys a b", "w");
    await kit.ask("t", "sys c d", "w");
    await kit.ask("u", "x y z", "elsewhere");
    kit.joined("w");
    const [{ command } = { command: null }] = kit.sent;
    expect(command?.block_keys).toEqual([
      ...namesOf("sys"),
      ...namesOf("sys c d", 1),
      ...namesOf("sys a b", 1),
    ]);
    expect(command?.sources).toBeUndefined();
  });

  test("warming is bounded in bytes as reported by receipts", async () => {
    const bounds = { blocksPerCommand: 2, bytesMax: 5_000, bytesPerSecond: 1_000 };
    using kit = new PolicyKit({ coldWorker: { ...ON.coldWorker, ...bounds } });
    for (const name of ["a", "b"]) await kit.ask(name, `1 2 3 4 5 6 7 8 9 ${name}`, "old");
    kit.answer = ({ command }) => {
      const blocks = (command.block_keys as string[]).length;
      return done(blocks, blocks * 1_000);
    };
    kit.joined("new");
    await kit.settle();
    await kit.pass(1_500);
    expect(kit.sent).toHaveLength(1);
    await kit.pass(1_500);
    expect(kit.sent).toHaveLength(2);
    await kit.pass(60_000);
    expect(kit.sent.map(({ command }) => (command.block_keys as string[]).length)).toEqual([
      2, 2, 1,
    ]);
    expect(kit.counts("cold_worker").declined).toEqual({ budget: 1 });
  });

  test("one command runs at a time and none follows an unanswered one", async () => {
    using kit = new PolicyKit({ coldWorker: { ...ON.coldWorker, blocksPerCommand: 1 } });
    await traffic(kit);
    kit.answer = () => new Promise(() => undefined);
    kit.joined("new");
    await kit.pass(60_000);
    expect(kit.sent).toHaveLength(1);
  });

  test("warming stops if commands have no effect", async () => {
    using kit = new PolicyKit({ coldWorker: { ...ON.coldWorker, blocksPerCommand: 1 } });
    await traffic(kit);
    kit.answer = () => missing();
    kit.joined("new");
    await kit.pass(60_000);
    expect(kit.sent).toHaveLength(3);
    kit.answer = () => ({ kind: "no_answer" });
    kit.joined("new2");
    await kit.pass(60_000);
    expect(kit.sent).toHaveLength(6);
    expect(kit.counts("cold_worker").declined).toEqual({ nothing_comes: 2 });
  });

  test("a fleet that joins at once is warmed a few workers at a time", async () => {
    const bounds = { workersMax: 2, phaseMs: 10_000 };
    using kit = new PolicyKit({ coldWorker: { ...ON.coldWorker, ...bounds } });
    await traffic(kit);
    for (let i = 0; i < 6; i++) kit.joined(`new${i}`);
    kit.left("new3");
    expect(new Set(kit.sent.map(({ worker }) => worker))).toEqual(new Set(["new0", "new1"]));
    await kit.pass(11_000);
    expect(new Set(kit.sent.map(({ worker }) => worker)).size).toBe(4);
    await kit.pass(11_000);
    expect(new Set(kit.sent.map(({ worker }) => worker)).size).toBe(5);
  });

  test("a cold worker is detected when its names are known or it is known again", async () => {
    using kit = new PolicyKit(ON);
    await traffic(kit);
    kit.joined("new", { spaces: [], isKnown: false });
    await kit.pass(1_000);
    expect(kit.sent).toEqual([]);
    kit.changed("new", { isKnown: false });
    kit.changed("new", { isKnown: true });
    await kit.pass(60_000);
    expect(kit.sent).toHaveLength(1);
    kit.changed("new", { isKnown: false });
    await kit.pass(1_000);
    kit.changed("new", { isKnown: true });
    kit.changed("new", { isKnown: true });
    await kit.pass(60_000);
    expect(kit.sent).toHaveLength(2);
  });

  test("a worker that already has all blocks is not cold", async () => {
    using kit = new PolicyKit({ coldWorker: { ...ON.coldWorker, blocksPerCommand: 1 } });
    await traffic(kit);
    kit.answer = () => ({ kind: "receipt", counts: { already: 1 }, bytes: 0, ttlSeconds: null });
    kit.joined("new");
    await kit.pass(60_000);
    expect(kit.sent).toHaveLength(1);
    expect(kit.counts("cold_worker").declined).toEqual({ not_cold: 1 });
  });

  test("a router without traffic warms no worker", async () => {
    using kit = new PolicyKit(ON);
    for (let i = 0; i < 50; i++) kit.joined(`w${i}`);
    await kit.pass(60_000);
    expect(kit.sent).toEqual([]);
  });
});
