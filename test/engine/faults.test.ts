import { expect, test } from "bun:test";
import * as protocol from "../../src/engine/protocol/index.ts";
import type { BlockStore, EngineSession } from "../../src/store/index.ts";
import { batchOf } from "../store/names.ts";
import { describeNative, waitFor } from "../support/index.ts";
import { type AgentKit, openAgent } from "./agent-kit.ts";
import { frameOf, slotsOf } from "./raw-engine.ts";

const { FrameStatus } = protocol;
const BROKEN = new Error("an invariant does not hold");

/** `inner` with some of its methods replaced. */
function replacing<T extends object>(inner: T, wrong: Partial<T>): T {
  return new Proxy(inner, {
    get(target, key) {
      const own = Reflect.get(key in wrong ? wrong : target, key, target);
      return typeof own === "function" ? own.bind(target) : own;
    },
  });
}

/** A store whose holders have a planted bug. */
function withBug(bug: Partial<EngineSession>) {
  return (store: BlockStore): BlockStore =>
    replacing(store, {
      openEngineSession: (options) => replacing(store.openEngineSession(options), bug),
    });
}

/**
 * The failing connection has ended with a reason and a log line; the agent and other connections
 * continue.
 */
async function expectContained(agent: AgentKit): Promise<void> {
  await waitFor(() => agent.server.stats.faults === 1);
  expect(agent.logs.at(-1)).toMatchObject({
    level: "error",
    text: expect.stringContaining(BROKEN.message),
    fields: { stack: expect.stringContaining("faults.test.ts") },
  });
  await using other = await agent.connect();
  expect(await other.put("other")).toEqual(["ok"]);
  expect(await other.get("other")).toEqual(["ok"]);
}

describeNative("an internal error of the agent", () => {
  const throwing = () => {
    throw BROKEN;
  };

  test("ends only the connection it occurred on", async () => {
    const wrapStore = withBug({ match: throwing });
    await using agent = await openAgent({ wrapStore });
    using bystander = await agent.rawGreeted();
    using raw = await agent.rawGreeted();
    const batch = batchOf(["a"]);
    const reserved = await raw.ask((o) =>
      protocol.encodeReserveRequest(o, 2, { session: 0n }, batch),
    );
    expect(slotsOf(reserved).count).toBe(1);
    raw.send((output) => protocol.encodeMatchRequest(output, 3, { tiers: 0 }, batch));
    const replies = await raw.untilClosed();
    expect(replies.map(({ op, status }) => [op, status])).toEqual([[0, FrameStatus.internal]]);
    // The slots it held wait for the end of its process, which is this one.
    expect(agent.server.held()).toEqual({ held: 0, quarantined: 1 });
    expect(await bystander.answersPing()).toBe(true);
    await expectContained(agent);
  });

  test("is contained if it occurs in a later turn", async () => {
    const wrapStore = withBug({ sessionRelease: throwing });
    await using agent = await openAgent({ wrapStore });
    using raw = await agent.rawGreeted();
    // Enough work for several turns; the bug occurs at its end.
    const batch = batchOf(Array.from({ length: 64 }, (_, i) => `x${i}`));
    const match = frameOf((output) => protocol.encodeMatchRequest(output, 3, { tiers: 0 }, batch));
    const release = frameOf((output) =>
      protocol.sessionRequests[protocol.Op.sessionRelease].encode(output, 4, { session: 1n }),
    );
    raw.sendBytes(Buffer.concat([...Array.from({ length: 2_000 }, () => match), release]));
    const replies = await raw.untilClosed();
    expect(replies).toHaveLength(2_001);
    expect(replies.at(-1)).toMatchObject({ op: 0, status: FrameStatus.internal });
    await expectContained(agent);
  });

  test("in a commit in progress ends its connection", async () => {
    const wrapStore = withBug({ commit: () => Promise.reject(BROKEN) });
    await using agent = await openAgent({ wrapStore });
    using raw = await agent.rawGreeted();
    const items = {
      count: 1,
      slot: new Uint32Array(1),
      generation: new Uint32Array(1),
      checksum: new BigUint64Array(1),
      flags: new Uint32Array(1),
    };
    raw.send((output) => protocol.commitRequest.encode(output, 3, items));
    const replies = await raw.untilClosed();
    expect(replies.map(({ status }) => status)).toEqual([FrameStatus.internal]);
    await waitFor(() => agent.server.connections === 0);
    expect(agent.server.stats.faults).toBe(1);
  });
});
