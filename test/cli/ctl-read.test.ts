import { describe, expect, test } from "bun:test";
import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { runCli } from "../../src/cli/index.ts";
import { tempDir } from "../support/index.ts";
import { FakeAgent, problem, STATUS } from "./fake-agent.ts";
import { memoryIo } from "./memory-io.ts";

async function ctl(agent: FakeAgent, ...words: string[]) {
  const io = memoryIo({ columns: 80 });
  const code = await runCli(["ctl", ...words, "--api", agent.url], io);
  return { code, out: io.outText(), err: io.errText() };
}

function documents(out: string): unknown[] {
  return out
    .trimEnd()
    .split("\n")
    .map((line) => JSON.parse(line));
}

const DIGEST = "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824";

describe("ctl pins, ctl leases", () => {
  const hold = (id: number, members: object = {}) => ({
    ...{ id, kind: "pin", owner: "team-a", name: null, blocks: 46, bytes: 482_344_960 },
    ...{ remaining_seconds: 3541.2, age_seconds: 58, priority: null, priority_now: null },
    ...members,
  });
  const budget = { capacity_bytes: 4096, host_budget_bytes: 2048, host_used_bytes: 1024 };

  test("ctl pins and ctl leases print a row for each entry, and the budget", async () => {
    const pins = [hold(1), hold(2, { owner: "router-1", remaining_seconds: null })];
    await using agent = new FakeAgent({ "GET /v1/pins": () => ({ pins, next: null, budget }) });
    expect(await ctl(agent, "pins")).toEqual({
      code: 0,
      out: [
        "id  owner     blocks  bytes   left",
        "1   team-a    46      460MiB  59m",
        "2   router-1  46      460MiB  -",
        "host   1KiB of 2KiB of the pin and lease budget",
        "",
      ].join("\n"),
      err: "",
    });
    expect(agent.seen[0]?.query).toEqual({ kind: "pin", limit: "1000" });
  });

  test("soft pins show their remaining priority; an owner has a budget", async () => {
    const pins = [
      hold(1, { kind: "retain", priority: 50, priority_now: 12.4567, retain_seconds: 600 }),
    ];
    const owned = { ...budget, owner_budget_bytes: 512, owner_used_bytes: 0 };
    await using agent = new FakeAgent({
      "GET /v1/pins": () => ({ pins, next: null, budget: owned }),
    });
    const { out } = await ctl(agent, "pins", "--soft", "--owner", "team-a");
    expect(out).toContain("id  owner   blocks  bytes   left  priority  now   halves\n");
    expect(out).toMatch(/ 50 +12\.5 +10m\n/);
    expect(out).toContain("owner  0B of 512B");
    expect(agent.seen[0]?.query).toMatchObject({ kind: "retain", owner: "team-a" });
  });

  test("ctl leases reads all pages, up to a limit", async () => {
    await using agent = new FakeAgent({
      "GET /v1/leases": ({ query }) => {
        const from = Number(query.after ?? 0);
        const count = Math.min(Number(query.limit), 700, 1_500 - from);
        const leases = Array.from({ length: count }, (_, at) =>
          hold(from + at + 1, { kind: "lease", name: `s-${from + at + 1}` }),
        );
        const last = from + count;
        return { leases, next: last < 1_500 ? last : null, budget };
      },
    });
    const all = await ctl(agent, "leases", "--limit", "10000");
    expect(all.out.split("\n").filter((line) => line.includes(" s-"))).toHaveLength(1_500);
    const some = await ctl(agent, "leases", "--limit", "800");
    expect(some.out.split("\n").filter((line) => line.includes(" s-"))).toHaveLength(800);
    expect(some.err).toBe("there are more: --after 800\n");
    const pages = documents((await ctl(agent, "leases", "--json", "--limit", "10000")).out);
    expect(pages.map((page) => (page as { next: number | null }).next)).toEqual([700, 1400, null]);
  });

  test("ctl pins without pins prints a message, and an empty list as JSON", async () => {
    const none = { pins: [], next: null, budget };
    await using agent = new FakeAgent({ "GET /v1/pins": () => none });
    const { code, err } = await ctl(agent, "pins");
    expect({ code, err }).toEqual({ code: 0, err: "there are no pins\n" });
    expect(documents((await ctl(agent, "pins", "--json")).out)).toEqual([none]);
  });
});

