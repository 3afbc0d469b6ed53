import { expect, test } from "bun:test";
import { digestOf } from "../store/names.ts";
import { describeNative } from "../support/index.ts";
import { AgentProcess } from "./agent-process.ts";

describeNative("an engine's own connection", () => {
  test("an engine connection carries commands and returns receipts", async () => {
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
  });

  test("an engine cannot fence an issuer of another transport by its name", async () => {
    await using agent = await AgentProcess.start();
    await using engine = await agent.connect();
    await engine.put("a");
    const pin = { type: "Cache", block_keys: [digestOf("a").toHex()], pin: true, issuer: "router" };
    const json = new TextEncoder().encode(JSON.stringify({ ...pin, epoch: 1_000, seq: 1 }));
    const own = JSON.parse(new TextDecoder().decode(await engine.client.engine.command(json)));
    expect(own).toMatchObject({ status: "ok", issuer: "router" });
    const { url } = await agent.logged("api listening");
    const headers = { "content-type": "application/json" };
    const body = JSON.stringify({ ...pin, epoch: 1, seq: 1 });
    const answer = await fetch(`${url}/v1/commands`, { method: "POST", headers, body });
    expect(await answer.json()).toMatchObject({ status: "ok" });
  });
});
