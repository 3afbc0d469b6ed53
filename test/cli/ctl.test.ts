import { describe, expect, test } from "bun:test";
import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { runCli } from "../../src/cli/index.ts";
import { parseJson } from "../../src/core/index.ts";
import { tempDir } from "../support/index.ts";
import { FakeAgent, json, problem, receipt } from "./fake-agent.ts";
import { memoryIo } from "./memory-io.ts";

async function ctl(agent: FakeAgent | null, ...words: string[]) {
  const io = memoryIo({ columns: 80 });
  const api = agent === null ? [] : ["--api", agent.url];
  const code = await runCli(["ctl", ...words, ...api], io);
  return { code, out: io.outText(), err: io.errText() };
}

const done = receipt([{ block: 1, outcome: "done" }]);
const fine = { "POST /v1/commands": () => done };
const KEY = "ab".repeat(32);

describe("what is sent", () => {
  const cases: [string, object][] = [
    ["pin 1 -2", { type: "Cache", block_hashes: [1, -2], pin: true }],
    [
      `pin 18446744073709551615 -9223372036854775808 ${KEY} ${KEY}/3`,
      {
        type: "Cache",
        block_hashes: [18446744073709551615n, -9223372036854775808n, KEY, `${KEY}/3`],
        pin: true,
      },
    ],
    [
      "pin --ttl 90m --owner team-a 1",
      { type: "Cache", block_hashes: [1], pin: true, ttl_seconds: 5400, owner: "team-a" },
    ],
    ["unpin 1", { type: "Cache", block_hashes: [1], pin: false }],
    [
      "retain --priority 50 --idle 10m 1",
      { type: "Cache", block_hashes: [1], retain: 50, retain_seconds: 600 },
    ],
    ["prune 1234567890", { type: "Prune", after_block_hash: 1234567890 }],
    ["think 4 5", { type: "Think", block_hashes: [4, 5], transient: true }],
    ["think --purge 4", { type: "Think", block_hashes: [4], transient: false }],
    ["pause --lease s 6", { type: "Pause", block_hashes: [6], ttl_seconds: null, lease_id: "s" }],
    [
      "pause --lease s --ttl 1h 6",
      { type: "Pause", block_hashes: [6], ttl_seconds: 3600, lease_id: "s" },
    ],
    ["renew s --ttl 2h", { type: "RenewLease", lease_id: "s", new_ttl_seconds: 7200 }],
    ["revoke s", { type: "RevokeLease", lease_id: "s" }],
    [`warm ${KEY}`, { type: "Warm", block_keys: [KEY], target_tier: "CPU_TIER1" }],
    [
      "warm --gpu --source node-2 --source node-3 1",
      { type: "Warm", block_keys: [1], target_tier: "GPU", sources: ["node-2", "node-3"] },
    ],
    ["flush", { type: "Flush" }],
  ];
  test.each(cases)("ctl %s", async (words, command) => {
    await using agent = new FakeAgent(fine);
    expect(await ctl(agent, ...words.split(" "))).toMatchObject({ code: 0, err: "" });
    expect(agent.commands).toEqual([{ ...command, id: expect.stringMatching(/^[0-9a-f]{32}$/) }]);
    expect(agent.seen[0]).toMatchObject({ contentType: "application/json", token: null });
  });

  test("id, issuer, token and encoding are the caller's to choose", async () => {
    await using agent = new FakeAgent(fine);
    const file = join(tempDir(), "token");
    writeFileSync(file, "a-token-of-many-letters\n");
    const words = ["--id", "x", "--issuer", "me", "--token-file", file];
    expect((await ctl(agent, "pin", "1", ...words)).code).toBe(0);
    expect(agent.commands).toMatchObject([{ id: "x", issuer: "me" }]);
    expect(agent.seen[0]?.token).toBe("Bearer a-token-of-many-letters");
    expect((await ctl(agent, "pin", "1", "--encoding", "msgpack")).code).toBe(0);
    expect(agent.seen[1]).toMatchObject({ contentType: "application/msgpack", body: undefined });
  });

  test("a command as it stands in a file", async () => {
    await using agent = new FakeAgent(fine);
    const file = join(tempDir(), "command.json");
    writeFileSync(file, '{"type":"Prune","after_block_hash":-9223372036854775807,"id":"mine"}\n');
    expect((await ctl(agent, "send", file)).code).toBe(0);
    expect(agent.commands).toEqual([
      { type: "Prune", after_block_hash: -9223372036854775807n, id: "mine" },
    ]);
    for (const wrong of ["[]", "{}", '{"type":1}', "{", ""]) {
      writeFileSync(file, wrong);
      expect((await ctl(agent, "send", file)).code).toBe(2);
    }
    expect((await ctl(agent, "send", `${file}.none`)).code).toBe(2);
    expect(agent.commands).toHaveLength(1);
  });

  test("only to the worker that is named", async () => {
    await using agent = new FakeAgent(fine);
    expect((await ctl(agent, "pin", "1", "--worker", "node-1")).code).toBe(0);
    const other = await ctl(agent, "pin", "1", "--worker", "node-2");
    expect(other).toMatchObject({ code: 8, out: "" });
    expect(other.err).toBe(`hearth ctl pin: ${agent.url} is node-1, not node-2\n`);
    expect(agent.commands).toHaveLength(1);
  });
});

