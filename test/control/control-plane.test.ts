import { describe, expect, test } from "bun:test";
import { MSGPACK_TYPE, REFUSALS, type Receipt, type Sender } from "../../src/control/index.ts";
import { LIMITS, OPERATOR, PlaneKit } from "./plane-kit.ts";

const PIN = { type: "Cache", block_hashes: [1, 2], pin: true };
const UNPIN = { type: "Cache", block_hashes: [1, 2], pin: false };

describe("carrying out a command", () => {
  test.each([
    [PIN, "pin tester ttl=null"],
    [{ ...PIN, owner: "team", ttl_seconds: 5 }, "pin team ttl=5000"],
    [{ ...PIN, issuer: "router" }, "pin router ttl=null"],
    [UNPIN, "unpin tester"],
    [
      { type: "Cache", block_hashes: [1], retain: 7, retain_seconds: 2 },
      "retain tester 7 idle=2000",
    ],
    [{ type: "Prune", after_block_hash: 1 }, "prune"],
    [{ type: "Think", block_hashes: [1], transient: true }, "mark"],
    [{ type: "Think", block_hashes: [1], transient: false }, "purge"],
    [{ type: "Pause", block_hashes: [1], lease_id: "l" }, "pause l tester ttl=null"],
    [{ type: "RenewLease", lease_id: "l", new_ttl_seconds: 3 }, "renew l 3000"],
    [{ type: "RevokeLease", lease_id: "l" }, "revoke l"],
    [{ type: "Warm", block_keys: ["1"], sources: ["w2", "w3"] }, "warm ram from=w2+w3"],
    [{ type: "Warm", block_keys: ["1"], target_tier: "GPU" }, "warm gpu from="],
    [{ type: "Flush" }, "flush"],
  ])("%j", async (command, call) => {
    const kit = new PlaneKit();
    const receipt = await kit.send(command);
    expect(kit.lifecycle.calls).toEqual([call]);
    expect(receipt).toMatchObject({ status: "ok", type: command.type, worker_id: "w1" });
  });

  test("the receipt lists each block as it was given, in its place", async () => {
    const kit = new PlaneKit();
    kit.lifecycle.missing.add("18446744073709551615");
    const blocks = ["zz", 5, 18446744073709551615n, 1.5, "6"];
    const receipt = await kit.send({ type: "Cache", id: "c", block_hashes: blocks, pin: true });
    expect(receipt).toMatchObject({
      id: "c",
      issuer: "tester",
      incarnation: "18446744073709551615",
      status: "partial",
      counts: { done: 2, already: 0, missing: 1, held: 0, deferred: 0, rejected: 2 },
    });
    expect(receipt.blocks.map(({ block, outcome }) => [block, outcome])).toEqual([
      ["zz", "rejected"],
      [5, "done"],
      [18446744073709551615n, "missing"],
      [1.5, "rejected"],
      ["6", "done"],
    ]);
    expect(receipt.blocks[0]!.reason).toStartWith("name: ");
  });

  test("the receipt of a pause has the granted time", async () => {
    const kit = new PlaneKit();
    const receipt = await kit.send({ type: "Pause", block_hashes: [1], lease_id: "l" });
    expect(receipt).toMatchObject({ lease_id: "l", ttl_seconds: 86_400, durable: true });
  });

  test("a pause of absent blocks creates no lease", async () => {
    const kit = new PlaneKit();
    kit.lifecycle.missing.add("1");
    const receipt = await kit.send({ type: "Pause", block_hashes: [1], lease_id: "l" });
    expect(receipt).toMatchObject({ status: "partial", counts: { missing: 1 } });
    expect(receipt).not.toContainAnyKeys(["lease_id", "ttl_seconds"]);
  });

  test("flush is a command too", async () => {
    const kit = new PlaneKit();
    expect(await kit.plane.flush(OPERATOR)).toMatchObject({ type: "Flush", status: "ok" });
    const refused = await kit.plane.flush({ ...OPERATOR, role: "operate" });
    expect(refused.reason).toStartWith("forbidden: ");
  });
});

