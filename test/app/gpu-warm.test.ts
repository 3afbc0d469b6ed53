import { expect, test } from "bun:test";
import { LAYER_ALL } from "../../src/core/index.ts";
import { Outcome } from "../../src/engine/index.ts";
import { digestOf } from "../store/names.ts";
import { describeNative, withTempDir } from "../support/index.ts";
import { AgentProcess } from "./agent-process.ts";

const keyOf = (name: string) => digestOf(name).toHex();

async function warm(agent: AgentProcess, ...names: string[]): Promise<unknown> {
  const { url } = await agent.logged("api listening");
  const command = { type: "Warm", block_keys: names.map(keyOf), target_tier: "GPU" };
  const headers = { "content-type": "application/json" };
  const init = { method: "POST", headers, body: JSON.stringify(command), keepalive: false };
  return (await fetch(`${url}/v1/commands`, init)).json();
}

describeNative("blocks warmed for a GPU", () => {
  test(
    "blocks warmed for a GPU go to the waiting engine and the receipt says so",
    () =>
      withTempDir(async (folder) => {
        await using agent = await AgentProcess.start({ folder, config: {} });
        await using engine = await agent.connect();
        await using taker = await agent.connect();
        await engine.put("a", "b");
        expect(await warm(agent, "a", "b")).toMatchObject({ counts: { deferred: 2 } });
        const { gpu } = taker.client;
        const none = { count: 0, outcome: new Uint32Array(2) };
        const blocks = { count: 0, layer: 0, digests: new Uint8Array(64) };
        const coming = gpu.warm({ offer: 0, deadlineMs: 20_000 }, none, blocks);
        await taker.client.ping(new Uint8Array(8));
        const receipt = warm(agent, "a", "b", "no");
        const offer = await coming;
        expect(blocks).toMatchObject({ count: 2, layer: LAYER_ALL });
        expect(blocks.digests.toHex()).toBe(keyOf("a") + keyOf("b"));
        expect(await taker.get("a", "b")).toEqual(["ok", "ok"]);
        const outcomes = { count: 2, outcome: Uint32Array.of(Outcome.ok, Outcome.full) };
        const next = gpu.warm({ offer, deadlineMs: 1 }, outcomes, blocks);
        const counts = { done: 1, deferred: 1, missing: 1 };
        expect(await receipt).toMatchObject({ counts });
        expect(await next).toBe(0);
      }),
    60_000,
  );
});
