import { expect, test } from "bun:test";
import { readStatus, type StatusSources } from "../../src/api/index.ts";
import { Health } from "../../src/observability/index.ts";
import { ManualClock } from "../support/index.ts";
import { agentSources } from "./agent-sources.ts";
import { serve } from "./serve.ts";

test("the status is read from the sources of the metrics and fits its schema", async () => {
  const clock = new ManualClock();
  using health = new Health({ clock, log: { log: () => undefined } });
  const sources: StatusSources = {
    ...agentSources(clock),
    health,
    config: {
      node: { id: "gpu-01" },
      engine: { socket: "/run/e.sock" },
    } as StatusSources["config"],
    incarnation: 2n ** 64n - 1n,
    state: "stopped",
    namespaces: [new Uint8Array(32)],
    native: { build: () => ({ optimizeMode: "ReleaseSafe" }) } as StatusSources["native"],
  };
  health.raise("KV_SSD_SLOW", "2.1 s");
  clock.advance(1_500);
  const served = serve();
  served.told.status = () => readStatus(sources);
  const answer = await served.get("/v1/status");
  expect(served.told.faults).toEqual([]);
  expect(await answer.json()).toMatchObject({
    ...{ state: "draining", incarnation: "18446744073709551615", uptime_seconds: 1.5 },
    arena: { bytes: 4096, ready_bytes: 2048, locked_bytes: 1024, huge: false },
    ram: { blocks: 5, damaged_blocks: 261, slots: [{ slot_bytes: 128, slots: 15, used: 5 }] },
    ssd: { used_bytes: 16_384, writes_stopped: null, counters: { ram_damaged_files: 33 } },
    control: { pins: { holds: 2 }, kept_bytes: 8, running: 14, ledger_pending: 16 },
    nats: { queued: 22, dropped: 21, stream: { name: "S", handled: 27, given_up: 28 } },
    engine: { connections: 11, slots_held: 6, slots_quarantined: 1, frames: 4, cut_off: 1 },
    ...{ peers: null, feed: null, gpu: null, rdma: null, namespaces: ["00".repeat(32)] },
    health: [{ code: "KV_SSD_SLOW", for_seconds: 1.5 }],
    counters: { match_blocks: 50 },
  });
});