describe("who may", () => {
  test("an operator's role limits deletions, and the receipt names the fix", async () => {
    const kit = new PlaneKit();
    const commands = [
      { type: "Think", block_hashes: [1], transient: true },
      { type: "Pause", block_hashes: [1], ttl_seconds: 0.001, lease_id: "l" },
      { type: "RenewLease", lease_id: "l", new_ttl_seconds: 0.001 },
    ];
    for (const command of commands) await kit.send(command);
    for (const command of commands) {
      await kit.send(command, { role: "operate", roleKey: "nats.role" });
    }
    const fix =
      ", and nats.role gives operate: " +
      'set nats.role = "purge", or list the issuer in control.issuers';
    expect(kit.lifecycle.grants).toEqual([
      ...Array.from({ length: 3 }, () => ({ mayPurge: true, fix: "" })),
      ...Array.from({ length: 3 }, () => ({ mayPurge: false, fix })),
    ]);
  });

  test.each([
    ["read", []],
    ["operate", ["Warm", "Cache", "Think", "Pause", "RenewLease"]],
    [
      "purge",
      ["Warm", "Prune", "Cache", "Think", "Purge", "Pause", "RenewLease", "RevokeLease", "Flush"],
    ],
  ] as const)("%s", async (role, may) => {
    const commands = {
      Warm: { type: "Warm", block_keys: [] },
      Prune: { type: "Prune", after_block_hash: 1 },
      Cache: PIN,
      Think: { type: "Think", block_hashes: [], transient: true },
      Purge: { type: "Think", block_hashes: [], transient: false },
      Pause: { type: "Pause", block_hashes: [], lease_id: "l" },
      RenewLease: { type: "RenewLease", lease_id: "l", new_ttl_seconds: 1 },
      RevokeLease: { type: "RevokeLease", lease_id: "l" },
      Flush: { type: "Flush" },
    };
    const kit = new PlaneKit();
    const taken: string[] = [];
    for (const [name, command] of Object.entries(commands)) {
      if ((await kit.word(command, { role })) !== "forbidden") taken.push(name);
    }
    expect(taken).toEqual([...may]);
  });

  test("only configured commands are accepted by broadcast", async () => {
    const kit = new PlaneKit();
    const think = { type: "Think", block_hashes: [1], transient: true };
    expect(await kit.word(think, { broadcast: true })).toBe("ok");
    expect(await kit.word(PIN, { broadcast: true })).toBe("broadcast_refused");
    kit.limits = { ...LIMITS, broadcast: ["Cache"] };
    expect(await kit.word(PIN, { broadcast: true })).toBe("ok");
    expect(await kit.word(think, { broadcast: true })).toBe("broadcast_refused");
  });

  test("a command after its not_after is refused", async () => {
    const kit = new PlaneKit();
    const nowS = kit.clock.wallMs() / 1_000;
    expect(await kit.word({ ...PIN, not_after: nowS + 5 })).toBe("ok");
    kit.clock.advance(6_000);
    expect(await kit.word({ ...PIN, not_after: nowS + 5 })).toBe("expired");
    expect(kit.lifecycle.pins.get("tester/1")).toBe(1);
  });
});

