import { describe, expect, test } from "bun:test";
import { missing, namesOf, PolicyKit } from "./kit.ts";

const ON = { idleSession: { mode: "on", idleMs: 60_000, ttlMs: 600_000 } } as const;
const MINUTE = 60_000;

describe("an idle session", () => {
  test("unshared blocks of an idle session are paused under a lease", async () => {
    using kit = new PolicyKit(ON);
    await kit.ask("s", "sys tools a b c");
    await kit.ask("other", "sys tools z");
    await kit.pass(59_000);
    expect(kit.sent).toEqual([]);
    await kit.pass(3_000);
    const command = { type: "Pause" as const, ttl_seconds: 600 };
    expect(kit.sent).toEqual([
      {
        worker: "w",
        command: {
          ...command,
          ...{ block_hashes: namesOf("sys tools a b c", 2), lease_id: "session-s-0" },
        },
      },
      {
        worker: "w",
        command: {
          ...command,
          ...{ block_hashes: namesOf("sys tools z", 2), lease_id: "session-other-0" },
        },
      },
    ]);
    await kit.pass(10 * MINUTE);
    expect(kit.sent).toHaveLength(2);
  });

  test("a returning user triggers a fetch and a lease renewal", async () => {
    using kit = new PolicyKit(ON);
    await kit.ask("s", "sys a b");
    await kit.pass(2 * MINUTE);
    kit.sent.length = 0;
    const cause = kit.route("s", "sys a b c");
    expect(kit.sent).toEqual([
      {
        worker: "w",
        command: { type: "Warm", block_keys: namesOf("sys a b"), target_tier: "CPU_TIER1" },
      },
      {
        worker: "w",
        command: { type: "RenewLease", lease_id: "session-s-0", new_ttl_seconds: 600 },
      },
    ]);
    await kit.settle();
    expect(kit.actions.get(cause)?.map(({ command, outcome }) => [command, outcome])).toEqual([
      ["Warm", "1 done"],
      ["RenewLease", "1 done"],
    ]);
  });

  test("an announced return fetches the blocks before the request", async () => {
    using kit = new PolicyKit(ON);
    await kit.ask("s", "sys a b");
    await kit.pass(2 * MINUTE);
    kit.sent.length = 0;
    kit.policies.marks.returning("s");
    kit.policies.marks.returning("s");
    expect(kit.sent.map(({ command }) => command.type)).toEqual(["Warm", "RenewLease"]);
    await kit.settle();
    await kit.ask("s", "sys a b c");
    expect(kit.sent).toHaveLength(2);
  });

  test("paused blocks are fetched to the worker that now serves the session", async () => {
    using kit = new PolicyKit(ON);
    await kit.ask("s", "sys a b", "old");
    await kit.pass(2 * MINUTE);
    kit.sent.length = 0;
    await kit.ask("s", "sys a b c", "new");
    expect(kit.sent).toEqual([
      {
        worker: "new",
        command: {
          ...{ type: "Warm", block_keys: namesOf("sys a b"), target_tier: "CPU_TIER1" },
          sources: ["old"],
        },
      },
    ]);
  });

  test("only blocks still used by a rewritten prompt are fetched; the rest expire", async () => {
    using kit = new PolicyKit(ON);
    await kit.ask("s", "sys a b c");
    await kit.pass(2 * MINUTE);
    kit.sent.length = 0;
    await kit.ask("s", "sys a x");
    expect(kit.sent.map(({ command }) => [command.type, command.block_keys])).toEqual([
      ["Warm", namesOf("sys a")],
    ]);
    await kit.pass(2 * MINUTE);
    // Under another name: the old lease keeps the blocks that are no longer named.
    expect(kit.of("Pause").map(({ command }) => command.lease_id)).toEqual(["session-s-1"]);
  });

  test("an active session's lease is renewed and covers new blocks", async () => {
    using kit = new PolicyKit(ON);
    await kit.ask("s", "sys a");
    await kit.pass(2 * MINUTE);
    await kit.ask("s", "sys a b");
    kit.sent.length = 0;
    for (let turn = 0; turn < 15; turn++) {
      await kit.pass(50_000);
      await kit.ask("s", "sys a b c");
    }
    expect(kit.sent.map(({ command }) => command.type)).toEqual(["RenewLease", "RenewLease"]);
    await kit.pass(2 * MINUTE);
    expect(kit.of("Pause")[0]?.command).toMatchObject({
      ...{ lease_id: "session-s-0", block_hashes: namesOf("sys a b c") },
    });
  });

  test("a session with a request in progress is not idle", async () => {
    using kit = new PolicyKit(ON);
    const id = kit.route("s", "sys a b");
    await kit.pass(10 * MINUTE);
    expect(kit.sent).toEqual([]);
    kit.free(id);
    await kit.pass(50_000);
    expect(kit.sent).toEqual([]);
    await kit.pass(12_000);
    expect(kit.of("Pause")).toHaveLength(1);
  });

  test("the end of a session ends its lease", async () => {
    using kit = new PolicyKit(ON);
    await kit.ask("s", "sys a b");
    await kit.pass(2 * MINUTE);
    kit.policies.marks.sessionEnded("s");
    expect(kit.of("RevokeLease").map(({ command }) => command.lease_id)).toEqual(["session-s-0"]);
    kit.sent.length = 0;
    await kit.ask("s", "sys a b");
    expect(kit.sent).toEqual([]);
  });
});

