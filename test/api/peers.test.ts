import { describe, expect, test } from "bun:test";
import type { PeerReport } from "../../src/api/index.ts";
import { problem, serve } from "./serve.ts";

const served = serve();
const { peers } = served.told;

const PEER: PeerReport = {
  worker_id: "gpu-02",
  origin: "static",
  state: "down",
  transport: null,
  goodput_bytes_per_second: null,
  rtt_ms: null,
  breaker: "open",
  cooldown_ms: 900.5,
  certificate_ends: null,
  in_flight_bytes: 0,
  pulled_blocks: 0,
  pulled_bytes: 0,
  failures: 3,
  last_fault: "connection refused",
  transports_down: [{ transport: "quic", retry_ms: 12 }],
  endpoints: { stream: { host: "10.0.0.2", port: 7172 } },
  hardware: null,
  heard_seconds_ago: null,
};

describe("GET /v1/peers", () => {
  test("an agent without [peers] reports that peers are disabled", async () => {
    const answer = await served.get("/v1/peers");
    expect(answer.status).toBe(200);
    expect(await answer.json()).toMatchObject({ enabled: false, cluster: null, peers: [] });
  });

  test("the answer is the agent's report", async () => {
    peers.told = { ...peers.told, enabled: true, cluster: "hearth", peers: [PEER] };
    expect(await (await served.get("/v1/peers")).json()).toEqual(peers.told as never);
  });
});

describe("GET /v1/pulls", () => {
  const pull = {
    key: "ab".repeat(32),
    digest: "cd".repeat(32),
    layer: 4_294_967_295,
    priority: "warm" as const,
    started: "2026-01-01T00:00:00.000Z",
    outcome: null,
    bytes: 0,
    steps: [{ ms: 0.25, what: "asked", peer: "gpu-02", transport: "quic" as const }],
  };

  test("a block is found by each kind of name", async () => {
    peers.traces = { pulls: [pull] };
    const ask = async (query: string) => (await served.get(`/v1/pulls${query}`)).json();
    expect(await ask("")).toEqual({ pulls: [pull] });
    await ask("?key=-42&limit=3");
    await ask(`?key=${"ab".repeat(32)}/7`);
    expect(peers.asked.map(({ max }) => max)).toEqual([100, 3, 100]);
    expect(peers.asked[0]?.name).toBeNull();
    expect(peers.asked[1]?.name).toMatchObject({ kind: "hash", given: "-42" });
    expect(peers.asked[2]?.name).toMatchObject({ kind: "key", layer: 7 });
  });

  test("an invalid name and a limit out of range are refused", async () => {
    const found = await problem(await served.get("/v1/pulls?key=blue"));
    expect(found).toMatchObject({ status: 422, code: "REQUEST_INVALID" });
    expect((await served.get("/v1/pulls?limit=100000")).status).toBe(422);
    expect((await served.get("/v1/pulls?key=")).status).toBe(422);
  });
});