describe("how fast", () => {
  test("an issuer has a burst and a rate", async () => {
    const kit = new PlaneKit();
    kit.limits = { ...LIMITS, commandsPerSecond: 2, commandsBurst: 3 };
    const five = async (issuer: string) => {
      const words: string[] = [];
      for (let i = 0; i < 5; i++) words.push(await kit.word({ ...PIN, issuer }));
      return words;
    };
    const refused = ["rate_limited", "rate_limited"];
    expect(await five("a")).toEqual(["ok", "ok", "ok", ...refused]);
    expect(await five("b")).toEqual(["ok", "ok", "ok", ...refused]);
    kit.clock.advance(1_000);
    expect((await five("a")).filter((word) => word === "ok")).toHaveLength(2);
  });

  test("a token has one rate, whatever issuers it claims", async () => {
    const kit = new PlaneKit();
    kit.limits = { ...LIMITS, commandsPerSecond: 1, commandsBurst: 2 };
    const http = { via: "http", account: "a" } as const;
    const three = async (sender: Partial<Sender>) => {
      const words: string[] = [];
      for (let i = 0; i < 3; i++) words.push(await kit.word({ ...PIN, issuer: `i${i}` }, sender));
      return words;
    };
    expect(await three(http)).toEqual(["ok", "ok", "rate_limited"]);
    expect(await three({ ...http, account: "b" })).toEqual(["ok", "ok", "rate_limited"]);
    // Over NATS only the issuer is known, even if its name equals a token's.
    expect(await three({ via: "nats" })).toEqual(["ok", "ok", "ok"]);
    expect(await kit.word({ ...PIN, issuer: "a" }, { via: "nats" })).toBe("ok");
    const receipt = await kit.send({ ...PIN, issuer: "c" }, http);
    expect(receipt.reason).toBe("rate_limited: 1 commands a second for one token");
  });

  test("unlimited issuer names gain no rate", async () => {
    const kit = new PlaneKit();
    kit.limits = { ...LIMITS, commandsPerSecond: 1, commandsBurst: 1 };
    let taken = 0;
    for (let i = 0; i < 6_000; i++) {
      if ((await kit.word({ ...PIN, issuer: `i${i}` })) === "ok") taken++;
    }
    expect(taken).toBeLessThan(4_100);
    kit.clock.advance(2_000);
    expect(await kit.word({ ...PIN, issuer: "new" })).toBe("ok");
  });

  test("concurrent commands are bounded, and one issuer leaves room for others", async () => {
    const kit = new PlaneKit();
    kit.limits = { ...LIMITS, commandsBurst: 100_000 };
    kit.lifecycle.isHolding = true;
    const receipts: Promise<Receipt>[] = [];
    for (let i = 0; i < 1_000; i++) {
      receipts.push(kit.send({ type: "Warm", block_keys: ["1"], issuer: "greedy" }));
    }
    expect(kit.plane.stats().running).toBe(768);
    for (let i = 0; i < 1_000; i++) {
      receipts.push(kit.send({ type: "Warm", block_keys: ["1"], issuer: "other" }));
    }
    expect(kit.plane.stats().running).toBe(1_024);
    for (const held of kit.lifecycle.held) held.finish();
    const busy = (await Promise.all(receipts)).filter(({ reason }) => reason?.startsWith("busy: "));
    expect(busy).toHaveLength(2_000 - 1_024);
    kit.lifecycle.isHolding = false;
    expect(await kit.word({ type: "Warm", block_keys: ["1"], issuer: "greedy" })).toBe("ok");
  });
});

