import { describe, expect, test } from "bun:test";
import { POLICY_NAMES } from "../../../src/router/index.ts";
import { BLOCK, MODEL, namer, namesOf, PolicyKit, targetOf, tokensOf } from "./kit.ts";

const MINUTE = 60_000;

function all(mode: "on" | "dry-run") {
  return {
    coldWorker: { mode },
    idleSession: { mode, idleMs: MINUTE },
    cacheControl: { mode },
    reasoning: { mode, models: { [MODEL]: { open: 1, close: 2 } } },
    contextRewrite: { mode, settleMs: MINUTE },
  };
}

/** Something for each policy to do. */
async function play(kit: PolicyKit): Promise<string> {
  const first = kit.route("s", "sys tools a b c d e");
  kit.policies.marks.cacheControl(first, "tenant", [{ promptTokens: 2 * BLOCK, ttlMs: null }]);
  kit.prefilled(first);
  kit.policies.marks.answered(first, Uint32Array.from([1, ...tokensOf("p q r"), 2]));
  kit.free(first);
  await kit.ask("t", "sys tools x", "w");
  kit.joined("new");
  await kit.ask("s", "sys tools y z");
  await kit.pass(3 * MINUTE);
  return first;
}

describe("the switch", () => {
  test("policies that are off observe, keep and send nothing", async () => {
    using kit = new PolicyKit();
    await play(kit);
    expect(kit.sent).toEqual([]);
    expect(kit.listeners).toBe(0);
    expect(kit.clock.pending).toBe(0);
    expect(kit.policies.counts).toEqual([]);
  });

  test("policies that are on send commands and count their receipts", async () => {
    using kit = new PolicyKit(all("on"));
    await play(kit);
    expect(new Set(kit.sent.map(({ command }) => command.type))).toEqual(
      new Set(["Cache", "Think", "Warm", "Prune", "Pause"]),
    );
    for (const { commands, receipts, inFlight, mode } of kit.policies.counts) {
      expect([commands > 0, receipts, inFlight, mode]).toEqual([true, commands, 0, "on"]);
    }
  });

  test("a dry run makes and explains the same decisions but sends nothing", async () => {
    using live = new PolicyKit(all("on"));
    using dry = new PolicyKit(all("dry-run"));
    const request = await play(live);
    await play(dry);
    expect(dry.sent).toEqual([]);
    const commands = (kit: PolicyKit) =>
      kit.policies.counts.map(({ policy, commands }) => [policy, commands]);
    expect(commands(dry)).toEqual(commands(live));
    const actions = (kit: PolicyKit) => kit.actions.get(request)?.map(({ command }) => command);
    expect(actions(dry)).toEqual(actions(live));
    expect(dry.actions.get(request)?.[0]).toMatchObject({ isDryRun: true, outcome: "dry run" });
  });

  test("policies are switched one by one at run time", async () => {
    using kit = new PolicyKit();
    for (const policy of POLICY_NAMES) kit.policies.setMode(policy, "dry-run");
    expect(kit.policies.counts).toHaveLength(5);
    for (const policy of POLICY_NAMES) kit.policies.setMode(policy, "on");
    await play(kit);
    expect(kit.sent.length).toBeGreaterThan(0);
    kit.sent.length = 0;
    for (const policy of POLICY_NAMES) kit.policies.setMode(policy, "off");
    await play(kit);
    expect([kit.sent.length, kit.listeners, kit.clock.pending]).toEqual([0, 0, 0]);
    expect([kit.policies.sessions, kit.policies.liveRequests]).toEqual([0, 0]);
    kit.policies.setMode("idle_session", "on");
    await kit.ask("s", "sys a b");
    await kit.pass(3 * MINUTE);
    expect(kit.of("Pause")).toHaveLength(1);
  });
});