describe("ctl tree", () => {
  const block = {
    ...{ digest: DIGEST, layer: 0xffff_ffff, namespace: "ab".repeat(32), parent: null, depth: 0 },
    ...{ bytes: 10_485_760, tiers: ["ram", "ssd"], pins: 1, locks: 0, transient: false, uses: 12 },
    held_by: [{ kind: "pin", owner: "team-a" }],
    ...{ idle_seconds: 3.5, children: 2, aliases: ["1234567890"] },
  };

  test("ctl tree prints the columns that operators look for", async () => {
    const child = { ...block, depth: 1, layer: 3, held_by: [], idle_seconds: null, tiers: ["ssd"] };
    await using agent = new FakeAgent({
      "GET /v1/tree": () => ({ blocks: [block, child], next: null }),
    });
    const { code, out, err } = await ctl(agent, "tree", "-7", "--depth", "3");
    expect(code).toBe(0);
    expect(out).toBe(
      [
        "depth  block                  tiers    bytes  pins  uses  idle  held by",
        "    0  1234567890             ram,ssd  10MiB     1    12  3.5s  pin of team-a",
        "    1  2cf24dba5f…938b9824/3  ssd      10MiB     1    12  -",
        "",
      ].join("\n"),
    );
    expect(err).toBe("");
    expect(agent.seen[0]?.query).toEqual({ root: "-7", depth: "3", limit: "100" });
  });

  test("ctl tree in a terminal prints one row per line", async () => {
    const by = Array.from({ length: 9 }, (_, i) => ({ kind: "pin", owner: `team-${i}` }));
    const blocks = [{ ...block, held_by: by }, block];
    await using agent = new FakeAgent({ "GET /v1/tree": () => ({ blocks, next: null }) });
    const io = memoryIo({ out: true, columns: 80 });
    await runCli(["ctl", "tree", "--api", agent.url], io);
    const lines = io.outText().trimEnd().split("\n");
    expect(lines.map(({ length }) => length <= 80)).toEqual([true, true, true]);
    expect(lines[1]).toHaveLength(80);
    expect(lines[1]).toMatch(/pin of team-0, .*…$/);
    expect(lines[2]).toEndWith("pin of team-a");
  });

  test("ctl tree --fields prints only the chosen fields, and as JSON one line per page", async () => {
    const page = { blocks: [{ digest: DIGEST, tiers: ["ram"] }], next: null };
    await using agent = new FakeAgent({ "GET /v1/tree": () => page });
    const words = ["tree", "--fields", "digest,tiers"];
    const { out } = await ctl(agent, ...words);
    expect(out).toBe(`digest${" ".repeat(58)}  tiers\n${DIGEST}  ram\n`);
    expect(agent.seen[0]?.query).toMatchObject({ fields: "digest,tiers" });
    expect(documents((await ctl(agent, ...words, "--json")).out)).toEqual([page]);
  });

  test("ctl tree of a missing root fails with a message", async () => {
    const missing = () => problem(404, "the root is not known here", "see GET /v1/explain");
    await using agent = new FakeAgent({ "GET /v1/tree": missing });
    const { code, err } = await ctl(agent, "tree", DIGEST);
    expect(code).toBe(7);
    expect(err).toBe("hearth ctl tree: the root is not known here: see GET /v1/explain\n");
  });
});

