import { describe, expect, test } from "bun:test";
import { runCli } from "../../src/cli/index.ts";
import { FakeAgent, problem, receipt } from "./fake-agent.ts";
import { memoryIo } from "./memory-io.ts";

async function ctl(agent: FakeAgent, ...words: string[]) {
  const io = memoryIo({ columns: 200 });
  const code = await runCli(["ctl", ...words, "--api", agent.url], io);
  return { code, out: io.outText(), err: io.errText() };
}

const IN_A_YEAR = new Date(Date.now() + 365 * 86_400_000 + 3_600_000).toISOString();

const linked = {
  ...{ worker_id: "gpu-02", origin: "announced", state: "linked", transport: "stream" },
  ...{ goodput_bytes_per_second: 2 ** 30, rtt_ms: 0.21234, breaker: "closed", cooldown_ms: null },
  ...{ certificate_ends: IN_A_YEAR, in_flight_bytes: 0, pulled_blocks: 3, pulled_bytes: 3072 },
  ...{ failures: 0, last_fault: null, transports_down: [], endpoints: {}, hardware: null },
  heard_seconds_ago: 1,
};
const down = {
  ...linked,
  ...{ worker_id: "gpu-03", state: "down", transport: null, goodput_bytes_per_second: null },
  ...{ rtt_ms: null, breaker: "open", cooldown_ms: 1_500, certificate_ends: null },
  ...{ pulled_bytes: 0, failures: 2, last_fault: "it:\u001b[2J" },
};
const report = {
  ...{ enabled: true, cluster: "hearth", certificate_ends: "2020-01-01T00:00:00.000Z" },
  listening: { stream: { host: "fd00::1", port: 7172 } },
  ...{ inbound_links: 0, lent_bytes: 0, in_flight_bytes: 0, peers: [linked, down] },
};

describe("ctl peers", () => {
  test("ctl peers prints a row for each peer, then this agent", async () => {
    await using agent = new FakeAgent({ "GET /v1/peers": () => report });
    const { code, out } = await ctl(agent, "peers");
    expect(code).toBe(0);
    expect(out.split("\n")).toEqual([
      "worker  state   transport  goodput  rtt      breaker    pulled  certificate  fault",
      "gpu-02  linked  stream     1GiB/s   0.212ms  closed     3KiB    365d         -",
      "gpu-03  down    -          -        -        open 1.5s  0B      -            it: [2J",
      "this host: cluster hearth, stream [fd00::1]:7172, certificate over",
      "",
    ]);
  });

  test("ctl peers --json prints the agent's reply; without [peers] a message", async () => {
    let answer: object = report;
    await using agent = new FakeAgent({ "GET /v1/peers": () => answer });
    expect(JSON.parse((await ctl(agent, "peers", "--json")).out)).toEqual(report);
    answer = { enabled: false, peers: [] };
    const { code, out } = await ctl(agent, "peers");
    expect([code, out]).toEqual([0, "this agent has no peers: peers.cert_file is not set\n"]);
  });
});

describe("ctl trace-pull", () => {
  const pull = {
    ...{ key: "ab".repeat(32), digest: "cd".repeat(32), layer: 4_294_967_295 },
    ...{ priority: "acquire", started: "2026-01-01T00:00:00.000Z", outcome: "ok", bytes: 10_240 },
    steps: [
      { ms: 0.123, what: "known: gpu-02" },
      { ms: 6, what: "came", peer: "gpu-02", transport: "stream", bytes: 10_240 },
    ],
  };

  test("ctl trace-pull shows the latest pull step by step", async () => {
    await using agent = new FakeAgent({ "GET /v1/pulls": () => ({ pulls: [pull] }) });
    const { code, out, err } = await ctl(agent, "trace-pull", "-42");
    expect([code, err]).toEqual([0, ""]);
    expect(out.split("\n")).toEqual([
      "2026-01-01T00:00:00.000Z  ababababab…abababab  for acquire: ok, 10KiB",
      "ms         peer    transport  bytes  what",
      "     0.12  -       -          -      known: gpu-02",
      "     6.00  gpu-02  stream     10KiB  came",
      "",
    ]);
    expect(agent.seen.at(-1)?.query).toEqual({ key: "-42", limit: "1" });
    expect(agent.commands).toEqual([]);
  });

  test("ctl trace-pull --now warms the block first, and reports its outcome", async () => {
    await using agent = new FakeAgent({
      "POST /v1/commands": () =>
        receipt([{ block: 5, outcome: "deferred", reason: "peers: slow" }]),
      "GET /v1/pulls": () => ({ pulls: [{ ...pull, outcome: null }] }),
    });
    const words = ["trace-pull", "--now", "--source", "gpu-02", "--json", "5"];
    const { code, out, err } = await ctl(agent, ...words);
    expect(code).toBe(0);
    expect(agent.commands).toMatchObject([{ type: "Warm", block_keys: [5], sources: ["gpu-02"] }]);
    expect(err).toBe("hearth ctl trace-pull: the block was warmed: deferred, peers: slow\n");
    expect(JSON.parse(out)).toEqual({ ...pull, outcome: null });
  });

  test("ctl trace-pull reports a block that is resident already, and one that was never pulled", async () => {
    await using agent = new FakeAgent({
      "POST /v1/commands": () => receipt([{ block: 5, outcome: "already" }]),
      "GET /v1/pulls": () => ({ pulls: [] }),
    });
    const { code, err } = await ctl(agent, "trace-pull", "--now", "5");
    expect(code).toBe(6);
    expect(err.split("\n").slice(0, 2)).toEqual([
      "hearth ctl trace-pull: the block was warmed: already " +
        "(the block is resident: no pull was needed)",
      "hearth ctl trace-pull: no pull of 5 is known here",
    ]);
  });

  test("ctl trace-pull reports a refusal and prints no pull", async () => {
    await using agent = new FakeAgent({
      "POST /v1/commands": () => problem(403, "the role may not"),
      "GET /v1/pulls": () => ({ pulls: [pull] }),
    });
    const { code, out, err } = await ctl(agent, "trace-pull", "--now", "5");
    expect([code, out]).toEqual([7, ""]);
    expect(err).toContain("the role may not");
  });
});