const BUDGET = {
  ...{ capacity_bytes: 2 ** 24, host_budget_bytes: 2 ** 23, host_used_bytes: 4_257_218 },
  ...{ owner_budget_bytes: 2 ** 21, owner_used_bytes: 2 ** 20 },
};

describe("a receipt", () => {
  const mixed = receipt(
    [
      { block: 111, outcome: "done" },
      { block: -9223372036854775808n, outcome: "already" },
      { block: KEY, outcome: "missing" },
      {
        block: `${KEY}/7`,
        outcome: "held",
        by: [
          { kind: "pin", owner: "a" },
          { kind: "session", name: "9" },
        ],
      },
      { block: 5, outcome: "rejected", reason: "budget: 3GiB of 4GiB in use" },
    ],
    { durable: true, budget: BUDGET, bytes: 1024, lease_id: "s", ttl_seconds: 60 },
  );

  test("for people", async () => {
    await using agent = new FakeAgent({ "POST /v1/commands": () => mixed });
    const { code, out } = await ctl(agent, "pin", "111");
    expect(code).toBe(6);
    expect(out).toBe(
      [
        "block                  outcome   why",
        "111                    done",
        "-9223372036854775808   already",
        "ababababab…abababab    missing",
        "ababababab…abababab/7  held      by pin of a, session 9",
        "5                      rejected  budget: 3GiB of 4GiB in use",
        "Cache on node-1: 1 done, 1 already, 1 missing, 1 held, 1 rejected; durable; 1.23 ms",
        "  bytes    1KiB",
        "  lease    s",
        "  granted  60 s",
        "  budget   host 4.06MiB of 8MiB; owner 1MiB of 2MiB",
        "",
      ].join("\n"),
    );
  });

  test("for programs: the whole of it on one line", async () => {
    await using agent = new FakeAgent({ "POST /v1/commands": () => mixed });
    const { code, out } = await ctl(agent, "pin", "111", "--json");
    expect(code).toBe(6);
    expect(out.endsWith("\n") && out.indexOf("\n") === out.length - 1).toBe(true);
    expect(parseJson(out) as unknown).toEqual(mixed);
  });

  test("of many blocks: those that went wrong, and how many there are", async () => {
    const blocks = Array.from({ length: 100 }, (_, block) => ({
      block,
      outcome: block % 3 === 0 ? "missing" : "done",
    }));
    const long = receipt(blocks, { blocks_left_out: 900 });
    await using agent = new FakeAgent({ "POST /v1/commands": () => long });
    const lines = (await ctl(agent, "pin", "111")).out.trimEnd().split("\n");
    expect(lines).toHaveLength(1 + 20 + 2 + 1);
    expect(lines.slice(1, 4)).toEqual(["0      missing", "3      missing", "6      missing"]);
    expect(lines[21]).toBe("and 14 more that are not done");
    expect(lines[22]).toBe("and 900 more that the receipt does not list");
    expect(lines[23]).toBe("Cache on node-1: 66 done, 34 missing; 1.23 ms");
  });

  test("of a refusal, whatever the status it came with", async () => {
    const refused = receipt([], { status: "rejected", reason: "rate_limited: 500 a second" });
    await using agent = new FakeAgent({ "POST /v1/commands": () => json(refused, 429) });
    expect(await ctl(agent, "revoke", "s")).toEqual({
      code: 7,
      out: "Cache on node-1: rejected, rate_limited: 500 a second; 1.23 ms\n",
      err: "",
    });
  });

  test("cannot steer the terminal", async () => {
    const evil = receipt(
      [{ block: "\u001b[2J\r\nrm", outcome: "do\u0007ne", reason: "a\u202eb\u009bc" }],
      { worker_id: "node\u001b]0;x\u0007-1", duplicate: true },
    );
    await using agent = new FakeAgent({ "POST /v1/commands": () => evil });
    const { out } = await ctl(agent, "revoke", "s");
    expect(out).toContain("carried out before");
    expect(out.replaceAll("\n", "")).not.toMatch(/[\p{Cc}\p{Cf}]/u);
  });
});