describe("ctl explain", () => {
  const answer = {
    leading: 1,
    blocks: [
      { name: "-9223372036854775808", tier: "ram" },
      { name: DIGEST, tier: null },
    ],
    miss: { index: 1, kind: "departed", text: "it was pruned (ssd, 12 s ago, by router-1)" },
  };

  test("blocks", async () => {
    await using agent = new FakeAgent({ "POST /v1/explain": () => answer });
    const { code, out } = await ctl(agent, "explain", "111", DIGEST);
    expect(code).toBe(0);
    expect(out).toBe(
      [
        "index  block                 tier",
        "    0  -9223372036854775808  ram",
        "    1  2cf24dba5f…938b9824   missing",
        "1 of 2 blocks hit in a row",
        "block 1 (2cf24dba5f…938b9824): departed: it was pruned (ssd, 12 s ago, by router-1)",
        "",
      ].join("\n"),
    );
    expect(agent.seen[0]?.body).toEqual({ names: [111, DIGEST] });
    const printed = await ctl(agent, "explain", "18446744073709551615", "--json");
    expect(documents(printed.out)).toEqual([answer]);
    expect(agent.seen[1]?.body).toEqual({ names: [18446744073709551615n] });
  });

  test("tokens in a file", async () => {
    await using agent = new FakeAgent({ "POST /v1/explain": () => ({ ...answer, miss: null }) });
    const file = join(tempDir(), "tokens");
    const namespace = "cd".repeat(32);
    const words = ["explain", "--tokens", file, "--namespace", namespace, "--block-tokens", "2"];
    writeFileSync(file, "[1, 2,3\n4294967295]\n");
    const { code, out } = await ctl(agent, ...words);
    expect({ code, last: out.split("\n").at(-2) }).toEqual({
      code: 0,
      last: "1 of 2 blocks hit in a row",
    });
    expect(agent.seen[0]?.body).toEqual({
      tokens: [1, 2, 3, 4294967295],
      namespace,
      block_tokens: 2,
    });
    writeFileSync(file, "1 2 x");
    expect((await ctl(agent, ...words)).code).toBe(2);
    writeFileSync(file, "4294967296");
    expect((await ctl(agent, ...words)).code).toBe(2);
  });
});

describe("ctl explain --namespace", () => {
  const explained = { leading: 0, blocks: [], miss: null };
  const file = join(tempDir(), "tokens");
  writeFileSync(file, "1 2\n");
  const words = ["explain", "--tokens", file, "--block-tokens", "2", "--namespace"];

  test("ctl explain --namespace accepts a key prefix that is unique", async () => {
    await using agent = new FakeAgent({ "POST /v1/explain": () => explained });
    expect((await ctl(agent, ...words, "ABCD")).code).toBe(0);
    expect(agent.seen.at(-1)?.body).toMatchObject({ namespace: STATUS.namespaces[1] });
  });

  test.each([
    ["ab", "more than one namespace of the agent begins with ab"],
    ["abce", "no namespace of the agent begins with abce"],
    ["xy", "--namespace must be up to 64 hex digits"],
    ["a".repeat(65), "--namespace must be up to 64 hex digits"],
  ])("%.10s is none", async (start, why) => {
    await using agent = new FakeAgent({ "POST /v1/explain": () => explained });
    const { code, err } = await ctl(agent, ...words, start);
    expect({ code, err }).toEqual({ code: 2, err: expect.stringContaining(why) });
    expect(agent.seen.map(({ path }) => path)).not.toContain("/v1/explain");
  });
});

describe("ctl events", () => {
  const time = "2026-01-01T00:00:00.000Z";
  const event = (sequence: number) => ({
    ...{ sequence, time, kind: "hold_relieved", hold: "pin", owner: "a", name: null, blocks: 4 },
    why: "12MiB were needed",
  });

  test("ctl events prints one line per event, page after page", async () => {
    await using agent = new FakeAgent({
      "GET /v1/events": ({ query }) => {
        const after = Number(query.after);
        const count = Math.min(1_200 - after, Number(query.limit));
        const events = Array.from({ length: count }, (_, at) => event(after + at + 1));
        return { events, next: after + count, lost: after === 0 ? 3 : 0 };
      },
    });
    const { code, out, err } = await ctl(agent, "events");
    expect({ code, err }).toEqual({ code: 0, err: "3 events are not kept any more\n" });
    const lines = out.trimEnd().split("\n");
    expect(lines).toHaveLength(1_200);
    expect(lines[0]).toBe(
      `1  ${time}  hold_relieved  hold=pin owner=a blocks=4 why=12MiB were needed`,
    );
    const tail = await ctl(agent, "events", "--after", "1199", "--json");
    expect(documents(tail.out)).toEqual([event(1_200)]);
  });
});

