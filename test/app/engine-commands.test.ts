import { expect, test } from "bun:test";
import { describeNative } from "../support/index.ts";
import { digestOf } from "../tiers/names.ts";
import { AgentProcess } from "./agent-process.ts";

describeNative("an engine's own connection", () => {
  test("carries commands to the control plane and brings receipts back", async () => {
    await using agent = await AgentProcess.start();
    await using engine = await agent.connect();
    await engine.put("a", "b");
    const submit = async (command: object): Promise<unknown> => {
      const json = new TextEncoder().encode(JSON.stringify(command));
      return JSON.parse(new TextDecoder().decode(await engine.client.engine.command(json)));
    };
    const block_keys = [digestOf("a").toHex(), digestOf("x").toHex()];
    expect(await submit({ type: "Cache", block_keys, pin: true })).toMatchObject({
      ...{ status: "partial", issuer: "test" },
      blocks: [{ outcome: "done" }, { outcome: "missing" }],
    });
    expect(await submit({ type: "Dance" })).toMatchObject({ status: "rejected" });
    const { control } = await agent.status();
    expect(control).toMatchObject({ pins: { holds: 1, blocks: 1 } });
  }, 60_000);
});
