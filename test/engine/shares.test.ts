import { describe, expect, test } from "bun:test";
import { EngineShares, type ShareLimits } from "../../src/engine/index.ts";
import { FrameStatus } from "../../src/engine/protocol/index.ts";
import { describeNative, waitFor } from "../support/index.ts";
import { openAgent } from "./agent-kit.ts";
import { EngineProcess } from "./engine-process.ts";

const RAM = 3_200;
const BLOCK = 100;
const LIMITS: ShareLimits = { connectionsMax: 16, processConnectionsMax: 4, heldShare: 0.5 };

/** Without a descriptor, processes are identified by their pid. */
const process_ = (pid: number) => ({ pid, uid: 1_000, pidFd: -1 });

function open(limits: Partial<ShareLimits> = {}) {
  const shares = new EngineShares({ ...LIMITS, ...limits }, () => RAM);
  const raised: string[] = [];
  const report = () => {
    raised.length = 0;
    shares.report({ raise: (code, details) => void raised.push(`${code}: ${details}`) });
    return raised;
  };
  return { shares, report };
}

/** Takes blocks until refused. Returns their number. */
function takeAll(share: ReturnType<EngineShares["open"]>): number {
  let taken = 0;
  while (share.mayTake(BLOCK)) {
    share.took(BLOCK);
    taken++;
  }
  return taken;
}

describe("shares of slots", () => {
  test("a single engine may hold all but an eighth of RAM", () => {
    const { shares } = open();
    expect(takeAll(shares.open(process_(1)))).toBe(28);
  });

  test("an engine among others may hold its share over all its connections", () => {
    const { shares } = open();
    const [greedy, again] = [shares.open(process_(1)), shares.open(process_(1))];
    using other = shares.open(process_(2));
    expect([takeAll(greedy), takeAll(again)]).toEqual([16, 0]);
    expect(takeAll(other)).toBe(12);
    again.gave(BLOCK);
    expect(takeAll(greedy)).toBe(1);
  });

  test("an engine that holds all but the margin leaves enough for a later one", () => {
    const { shares } = open();
    const greedy = shares.open(process_(1));
    expect(takeAll(greedy)).toBe(28);
    const later = shares.open(process_(2));
    expect(greedy.mayTake(BLOCK)).toBe(false);
    expect(takeAll(later)).toBe(2);
    greedy.gave(BLOCK);
    expect(greedy.mayTake(BLOCK)).toBe(false);
  });

  test("two greedy engines leave enough for a third", () => {
    const { shares } = open();
    const [first, second] = [shares.open(process_(1)), shares.open(process_(2))];
    expect([takeAll(first), takeAll(second)]).toEqual([16, 12]);
    expect(takeAll(shares.open(process_(3)))).toBe(2);
  });

  test("the processes of one engine have one share, including slots held before joining", () => {
    const { shares } = open();
    const ranks = [1, 2, 3].map((pid) => shares.open(process_(pid)));
    using _other = shares.open(process_(9));
    for (const rank of ranks) for (let i = 0; i < 5; i++) rank.took(BLOCK);
    for (const rank of ranks) rank.joined("e1");
    expect(takeAll(ranks[1]!)).toBe(1);
    expect(ranks.map((rank) => rank.mayTake(BLOCK))).toEqual([false, false, false]);
    for (const rank of ranks) rank[Symbol.dispose]();
  });

  test("a share of 1 disables the limit", () => {
    const { shares } = open({ heldShare: 1 });
    const [one, other] = [shares.open(process_(1)), shares.open(process_(2))];
    expect([one.mayTake(RAM), other.mayTake(RAM)]).toEqual([true, true]);
  });

  test("shares are not enforced if RAM holds only a few blocks", () => {
    const { shares } = open();
    expect(shares.open(process_(1)).mayTake(RAM / 2)).toBe(true);
  });
});

