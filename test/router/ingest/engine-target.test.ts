import { expect, test } from "bun:test";
import type { WorkerId } from "../../../src/core/index.ts";
import { EngineTarget } from "../../../src/router/ingest/index.ts";
import { waitFor } from "../../support/index.ts";
import { IntakeRoom } from "./ingest-kit.ts";
import { SPACE, stored } from "./scripted-worker.ts";

const WORKER = "e" as WorkerId;

test("events of a followed engine override an agent's of that name", async () => {
  await using room = await new IntakeRoom({}, { isConfigured: () => true }).ready();
  const { table, index, ingest } = room;
  const { id } = table.put({
    ...{ worker: WORKER, rank: 0, model: "m", role: "both", spaces: [SPACE] },
    ...{ url: null, totalBlocks: null, batchTokensMax: null },
  });
  const agent = room.worker({ worker: "e" });
  agent.beat();
  agent.send(agent.store("disk", 9n));
  await waitFor(() => room.agrees(agent));
  const engine = new EngineTarget({ worker: WORKER, rank: 0, table, index, ingest });
  expect(room.target("e")?.isKnown).toBe(false);
  expect(index.stats.blocks).toBe(0);
  engine.apply([stored("device", 1n, 2n)]);
  engine.setKnown(true);
  agent.beat();
  agent.send(agent.store("disk", 10n));
  await room.settle();
  expect(index.match(BigUint64Array.of(1n, 2n, 3n)).device[0]).toBe(2);
  expect(index.holders(BigUint64Array.of(9n, 10n), 4)).toEqual([[], []]);
  engine.setHeard(false);
  expect(table.get(id)?.state).toBe("stale");
  engine.setHeard(true);
  expect(table.get(id)?.state).toBe("live");
  engine.restart();
  expect(table.get(id)?.isKnown).toBe(false);
  expect(index.stats.blocks).toBe(0);
  engine.apply([stored("device", 1n)]);
  engine[Symbol.dispose]();
  expect(index.stats.blocks).toBe(0);
  agent.beat();
  await waitFor(() => room.agrees(agent));
});