describe("no receipt", () => {
  test("nobody is there", async () => {
    const agent = new FakeAgent({});
    await agent[Symbol.asyncDispose]();
    const { code, out, err } = await ctl(agent, "pin", "1", "--deadline", "2s");
    expect({ code, out }).toEqual({ code: 8, out: "" });
    expect(err).toContain(`hearth ctl pin: no connection to ${agent.url}`);
  });

  test("no answer in time: how to find out", async () => {
    await using agent = new FakeAgent({ "POST /v1/commands": () => new Promise(() => undefined) });
    const { code, err } = await ctl(agent, "pin", "1", "--deadline", "200ms", "--id", "x");
    expect(code).toBe(8);
    expect(err).toBe(
      `hearth ctl pin: ${agent.url} did not answer within 200ms; it may have been executed: ` +
        "send the same command with --id x to find out\n",
    );
  });

  test("an answer broke off: the same id again", async () => {
    let nth = 0;
    const flaky = () => (++nth === 1 ? json({ oops: true }, 502) : done);
    await using agent = new FakeAgent({ "POST /v1/commands": flaky });
    expect((await ctl(agent, "pin", "1")).code).toBe(0);
    const ids = agent.commands.map((command) => (command as { id: string }).id);
    expect(ids).toHaveLength(2);
    expect(new Set(ids).size).toBe(1);
  });

  test("a token that is missing or wrong: what to give here", async () => {
    const refuse = () => problem(401, "the bearer token is missing or invalid", "send it");
    const routes = { "POST /v1/commands": refuse, "GET /v1/pins": refuse };
    await using agent = new FakeAgent(routes);
    const file = join(tempDir(), "token");
    writeFileSync(file, "0123456789abcdef\n");
    for (const words of [["pins"], ["pin", "1"]]) {
      const start = `hearth ctl ${words[0]}: the agent`;
      expect(await ctl(agent, ...words)).toMatchObject({
        code: 7,
        err: `${start} needs a bearer token: give --token-file FILE\n`,
      });
      expect((await ctl(agent, ...words, "--token-file", file)).err).toStartWith(
        `${start} refused the token in ${file}: `,
      );
    }
  });

  test("a redirect is not followed: the token is for this agent", async () => {
    await using other = new FakeAgent(fine);
    const away = () => Response.redirect(`${other.url}/v1/commands`, 307);
    await using agent = new FakeAgent({ "POST /v1/commands": away });
    expect((await ctl(agent, "pin", "1", "--deadline", "300ms")).code).toBe(7);
    expect(other.seen).toEqual([]);
  });
});