describe("limits of connections", () => {
  test("a process is limited to its number, and the reason names the key", () => {
    const { shares } = open();
    const lines = Array.from({ length: 4 }, () => shares.open(process_(1)));
    expect(lines.map(({ refusal }) => refusal)).toEqual([null, null, null, null]);
    const refused = shares.open(process_(1));
    expect(refused.refusal).toContain("process 1 already has 4 connections");
    expect(refused.refusal).toContain("engine.clients_max");
    refused[Symbol.dispose]();
    lines[0]!.ended();
    expect(shares.open(process_(1)).refusal).toBeNull();
    expect(shares.open(process_(2)).refusal).toBeNull();
  });

  test("the last connections are reserved for processes without one", () => {
    const { shares } = open({ processConnectionsMax: 16 });
    for (let i = 0; i < 14; i++) expect(shares.open(process_(1)).refusal).toBeNull();
    using refused = shares.open(process_(1));
    expect(refused.refusal).toContain("engine.clients_max");
    refused[Symbol.dispose]();
    expect(shares.open(process_(2)).refusal).toBeNull();
    expect(shares.open(process_(3)).refusal).toBeNull();
    expect(shares.open(process_(4)).refusal).toContain("accepts 16 engines");
  });
});

describe("the report about an engine", () => {
  test("names the process that was refused, once", () => {
    const { shares, report } = open();
    using _other = shares.open(process_(2));
    using greedy = shares.open(process_(process.pid));
    expect(report()).toEqual([]);
    takeAll(greedy);
    const [text] = report();
    expect(text).toStartWith(`ENGINE_HOLDS_ALL: process ${process.pid} (uid 1000, `);
    expect(text).toContain("holds 16 slots, 50 % of RAM, on 1 connections");
    for (let i = 0; i < 16; i++) greedy.gave(BLOCK);
    expect(report()).toEqual([]);
  });

  test("names an engine that holds nearly its share without a refusal", () => {
    const { shares, report } = open();
    using alone = shares.open(process_(1));
    for (let i = 0; i < 27; i++) alone.took(BLOCK);
    expect(report()).toHaveLength(1);
  });
});

describeNative("engines of several processes", () => {
  test("more slots held than the share of one engine", async () => {
    const raised: string[] = [];
    const raise = (code: string, details: string) => void raised.push(`${code} ${details}`);
    const health = { raise };
    await using agent = await openAgent({ slots: 64, health, limits: { leaseMs: 1_000 } });
    await using greedy = await EngineProcess.start(agent.socketPath);
    await using other = await agent.connect();
    const names = Array.from({ length: 64 }, (_, i) => `greedy-${i}`);
    const answers = (await greedy.ask("reserve", ...names)) as [string, number][];
    const outcomes = answers.map(([outcome]) => outcome);
    expect(outcomes).toEqual([...Array(32).fill("ok"), ...Array(32).fill("full")]);
    for (let i = 0; i < 16; i++) expect(await other.put(`other-${i}`)).toEqual(["ok"]);
    await waitFor(() => raised.some((text) => text.includes(`process ${greedy.pid} `)));
    expect(raised[0]).toStartWith("ENGINE_HOLDS_ALL");
    await greedy.kill();
    await agent.untilNothingHeld();
    expect(await other.put(...names.slice(0, 30))).toEqual(Array(30).fill("ok"));
  });

  test("more connections of one process than it may have", async () => {
    await using agent = await openAgent({ limits: { processConnectionsMax: 3 } });
    const own = await Promise.all([1, 2, 3].map(() => agent.rawGreeted()));
    using refused = await agent.raw();
    const answer = await refused.next();
    expect(answer).toMatchObject({ op: 0, status: FrameStatus.limit });
    expect(answer.text).toContain("engine.clients_max");
    await using other = await EngineProcess.start(agent.socketPath);
    expect(await other.ask("put", "x")).toEqual(["ok"]);
    for (const raw of own) raw[Symbol.dispose]();
  });
});