describe("ctl status", () => {
  test("ctl status refuses the status of a worker other than the one named", async () => {
    await using agent = new FakeAgent({});
    expect((await ctl(agent, "status", "--worker", "node-1")).code).toBe(0);
    for (const json of [[], ["--json"]]) {
      expect(await ctl(agent, "status", "--worker", "node-2", ...json)).toEqual({
        ...{ code: 8, out: "" },
        err: `hearth ctl status: ${agent.url} is node-1, not node-2\n`,
      });
    }
  });

  test.each(["status --worker node-1 --deadline 300ms", "workers --wait 300ms"])(
    "ctl %s through a broker that is down blames no worker",
    async (line) => {
      const words = line.split(" ");
      const io = memoryIo();
      // Port 1 of loopback: no process listens there.
      const code = await runCli(["ctl", ...words, "--nats", "nats://127.0.0.1:1"], io);
      expect([code, io.outText()]).toEqual([8, ""]);
      expect(io.errText()).toContain(`hearth ctl ${words[0]}: no connection to the broker: `);
    },
  );

  test("ctl status lists each GPU and each RDMA port", async () => {
    const gpu = { name: "NVIDIA L4", pci: "0000:01:00.0", lost: null };
    const lost = { ...gpu, pci: "0000:02:00.0", lost: "CUDA error 719 (launch failed)" };
    const devices = {
      gpu: { found: "usable", text: "2 GPUs", devices: [gpu, lost] },
      rdma: { found: "usable", ports: [{ name: "mlx5_0/1", state: "down" }] },
    };
    const status = () => Response.json({ ...STATUS, ...devices });
    await using agent = new FakeAgent({ "GET /v1/status": status });
    const { out } = await ctl(agent, "status");
    expect(out).toContain("gpu.text                2 GPUs\n");
    expect(out).toContain("\nGPU NVIDIA L4 at 0000:01:00.0: ok\n");
    expect(out).toContain("0000:02:00.0: lost, CUDA error 719 (launch failed)\n");
    expect(out).toContain("\nRDMA port mlx5_0/1: down\n");
  });

  test("ctl status prints the agent's version, contents and health codes", async () => {
    await using agent = new FakeAgent({});
    const { code, out } = await ctl(agent, "status");
    expect(code).toBe(0);
    expect(out.split("\n")).toEqual([
      "version                 0.1.0",
      "worker_id               node-1",
      "incarnation             18446744073709551615",
      "state                   ready",
      "uptime_seconds          90m",
      "ram.blocks              12",
      "ram.bytes               3GiB",
      "ram.capacity_bytes      4GiB",
      "ssd                     -",
      "control.pins            2 holds, 5 blocks, 20KiB",
      "control.kept_bytes      20KiB",
      "control.kept_bytes_max  2GiB",
      "control.ledger_pending  3",
      "control.ledger_failing  no space",
      "nats.status             reconnecting",
      "nats.server             -",
      "nats.why                refused",
      "nats.queued             4",
      `namespace ${STATUS.namespaces[0]}`,
      `namespace ${STATUS.namespaces[1]}`,
      "warn SSD_SLOW: the SSD is slow",
      "",
    ]);
    expect(documents((await ctl(agent, "status", "--json")).out)).toEqual([STATUS]);
  });
});

test("answers of another shape are shown as far as they can be read", async () => {
  const odd = [null, [], 7, "x", { pins: 5 }, { pins: [null, 7], next: {}, budget: [] }];
  let nth = 0;
  const any = () => odd[nth++ % odd.length];
  const paths = ["pins", "leases", "tree", "events", "status"].map((path) => `GET /v1/${path}`);
  const routes = Object.fromEntries([...paths, "POST /v1/explain"].map((path) => [path, any]));
  await using agent = new FakeAgent(routes);
  for (const words of [["pins"], ["leases"], ["tree"], ["events"], ["explain", "1"], ["status"]]) {
    for (const _ of odd) expect((await ctl(agent, ...words)).code).toBe(0);
  }
});