describe("what may go wrong with it", () => {
  test("missing blocks leave no lease behind", async () => {
    using kit = new PolicyKit(ON);
    kit.answer = () => missing(3);
    await kit.ask("s", "sys a b");
    await kit.pass(2 * MINUTE);
    kit.sent.length = 0;
    await kit.ask("s", "sys a b c");
    expect(kit.sent).toEqual([]);
  });

  test("a worker that refuses is not asked again for a while", async () => {
    using kit = new PolicyKit(ON);
    kit.answer = () => ({ kind: "refused", why: "rate_limited: ..." });
    await kit.ask("s", "sys a b");
    await kit.pass(2 * MINUTE);
    await kit.ask("t", "tea a b");
    await kit.pass(2 * MINUTE);
    expect(kit.of("Pause")).toHaveLength(1);
    expect(kit.counts("idle_session")).toMatchObject({
      ...{ refused: 1, declined: { worker_refuses: 1 } },
    });
    kit.answer = () => ({ kind: "no_answer" });
    await kit.pass(6 * MINUTE);
    await kit.ask("t", "tea a b c");
    await kit.pass(2 * MINUTE);
    expect(kit.of("Pause")).toHaveLength(2);
  });

  test("blocks of an unanswered pause are fetched all the same", async () => {
    using kit = new PolicyKit(ON);
    kit.answer = () => ({ kind: "no_answer" });
    await kit.ask("s", "sys a b");
    await kit.pass(2 * MINUTE);
    expect(kit.counts("idle_session")).toMatchObject({ noAnswer: 1, inFlight: 0 });
    kit.sent.length = 0;
    await kit.ask("s", "sys a b c");
    expect(kit.sent.map(({ command }) => command.type)).toEqual(["Warm", "RenewLease"]);
  });

  test("agents that never answer block only the commands in flight", async () => {
    using kit = new PolicyKit({ idleSession: { ...ON.idleSession, inFlightMax: 5 } });
    kit.answer = () => new Promise(() => undefined);
    for (let i = 0; i < 50; i++) await kit.ask(`s${i}`, `sys${i} a b`);
    await kit.pass(5 * MINUTE);
    expect(kit.sent).toHaveLength(5);
    expect(kit.counts("idle_session").inFlight).toBe(5);
  });

  test("leases and pauses per tick are limited under a flood of sessions", async () => {
    const capped = { ...ON.idleSession, leasesMax: 20, pausesPerTick: 8 };
    using kit = new PolicyKit({ idleSession: capped });
    for (let i = 0; i < 100; i++) kit.free(kit.route(`s${i}`, `sys${i} a b`));
    await kit.pass(60_000);
    const perTick: number[] = [];
    for (let tick = 0; tick < 20; tick++) {
      const before = kit.sent.length;
      await kit.pass(1_000);
      perTick.push(kit.sent.length - before);
    }
    expect(kit.sent).toHaveLength(20);
    expect(Math.max(...perTick)).toBe(8);
    expect(kit.counts("idle_session").declined).toEqual({ leases: 80 });
  });

  test("suspension of the process does not count as idle time", async () => {
    using kit = new PolicyKit(ON);
    for (let i = 0; i < 20; i++) await kit.ask(`s${i}`, `sys${i} a b`);
    kit.clock.stall(30 * MINUTE);
    kit.clock.jumpWall(-1e9);
    await kit.settle();
    expect(kit.sent).toEqual([]);
    await kit.pass(50_000);
    expect(kit.sent).toEqual([]);
    await kit.pass(15_000);
    expect(kit.of("Pause")).toHaveLength(20);
  });

  test("a worker that leaves takes its leases along", async () => {
    using kit = new PolicyKit(ON);
    await kit.ask("s", "sys a b", "gone");
    await kit.pass(2 * MINUTE);
    kit.left("gone");
    kit.sent.length = 0;
    await kit.ask("s", "sys a b c", "w");
    expect(kit.sent).toEqual([]);
  });

  test("the TTL granted by the agent counts", async () => {
    using kit = new PolicyKit(ON);
    kit.answer = () => ({ kind: "receipt", counts: { done: 1 }, bytes: 0, ttlSeconds: 30 });
    await kit.ask("s", "sys a b");
    await kit.pass(2 * MINUTE);
    await kit.ask("s", "sys a b c");
    kit.sent.length = 0;
    await kit.pass(10_000);
    await kit.ask("s", "sys a b c d");
    expect(kit.sent.map(({ command }) => command.type)).toEqual(["RenewLease"]);
  });

  test("a session id invalid in a lease id is hashed", async () => {
    using kit = new PolicyKit(ON);
    await kit.ask("user 1\n", "sys a b");
    await kit.ask("x".repeat(500), "tea a b");
    await kit.pass(2 * MINUTE);
    for (const { command } of kit.of("Pause")) {
      expect(command.lease_id).toMatch(/^session-[0-9a-f]+-0$/);
    }
    expect(kit.of("Pause")).toHaveLength(2);
  });
});