describe("what may come", () => {
  test("an action has no outcome before its receipt", async () => {
    using kit = new PolicyKit({ cacheControl: { mode: "on" } });
    let answer: (outcome: { kind: "no_answer" }) => void = () => undefined;
    kit.answer = () => new Promise((resolve) => (answer = resolve));
    const id = kit.route(null, "a b c");
    kit.policies.marks.cacheControl(id, "tenant", [{ promptTokens: 2 * BLOCK, ttlMs: null }]);
    kit.free(id);
    expect(kit.actions.get(id)?.[0]?.outcome).toBeNull();
    await kit.settle();
    answer({ kind: "no_answer" });
    await kit.settle();
    expect(kit.actions.get(id)?.[0]?.outcome).toBe("no answer");
  });

  test("prompts without names are ignored", async () => {
    using kit = new PolicyKit({ idleSession: { mode: "on", idleMs: MINUTE } });
    for (const more of [{ loraName: "l" }, { cacheSalt: "c" }, { prompt: hashes() }]) {
      kit.free(kit.route("s", "sys a b", "w", more));
    }
    kit.free(kit.route("s", ""));
    await kit.pass(3 * MINUTE);
    expect(kit.sent).toEqual([]);
    expect(kit.policies.sessions).toBe(0);
  });

  test("all shards of a model are named and a LoRA has its own namespace", async () => {
    const space = (model: string, fill: number) => ({
      ...{ kind: "blocks" as const, model, blockTokens: BLOCK },
      namespaceKey: new Uint8Array(32).fill(fill),
    });
    const target = { ...targetOf("w"), spaces: [space(MODEL, 1), space(MODEL, 2), space("l", 3)] };
    const request = { model: MODEL, prompt: { kind: "tokens" as const, tokens: tokensOf("a b") } };
    const names = (more: object) => namer.chain(target, { ...request, ...more })?.names(0, 2);
    expect(names({})).toHaveLength(6);
    expect(names({ loraName: "l" })).toHaveLength(2);
    expect(names({ loraName: "l" })).toEqual(names({})?.slice(4));
    expect(names({ loraName: "other" })).toBeUndefined();
    expect(namer.group({ ...target, spaces: [] })).toBeNull();
  });

  test("active requests beyond the limit are ignored", async () => {
    using kit = new PolicyKit({ idleSession: { mode: "on" }, requestsMax: 100 as never });
    const ids = Array.from({ length: 500 }, (_, i) => kit.route(`s${i}`, "sys a"));
    expect(kit.policies.liveRequests).toBe(100);
    for (const id of ids) kit.free(id);
    expect(kit.policies.liveRequests).toBe(0);
  });

  test("a repeated request id replaces the earlier request", async () => {
    using kit = new PolicyKit({ idleSession: { mode: "on", idleMs: MINUTE } });
    kit.route("s", "sys a", "w", { requestId: "same" });
    kit.route("t", "tea a", "w", { requestId: "same" });
    kit.free("same");
    kit.free("same");
    await kit.pass(2 * MINUTE);
    expect(kit.of("Pause").map(({ command }) => command.lease_id)).toEqual([
      "session-s-0",
      "session-t-0",
    ]);
  });

  test("with a separate prefill pool the prefill worker holds the prompt", async () => {
    using kit = new PolicyKit({ idleSession: { mode: "on", idleMs: MINUTE } });
    const id = kit.route("s", "sys a", "decode", {}, "prefill");
    kit.free(id);
    await kit.pass(2 * MINUTE);
    expect(kit.sent.map(({ worker }) => worker)).toEqual(["prefill"]);
  });

  test("a restarted router reuses lease ids", async () => {
    const settings = { idleSession: { mode: "on" as const, idleMs: MINUTE } };
    using before = new PolicyKit(settings);
    await before.ask("s", "sys a b");
    await before.pass(2 * MINUTE);
    before.policies[Symbol.dispose]();
    await before.pass(10 * MINUTE);
    expect(before.of("Pause")).toHaveLength(1);
    expect(before.clock.pending).toBe(0);
    using after = new PolicyKit(settings);
    // Blocks that the old one paused are not fetched: the agent reads them on request.
    await after.ask("s", "sys a b c");
    expect(after.sent).toEqual([]);
    await after.pass(2 * MINUTE);
    // The agent adds to the lease that it has under this name, and renews it.
    expect(after.of("Pause").map(({ command }) => command.lease_id)).toEqual(
      before.of("Pause").map(({ command }) => command.lease_id),
    );
    expect(after.of("Pause")[0]?.command.block_hashes).toEqual(namesOf("sys a b c"));
  });
});

function hashes() {
  return { kind: "hashes" as const, hashes: BigUint64Array.of(1n, 2n) };
}