describe("reporting commands", () => {
  test("each command carried out has one event and one audit line", async () => {
    const kit = new PlaneKit();
    await kit.send({ ...PIN, id: "c", epoch: 7, owner: "team" });
    expect(kit.events.page(0, 10).events.map(({ event }) => event)).toEqual([
      { kind: "command", type: "Cache", issuer: "tester", id: "c", status: "ok", blocks: 2 },
    ]);
    expect(kit.audited).toMatchObject([
      {
        ...{ via: "local", from: "test", role: "purge", issuer: "tester", type: "Cache", id: "c" },
        ...{
          epoch: 7n,
          owner: "team",
          action: "pin",
          blocks: 2,
          status: "ok",
          counts: { done: 2 },
        },
      },
    ]);
    expect(kit.audited[0]!.names).toEqual(PIN.block_hashes);
    expect(kit.plane.stats()).toMatchObject({ commands: { "Cache/ok": 1 }, refused: {} });
  });

  test("a line names up to eight blocks, and the block of a prune", async () => {
    const kit = new PlaneKit();
    const digest = "ab".repeat(32);
    await kit.send({ type: "Prune", after_block_hash: -(2n ** 63n) });
    await kit.send({ ...PIN, block_hashes: [digest, `${digest}/3`, ...Array(20).keys()] });
    await kit.send({ type: "Flush" });
    expect(kit.audited[0]).toMatchObject({ blocks: 1, after_block_hash: -(2n ** 63n) });
    const names = [digest, `${digest}/3`, 0, 1, 2, 3, 4, 5];
    expect(kit.audited[1]).toMatchObject({ blocks: 22, names });
    expect(kit.audited[2]).not.toHaveProperty("names");
  });

  test("an undecodable body counts against the rate of its token", async () => {
    const kit = new PlaneKit();
    kit.limits = { ...LIMITS, commandsPerSecond: 1, commandsBurst: 2 };
    const poison = async (account?: string) => {
      const sender = { ...OPERATOR, account };
      const receipt = await kit.plane.submit(new Uint8Array(1), null, sender);
      return receipt.reason!.split(":")[0];
    };
    for (let nth = 0; nth < 3; nth++) expect(await poison()).toBe("malformed");
    expect(await kit.word({ type: "Flush" })).toBe("ok");
    expect([await poison("ann"), await poison("ann"), await poison("ann")]).toEqual([
      ...["malformed", "malformed", "rate_limited"],
    ]);
    expect(await kit.word({ type: "Flush" }, { account: "ann" })).toBe("rate_limited");
    expect(await poison("bob")).toBe("malformed");
    kit.clock.advance(1_000);
    expect(await poison("ann")).toBe("malformed");
  });

  test("an undecodable body is counted, answered and logged, without an event", async () => {
    const kit = new PlaneKit();
    const body = new Uint8Array([0xc1]);
    const receipt = await kit.plane.submit(body, MSGPACK_TYPE, OPERATOR);
    expect(receipt).toMatchObject({ status: "rejected", type: "", id: null, issuer: "tester" });
    expect(kit.plane.stats().refused).toEqual({ malformed: 1 });
    expect(kit.audited).toMatchObject([{ status: "rejected", reason: receipt.reason }]);
    expect(kit.events.last).toBe(0);
  });

  test("an action without a command has an audit line", async () => {
    const kit = new PlaneKit();
    const names = ["ab".repeat(32)];
    const about = { type: "Purge", blocks: 3, names } as const;
    const operation = { ...about, status: "partial", elapsedMs: 2 } as const;
    const sender = { ...OPERATOR, via: "http", name: "ops", from: "ops 10.0.0.1" } as const;
    kit.plane.note({ ...operation, counts: { done: 2, held: 1 }, reason: null }, sender);
    kit.plane.note({ ...operation, status: "rejected", reason: "aborted: no", counts: {} }, sender);
    const who = { via: "http", from: "ops 10.0.0.1", role: "purge", issuer: "ops" };
    const what = { ...about, id: null, elapsed_ms: 2 };
    const time = expect.stringMatching(/^\d{4}-.*Z$/);
    expect(kit.audited).toEqual([
      { time, ...who, ...what, status: "partial", counts: { done: 2, held: 1 } },
      { time, ...who, ...what, status: "rejected", reason: "aborted: no", counts: {} },
    ]);
    expect(kit.events.last).toBe(0);
  });

  test("a flood of refusals does not rotate the audit log", async () => {
    const kit = new PlaneKit();
    const poison = () => kit.plane.submit(new Uint8Array(1), null, OPERATOR);
    for (let i = 0; i < 1_000; i++) await poison();
    expect(kit.audited).toHaveLength(100);
    kit.clock.advance(1_000);
    await poison();
    expect(kit.audited.at(-1)).toMatchObject({ left_out: 900 });
    expect(kit.plane.stats().refused.malformed).toBe(1_001);
  });

  test("every reason code of a receipt is documented", () => {
    for (const { meaning } of Object.values(REFUSALS)) expect(meaning.length).toBeGreaterThan(10);
  });
});
