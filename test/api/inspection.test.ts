import { describe, expect, test } from "bun:test";
import { LAYER_ALL } from "../../src/core/index.ts";
import { EventLog } from "../../src/observability/activity/index.ts";
import { DEPARTURES, type MissReason, type TreeBlock } from "../../src/store/index.ts";
import { ManualClock } from "../support/index.ts";
import { holdOf } from "./fake-control.ts";
import { problem, serve } from "./serve.ts";

const served = serve();
const { control } = served.told;
const HEX = "0123456789abcdef".repeat(4);
const BYTES = Uint8Array.fromHex(HEX);

// biome-ignore lint/suspicious/noExplicitAny: tests read the fields that they name
const ask = async (path: string): Promise<any> => (await served.get(path)).json();
const refusedWith = async (path: string, status = 422) =>
  expect(await problem(await served.get(path))).toMatchObject({ status });

describe("pins and leases", () => {
  control.all = [
    holdOf(1),
    holdOf(2, {
      kind: "retain",
      priority: 60,
      priorityNow: 31.5,
      idleMs: 600_000,
      remainingMs: null,
    }),
    holdOf(3, { kind: "lease", name: "session-abc", owner: "router-1", remainingMs: -4 }),
    holdOf(4, { owner: "router-1" }),
    holdOf(7),
  ];
  const ids = (list: readonly { readonly id: number }[]) => list.map(({ id }) => id);

  test("pins and leases are listed with durations in seconds", async () => {
    const { pins, next, budget } = await ask("/v1/pins?limit=1");
    expect(pins).toEqual([
      {
        ...{ id: 1, kind: "pin", owner: "somebody", name: null, blocks: 2, bytes: 200 },
        ...{ remaining_seconds: 1.5, age_seconds: 0.25, priority: null, priority_now: null },
        retain_seconds: null,
      },
    ]);
    expect(next).toBe(1);
    expect(budget).toEqual({
      ...{ capacity_bytes: 2 ** 40, host_budget_bytes: 2 ** 39, host_used_bytes: 300 },
    });
  });

  test("pins are listed page by page, by kind and owner", async () => {
    expect(ids((await ask("/v1/pins")).pins)).toEqual([1, 4, 7]);
    const second = await ask("/v1/pins?limit=1&after=1");
    expect([ids(second.pins), second.next]).toEqual([[4], 4]);
    const own = await ask("/v1/pins?owner=router-1");
    expect(ids(own.pins)).toEqual([4]);
    expect(own.budget).toMatchObject({ owner_budget_bytes: 2 ** 38, owner_used_bytes: 100 });
    const [soft] = (await ask("/v1/pins?kind=retain")).pins;
    expect(soft).toMatchObject({
      id: 2,
      priority: 60,
      priority_now: 31.5,
      retain_seconds: 600,
      remaining_seconds: null,
    });
    const { leases } = await ask("/v1/leases");
    expect(leases).toMatchObject([{ id: 3, name: "session-abc", remaining_seconds: 0 }]);
    expect((await ask("/v1/leases?owner=nobody")).leases).toEqual([]);
  });

  test.each(["limit=0", "limit=1001", "after=-1", "kind=lease", `owner=${"x".repeat(129)}`])(
    "the query %s is rejected",
    async (query) => refusedWith(`/v1/pins?${query}`),
  );
});

