import { expect, test } from "bun:test";
import { readFileSync } from "node:fs";
import { describeNative, UnfinishedRequest, waitFor } from "../support/index.ts";
import { AgentProcess } from "./agent-process.ts";

const MIB = 2 ** 20;
const BUDGET_BYTES = 64 * MIB;
/** Code that runs for the first time, receive buffers, and what the collector has not met yet. */
const SLACK_BYTES = 160 * MIB;

function residentBytes({ process }: AgentProcess): number {
  const status = readFileSync(`/proc/${process.pid}/status`, "utf8");
  return Number(/^VmRSS:\s+(\d+) kB$/m.exec(status)![1]) * 1_024;
}

describeNative("an agent and 100 bodies that are never finished", () => {
  test("unfinished bodies are buffered within a budget and others are served", async () => {
    await using agent = await AgentProcess.start({
      config: { api: { loopback_role: "purge" } },
    });
    const url = new URL((await agent.logged("api listening")).url as string);
    const before = residentBytes(agent);
    const head = "POST /v1/commands HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n";
    const clients: UnfinishedRequest[] = [];
    const part = new Uint8Array(64 * 1_024);
    let most = 0;
    try {
      for (let i = 0; i < 100; i++) {
        const client = await UnfinishedRequest.open(Number(url.port), head);
        clients.push(client);
        for (let sent = 0; sent < 64; sent++) client.chunk(part);
        most = Math.max(most, residentBytes(agent));
      }
      await waitFor(() => clients.filter(({ status }) => status > 0).length > 80, 60_000);
      most = Math.max(most, residentBytes(agent));
      // All of them together have 400 MiB to send.
      expect(most - before).toBeLessThan(BUDGET_BYTES + SLACK_BYTES);
      await using engine = await agent.connect();
      expect(await engine.put("a")).toEqual(["ok"]);
      const flush = await fetch(`${url}flush_cache`, { method: "POST", keepalive: false });
      expect(flush.status).toBe(200);
      // Those that were taken are not waited for longer than the timeout of bodies.
      await waitFor(() => clients.every(({ isClosed }) => isClosed), 60_000, "408");
    } finally {
      for (const client of clients) client.end();
    }
  }, 180_000);
});