describe("the command line refuses", () => {
  const secret = "s3cr3t";
  test.each([
    ["pin", "BLOCK is missing"],
    ["pin abc", 'BLOCK "abc" is not a block'],
    ["frob", 'unknown command "ctl frob"\nsee `hearth ctl --help`'],
    ["prnue", "did you mean `hearth ctl prune`"],
    ["pin 18446744073709551616", "is not a block"],
    ["pin --ttl 1500ms 1", "is not a multiple of 1s"],
    ["retain 1", "--priority N is missing"],
    ["retain --priority 100 1", "is 100, which is too large"],
    ["pause 1", "--lease LEASE is missing"],
    ["pin 1 --broadcast", "--broadcast needs NATS"],
    ["pin 1 --nats nats://h", "--nats reaches many workers"],
    ["pin 1 --nats nats://h --worker a --broadcast", "exclude each other"],
    ["pin 1 --nats nats://h --worker a --api http://h", "exclude each other"],
    ["pin 1 --nats nats://h --worker a --token-file f", "--token-file is for --api"],
    [`pin 1 --nats nats://u:${secret}@h --worker a`, "holds credentials"],
    [`pin 1 --api http://u:${secret}@h`, "contains credentials"],
    ["pin 1 --api ftp://h", "not an http:// or https:// URL"],
    ["pin 1 --cert c", "--cert and --key must be given together"],
    ["pin 1 --token-file /nowhere/at/all", "cannot be read"],
    ["pins --nats nats://h", "ask over HTTP: --api URL"],
    ["explain --nats nats://h 1", "ask over HTTP: --api URL"],
    ["explain", "BLOCK is missing"],
    ["explain --tokens f", "--tokens needs --namespace and --block-tokens"],
    ["explain --tokens f 1", "not both"],
    ["status --nats nats://h", "name one with --worker"],
    ["workers", "--nats URL is missing"],
    ["workers --nats http://h", "must begin with nats://"],
    ["status --nats http://h --worker a", "must begin with nats://"],
    ["pin 1 --nats http://h --worker a", "must begin with nats://"],
    ["workers --nats nats://h --nats-user a --nats-token b", "more than one way to log in"],
  ])("ctl %s", async (words, why) => {
    const { code, out, err } = await ctl(null, ...words.split(" "));
    expect({ code, out }).toEqual({ code: 2, out: "" });
    expect(err).toContain(why);
    expect(err).not.toContain(secret);
  });
});

describe("as a program", () => {
  const main = join(import.meta.dir, "../../src/main.ts");

  function spawn(input: string, ...words: string[]) {
    return Bun.spawn([process.execPath, main, "ctl", ...words], {
      stdin: new TextEncoder().encode(input),
      stdout: "pipe",
      stderr: "pipe",
    });
  }

  test("blocks come from standard input, beside those in the words", async () => {
    await using agent = new FakeAgent(fine);
    const input = `111\n\n  -9223372036854775808 \n${KEY}/3\n`;
    const child = spawn(input, "pin", "7", "-", "--api", agent.url, "--json");
    expect(await child.exited).toBe(0);
    expect(agent.commands).toMatchObject([
      { block_hashes: [7, 111, -9223372036854775808n, `${KEY}/3`] },
    ]);
    const wrong = spawn("111\nabc\n", "pin", "-", "--api", agent.url);
    expect(await wrong.exited).toBe(2);
    expect(await wrong.stderr.text()).toContain('line 2: "abc" is not a block');
    const many = Array.from({ length: 65_537 }, (_, i) => i).join("\n");
    const tooMany = spawn(many, "pin", "-", "--api", agent.url);
    expect(await tooMany.exited).toBe(2);
    expect(await tooMany.stderr.text()).toContain("more than 65536 blocks: send them in several");
    const twice = spawn("1\n", "pin", "-", "-", "--api", agent.url);
    expect(await twice.exited).toBe(2);
    expect(agent.commands).toHaveLength(1);
  });

  test("an interrupt ends the wait", async () => {
    const asked = Promise.withResolvers<void>();
    const never = () => {
      asked.resolve();
      return new Promise(() => undefined);
    };
    await using agent = new FakeAgent({ "POST /v1/commands": never });
    const child = spawn("", "flush", "--api", agent.url);
    await asked.promise;
    child.kill("SIGINT");
    expect(await child.exited).toBe(130);
    expect(await child.stderr.text()).toBe("hearth ctl flush: interrupted by SIGINT\n");
  });
});

test("a terminal shows how far a long command is", async () => {
  const gate = Promise.withResolvers<object>();
  const progress = { done_blocks: 3, total_blocks: 9, bytes: 2048 };
  await using agent = new FakeAgent({
    "POST /v1/commands": () => gate.promise,
    "GET /v1/commands/x": () => {
      setTimeout(() => gate.resolve(done), 50);
      return receipt([], { status: "running", type: "Warm", progress });
    },
  });
  const io = memoryIo({ err: true, columns: 80 });
  const code = await runCli(["ctl", "warm", KEY, "--id", "x", "--api", agent.url], io);
  expect(code).toBe(0);
  expect(io.errText()).toContain("Warm on node-1: 3 of 9 blocks, 2KiB");
  expect(io.outText()).toBe("block  outcome\n1      done\nCache on node-1: 1 done; 1.23 ms\n");
});
