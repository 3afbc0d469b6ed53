import { expect, test } from "bun:test";
import { makeCluster } from "../../support/cluster.ts";
import { describeNative, waitFor } from "../../support/index.ts";
import { MIB, RealHost } from "./real-host.ts";

const HOSTS = 4;
const CLIENTS = 32;
const ACQUIRES = 1_000;

describeNative("many hosts that fetch at once", () => {
  const title =
    "1,000 acquires of one block by 32 clients on 4 hosts: one transfer to each host, %s";
  test.each(["stream", "quic"] as const)(
    title,
    async (transport) => {
      const cluster = makeCluster();
      const make = (worker: string) =>
        new RealHost({
          ...{
            worker,
            trust: cluster.trust(worker),
            arenaBytes: 32 * MIB,
            transports: [transport],
          },
        }).listen();
      await using holder = await make("holder");
      await holder.engine().put({ name: "system prompt", bytes: 4 * MIB });
      await using stack = new AsyncDisposableStack();
      const hosts: RealHost[] = [];
      for (let i = 0; i < HOSTS; i++) hosts.push(stack.use(await make(`host-${i}`)));
      for (const host of hosts) host.meet([holder]);
      const clients = Array.from({ length: CLIENTS }, (_, i) => hosts[i % HOSTS]!.engine());
      const acquiring = Array.from({ length: ACQUIRES }, async (_, i) => {
        const engine = clients[i % CLIENTS]!;
        const handles = await engine.fetch(["system prompt"], { deadlineMs: 30_000 });
        const outcomes = handles.map((handle) =>
          handle.outcome === "ok" && i % 50 === 0 && !engine.proves(handle)
            ? "wrong"
            : handle.outcome,
        );
        engine.release(handles);
        return outcomes[0]!;
      });
      const outcomes = await Promise.all(acquiring);
      expect(new Set(outcomes)).toEqual(new Set(["ok"]));
      for (const host of hosts) {
        expect(host.puller.stats.byTransport[transport].blocks).toBe(1);
        expect(host.puller.stats.outcomes.ok).toBe(1);
      }
      expect(holder.serving.stats.blocks).toBe(HOSTS);
      for (const client of clients) client.die();
      const all = [holder, ...hosts];
      await waitFor(() => all.every((host) => host.leftovers().length === 0));
    },
    60_000,
  );
});