describe("GET /v1/tree", () => {
  const block: TreeBlock = {
    digest: HEX,
    layer: LAYER_ALL,
    namespace: "ab".repeat(32),
    parent: null,
    depth: 0,
    bytes: 4096,
    tiers: ["ram", "ssd"],
    pins: 2,
    locks: 1,
    heldBy: [
      { kind: "pin", owner: "a" },
      { kind: "session", name: "18446744073709551615" },
    ],
    transient: false,
    uses: 3,
    idleSeconds: null,
    children: 5,
    aliases: ["18446744073709551615"],
  };

  test("the tree is listed block by block from any root", async () => {
    control.treePage = { blocks: [block], next: "a:b/c d", missing: false };
    const page = await ask("/v1/tree");
    const { heldBy, idleSeconds, ...same } = block;
    expect(page).toEqual({
      blocks: [{ ...same, held_by: heldBy, idle_seconds: idleSeconds }],
      next: "a:b/c d",
    });
    expect(control.trees.at(-1)).toEqual({ root: null, depthMax: 16, limit: 100, after: null });
    await ask(`/v1/tree?root=-1&depth=0&limit=1000&after=${encodeURIComponent(page.next)}`);
    expect(control.trees.at(-1)).toEqual({
      root: { kind: "hash", given: "-1", lo: 0xffff_ffff, hi: 0xffff_ffff },
      ...{ depthMax: 0, limit: 1_000, after: "a:b/c d" },
    });
    await ask(`/v1/tree?root=${HEX}/7&depth=1000000`);
    expect(control.trees.at(-1)).toMatchObject({
      root: { kind: "key", bytes: BYTES, layer: 7 },
      depthMax: 1_000_000,
    });
  });

  test("the tree is listed with the requested fields only", async () => {
    control.treePage = { blocks: [block], next: null, missing: false };
    expect((await ask("/v1/tree?fields=digest,held_by,tiers")).blocks).toEqual([
      { digest: HEX, tiers: ["ram", "ssd"], held_by: block.heldBy },
    ]);
    const found = await problem(await served.get("/v1/tree?fields=digest,toString"));
    expect(found).toMatchObject({ status: 422, detail: "unknown field toString" });
  });

  test("an unknown root is answered 404", async () => {
    control.treePage = { blocks: [], next: null, missing: true };
    await refusedWith("/v1/tree?root=5", 404);
    await refusedWith("/v1/tree?root=5&after=zzz", 404);
    control.treePage = { blocks: [], next: null, missing: false };
  });

  test("an unknown page is refused", async () => {
    control.isForeign = (after) => after === "zzz";
    for (const query of ["after=zzz", "root=5&after=zzz"]) {
      expect(await problem(await served.get(`/v1/tree?${query}`))).toMatchObject({
        status: 422,
        detail: "after is not a page of this tree",
      });
    }
  });

  test.each([
    ["/v1/tree?limit=0", "query: limit is an integer from 1 to 1000"],
    ["/v1/tree?limit=1&depth=-1", "query: depth is an integer from 0 to 1000000"],
    ["/v1/tree?limit=x", "query: limit is an integer from 1 to 1000"],
    ["/v1/pins?kind=lease", "query: kind is one of pin, retain"],
    ["/v1/pins?limit=-1&after=-1", "query: limit or after is an integer from 1 to 1000"],
    [
      `/v1/pins?owner=${"a".repeat(200)}`,
      "query/owner: Expected string length less or equal to 128",
    ],
  ])("%.40s is refused with the invalid parameter", async (path, detail) => {
    expect(await problem(await served.get(path))).toMatchObject({ status: 422, detail });
  });

  test.each([
    ...["root=x", "root=", "root=1.5", "root=18446744073709551616", `root=${"a".repeat(257)}`],
    ...["limit=1001", "limit=0", "depth=-1", "depth=1000001", "depth=x", "fields="],
    `after=${"x".repeat(257)}`,
  ])("%s is refused", async (query) => refusedWith(`/v1/tree?${query}`));
});

