import { expect, test } from "bun:test";
import { createHandleBatch } from "../../src/store/index.ts";
import { batchOf, chain } from "../store/names.ts";
import { describeNative, waitFor } from "../support/index.ts";
import { AgentProcess } from "./agent-process.ts";

/** The idle time of the test, and how often the agent looks. */
const IDLE_MS = 2_000;
const LOOK_MS = 1_000;

async function sessionsOf(agent: AgentProcess, path = "") {
  // biome-ignore lint/suspicious/noExplicitAny: tests read the fields that they name
  return (await (await agent.get(`/v1/sessions${path}`)).json()) as any;
}

describeNative("sessions of a running agent", () => {
  test("sessions are listed over HTTP and end when idle", async () => {
    await using agent = await AgentProcess.start({ config: { engine: { session_idle: "2s" } } });
    await using engine = await agent.connect();
    await engine.put(...chain("a/b"));
    const big = 2n ** 64n - 1n;
    await engine.client.sessionCommit(big, batchOf(["a/b"]), createHandleBatch(1));
    const expected = {
      id: big.toString(),
      namespace: engine.client.hello.namespaceId.toHex(),
      idle_seconds: expect.any(Number),
      depth: 2,
      ram: { blocks: 2, bytes: 10_000 },
      ssd: { blocks: 0, bytes: 0 },
    };
    expect(await sessionsOf(agent)).toEqual({ sessions: [expected], next: null });
    expect(await sessionsOf(agent, `/${big}`)).toEqual({ sessions: [expected] });
    expect(await agent.metric("hearth_sessions")).toBe(1);
    const isOver = async () => (await agent.status()).sessions === 0 || undefined;
    await waitFor(isOver, 2 * IDLE_MS + LOOK_MS, "the session to end");
    expect((await agent.get(`/v1/sessions/${big}`)).status).toBe(404);
    expect(await engine.get(...chain("a/b"))).toEqual(["ok", "ok"]);
  });
});
