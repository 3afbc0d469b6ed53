import { expect, test } from "bun:test";
import { join } from "node:path";
import { createHandleBatch } from "../../src/store/index.ts";
import type { Engine } from "../engine/engine.ts";
import { batchOf, outcomeOf } from "../store/names.ts";
import { describeNative, makeCluster, waitFor, withTempDir } from "../support/index.ts";
import { AgentProcess } from "./agent-process.ts";

const HOSTS = 4;
const CLIENTS = 32;
const ACQUIRES = 1_000;
const BYTES = 200_000;
const TIMEOUT_MS = 120_000;

async function acquire(engine: Engine): Promise<string> {
  const batch = batchOf(["system prompt"]);
  const out = createHandleBatch(1);
  await engine.client.acquire(batch, { tiers: 0, deadlineMs: 30_000, stopAtMiss: false }, out);
  const outcome = outcomeOf(out.outcome[0]!);
  out.count = 1;
  if (outcome === "ok") await engine.client.release(out);
  return outcome;
}

describeNative("a herd on agents", () => {
  test(
    "1,000 acquires of one block by 32 clients on 4 hosts: one transfer to each host",
    () =>
      withTempDir(async (folder) => {
        const cluster = makeCluster(join(folder, "ca"));
        await using stack = new AsyncDisposableStack();
        const start = async (worker: string, peers: Record<string, unknown>) => {
          const { certFile, keyFile, caFile } = cluster.files(worker);
          const files = { cert_file: certFile, key_file: keyFile, ca_file: caFile };
          const ports = { listen_stream: "127.0.0.1:0", listen_quic: "off" };
          const own = { ...files, ...ports, cluster: cluster.name, summaries: "200ms", ...peers };
          return stack.use(
            await AgentProcess.start({ config: { node: { id: worker }, peers: own } }),
          );
        };
        const holder = await start("holder", {});
        const writer = stack.use(await holder.connect());
        const blocks = ["probe", "system prompt"].map((name) => ({ name, bytes: BYTES }));
        expect(await writer.put(...blocks)).toEqual(["ok", "ok"]);
        const { stream } = await holder.logged("listening for peers");
        const peers = { peers: `holder@127.0.0.1:${String(stream).split(":").at(-1)}` };
        const hosts: AgentProcess[] = [];
        for (let i = 0; i < HOSTS; i++) hosts.push(await start(`host-${i}`, peers));
        const clients: Engine[] = [];
        for (let i = 0; i < CLIENTS; i++)
          clients.push(stack.use(await hosts[i % HOSTS]!.connect()));
        // Each host has heard what the holder has once one of its engines gets the other block.
        for (const client of clients.slice(0, HOSTS))
          await waitFor(
            async () => (await client.get("probe"))[0] === "ok",
            TIMEOUT_MS,
            "summaries",
          );
        const outcomes = await Promise.all(
          Array.from({ length: ACQUIRES }, (_, i) => acquire(clients[i % CLIENTS]!)),
        );
        expect(new Set(outcomes)).toEqual(new Set(["ok"]));
        for (const host of hosts)
          expect(await host.metric("cgn_kvcached_quic_pulls_total", 'outcome="ok"')).toBe(2);
        expect(await holder.metric("hearth_peer_served_total", 'outcome="block"')).toBe(2 * HOSTS);
      }),
    TIMEOUT_MS,
  );
});
