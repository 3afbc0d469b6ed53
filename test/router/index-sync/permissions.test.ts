import { expect, test } from "bun:test";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { type Bus, openBus } from "../../../src/bus/index.ts";
import { systemClock, systemRandom, type WorkerId } from "../../../src/core/index.ts";
import {
  BusPublisher,
  EngineBlockSet,
  ResidencyLog,
} from "../../../src/events/publishing/index.ts";
import type { KeySpace } from "../../../src/observability/activity/index.ts";
import { BusLocator } from "../../../src/peers/directory/index.ts";
import { IndexSync, WorkerTable } from "../../../src/router/index.ts";
import { basics } from "../../bus/bus-bench.ts";
import { describeNats, NatsServer, waitFor } from "../../support/index.ts";
import { QUICK } from "../ingest/ingest-kit.ts";
import { ReferenceIndex } from "../prefix-index/reference-index.ts";
import { SOON } from "../replicas/replica-kit.ts";

const CLUSTER = "hearth";
const NAMESPACE = new Uint8Array(32).fill(7);
const SPACE: KeySpace = { kind: "blocks", model: "m", blockTokens: 16, namespaceKey: NAMESPACE };
const page = readFileSync(join(import.meta.dir, "../../../docs/operating/operations.md"), "utf8");

/** The server's configuration as the page has it. */
function permissions(): string[] {
  const [, block = ""] = /```conf\n(authorization [\s\S]*?)```/.exec(page) ?? [];
  return block.split("\n");
}

function upkeepOn(bus: Bus): IndexSync {
  return new IndexSync({
    ...{ bus, clock: systemClock, random: systemRandom, cluster: CLUSTER },
    ...{ index: new ReferenceIndex(), table: new WorkerTable(), log: () => undefined },
    load: { requestExpiryMs: 300_000 },
    ...{ blockTokens: 16, ingest: QUICK, isConfigured: () => false, replicas: SOON },
    ...{ applyThresholds: () => true, keep: null, streamConsumer: null, resetStates: false },
  });
}

function agentOn(bus: Bus): { residency: ResidencyLog; publisher: BusPublisher } {
  const held = new EngineBlockSet(1_000);
  const hashes = BigUint64Array.of(0x0101010101010101n);
  held.apply([{ kind: "stored", tier: "host", parent: null, hashes, tokenHashes: null }]);
  const residency = new ResidencyLog({
    source: { worker: "gpu-01" as WorkerId, rank: 0, incarnation: 3n },
    ring: { changesMax: 100, blocksMax: 1_000 },
    ...{ mode: "ring", everyMs: 100, held: [held], spaces: () => [SPACE], flush: () => undefined },
  });
  const of = { residency, bus, cluster: CLUSTER, clock: systemClock, sendsBatches: true };
  return { residency, publisher: new BusPublisher(of) };
}

describeNats("under the permissions of docs/operating/operations.md", () => {
  test("routers can follow an agent, hear each other and locate blocks", async () => {
    const server = await NatsServer.start({ lines: permissions() });
    const open = (user: string, password: string) => {
      const url = `nats://${user}:${password}@127.0.0.1:${server.tcpPort}`;
      const inboxPrefix = `_INBOX.${user.replace("agent-", "")}`;
      return openBus({ ...basics(), url, name: user, inboxPrefix });
    };
    const agentBus = open("agent-gpu-01", "change-me-1");
    const routerBuses = [1, 2].map(() => open("router", "change-me-2"));
    const upkeeps = routerBuses.map(upkeepOn);
    const { publisher } = agentOn(agentBus);
    try {
      for (const sync of upkeeps) await sync.begin();
      for (const bus of [agentBus, ...routerBuses]) expect(await bus.connected(5_000)).toBe(true);
      await waitFor(() => upkeeps.every(({ ingest }) => ingest.stats().known === 1), 10_000);
      await waitFor(() => upkeeps.every(({ group }) => group!.stats.replicas === 1), 10_000);
      const self = "gpu-02" as WorkerId;
      const locator = new BusLocator({ bus: agentBus, clock: systemClock, cluster: CLUSTER, self });
      const keys = [new Uint8Array(32).fill(1)];
      await waitFor(async () => {
        const found = await locator.locate(NAMESPACE, keys, 5_000, AbortSignal.any([]));
        return String(found) === "gpu-01";
      });
      for (const bus of routerBuses) expect(bus.state.refusedSubjects).toEqual([]);
    } finally {
      await publisher[Symbol.asyncDispose]();
      for (const sync of upkeeps) await sync[Symbol.asyncDispose]();
      for (const bus of [agentBus, ...routerBuses]) await bus.close(100);
      await server[Symbol.asyncDispose]();
    }
  });
});