describe("GET and POST /v1/explain", () => {
  const post = (body: string) => served.get("/v1/explain", { method: "POST", body });

  test("explain accepts block names with GET and with POST", async () => {
    control.explanation = {
      leading: 1,
      blocks: [
        { name: "5", tier: "ram" },
        { name: HEX, tier: null },
      ],
      miss: { index: 1, why: { kind: "never_stored" } },
    };
    const wanted = {
      ...{ leading: 1, blocks: control.explanation.blocks },
      miss: { index: 1, kind: "never_stored", text: "this host has never stored it" },
    };
    expect(await ask(`/v1/explain?names=5,${HEX}`)).toEqual(wanted);
    expect(control.explained.at(-1)).toMatchObject({ names: [{ given: "5" }, { given: HEX }] });
    expect(await (await post(`{"names":[18446744073709551615,"${HEX}/3"]}`)).json()).toEqual(
      wanted,
    );
    expect(control.explained.at(-1)).toMatchObject({
      names: [{ given: 2n ** 64n - 1n, hi: 0xffff_ffff }, { layer: 3 }],
    });
  });

  test("explain accepts a prompt of any length", async () => {
    control.explanation = { leading: 0, blocks: [], miss: null };
    const tokens = Array.from({ length: 100_000 }, (_, i) => (i * 7_919) % 200_000);
    const answer = await post(JSON.stringify({ tokens, namespace: HEX, block_tokens: 64 }));
    expect(await answer.json()).toEqual({ leading: 0, blocks: [], miss: null });
    expect(control.explained.at(-1)).toEqual({
      ...{ tokens: Uint32Array.from(tokens), namespace: BYTES, blockTokens: 64, layer: LAYER_ALL },
    });
    await post(`{"tokens":[4294967295],"namespace":"${HEX}","block_tokens":1,"layer":0}`);
    expect(control.explained.at(-1)).toMatchObject({ layer: 0 });
  });

  const reasons: readonly MissReason[] = [
    { kind: "never_stored" },
    { kind: "being_written" },
    { kind: "gpu_only" },
    { kind: "other_namespace", namespace: "ab".repeat(32) },
    { kind: "ssd_unavailable", why: "no answer for 30 s" },
    ...DEPARTURES.map((reason) => ({
      kind: "departed" as const,
      departure: { reason, by: "router-1", tier: "ssd" as const, atSeconds: 988 },
    })),
  ];
  test.each(reasons.map((why) => [why.kind, why] as const))(
    "%s has a message",
    async (kind, why) => {
      control.explanation = {
        leading: 0,
        blocks: [{ name: "5", tier: null }],
        miss: { index: 0, why },
      };
      const { miss } = await ask("/v1/explain?names=5");
      expect(miss).toMatchObject({ index: 0, kind });
      expect(miss.text).toMatch(/^[a-z].{10}/);
      if (why.kind !== "departed") return;
      const { reason } = why.departure;
      expect(miss).toMatchObject({ reason, by: "router-1", tier: "ssd", seconds_ago: 12 });
      expect(miss.text).toEndWith("(ssd, 12 s ago, by router-1)");
    },
  );

  test.each(["", "?names=", "?names=5,", "?names=x", "?names=1,,2"])("GET %j is refused", (query) =>
    refusedWith(`/v1/explain${query}`),
  );

  test.each([
    ...["", "{}", "[]", '{"names":[]}', '{"names":5}', '{"names":[null]}', '{"names":[1.5]}'],
    ...['{"names":[[1]]}', `{"names":[${"1,".repeat(65_536)}1]}`],
    ...[
      { tokens: [1] },
      { tokens: [1], namespace: HEX },
      { tokens: [1], namespace: "ab", block_tokens: 1 },
      { tokens: [1], namespace: HEX, block_tokens: 0 },
      { tokens: [1], namespace: HEX, block_tokens: 65_537 },
      { tokens: [1], namespace: HEX, block_tokens: 1, layer: -1 },
      { tokens: [-1], namespace: HEX, block_tokens: 1 },
      { tokens: [1.5], namespace: HEX, block_tokens: 1 },
      { tokens: ["1"], namespace: HEX, block_tokens: 1 },
      { tokens: [2 ** 32], namespace: HEX, block_tokens: 1 },
      { tokens: "1", namespace: HEX, block_tokens: 1 },
    ].map((body) => JSON.stringify(body)),
  ])("POST %.60j is refused", async (body) => {
    const before = control.explained.length;
    expect(await problem(await post(body))).toMatchObject({ status: 422 });
    expect(control.explained.length).toBe(before);
  });
});

describe("GET /v1/events", () => {
  test("events are listed in order, and lost events are counted", async () => {
    const clock = new ManualClock();
    const log = new EventLog(clock);
    const lease = { hold: "lease" as const, owner: "a", name: "l", blocks: 2 };
    log.emit({ kind: "hold_expired", ...lease, purged: 1 });
    log.emit({ kind: "hold_lost", ...lease, why: "unreadable" });
    log.emit({ kind: "command", type: "Prune", issuer: "r", id: null, status: "ok", blocks: 3 });
    control.page = (after, max) => log.page(after, max);
    const { events, next, lost } = await ask("/v1/events?limit=2");
    expect(events).toMatchObject([
      { sequence: 1, kind: "hold_expired", ...lease, purged: 1 },
      { sequence: 2, kind: "hold_lost", why: "unreadable" },
    ]);
    expect(events[0].time).toBe(new Date(clock.wallMs()).toISOString());
    expect([next, lost]).toEqual([2, 0]);
    const rest = await ask(`/v1/events?after=${next}`);
    expect(rest).toMatchObject({ events: [{ kind: "command", id: null }], next: 3 });
    expect(await ask("/v1/events?after=3")).toEqual({ events: [], next: 3, lost: 0 });
    // Event numbers restart with the agent.
    expect(await ask("/v1/events?after=900")).toMatchObject({ events: [], next: 3 });
  });

  test.each(["after=x", "after=-1", "limit=1001"])("%s is refused", (query) =>
    refusedWith(`/v1/events?${query}`),
  );
});
