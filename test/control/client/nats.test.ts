import { describe, expect, test } from "bun:test";
import { connectControl, pin, prune } from "hearth/client";
import { openBus } from "../../../src/bus/index.ts";
import { runCli } from "../../../src/cli/index.ts";
import { ControlSubscriber } from "../../../src/control/index.ts";
import { systemClock, systemRandom } from "../../../src/core/index.ts";
import { memoryIo } from "../../cli/memory-io.ts";
import { describeNats, NatsServer, waitFor } from "../../support/index.ts";
import { PlaneKit } from "../plane-kit.ts";
import { FakeWorker } from "./kit.ts";

async function workerAt(url: string, name: string) {
  const bus = openBus({ url, name, clock: systemClock, random: systemRandom });
  await waitFor(() => bus.state.status === "connected");
  const worker = new FakeWorker(bus, name);
  await bus.flush(5_000);
  return { worker, [Symbol.asyncDispose]: () => bus[Symbol.asyncDispose]() };
}

async function hearth(...words: string[]) {
  const io = memoryIo();
  const code = await runCli(words, io);
  return { code, out: io.outText(), err: io.errText() };
}

describeNats("the client through NATS", () => {
  describe.each(["tcpUrl", "wsUrl"] as const)("%s", (carrier) => {
    test("send, broadcast, discovery, and an absent worker", async () => {
      await using server = await NatsServer.start();
      const url = server[carrier];
      await using a = await workerAt(url, "node-a");
      await using b = await workerAt(url, "node-b");
      await using client = connectControl({ nats: { url }, issuer: "router" });
      expect(await client.send("node-a", pin([1]))).toMatchObject({ kind: "receipt" });
      const found = await waitFor(async () => {
        const workers = await client.workers(300);
        return workers.length === 2 && workers;
      });
      expect(found).toMatchObject([{ id: "node-a" }, { id: "node-b" }]);
      const all = await client.broadcast(prune(5, { id: "all" }));
      expect(all).toMatchObject({ silent: [], why: null });
      expect(all.receipts.length).toBeGreaterThan(0);
      await waitFor(() => [a, b].every(({ worker }) => worker.carriedOut.includes("all")));
      expect(await client.send("node-z", pin([1]), { absentMs: 200 })).toMatchObject({
        kind: "unreachable",
        why: "no worker listens as node-z",
      });
    });
  });

  test("an absent worker, with a deadline just after an attempt", async () => {
    await using server = await NatsServer.start();
    await using client = connectControl({ nats: { url: server.tcpUrl } });
    const deadlines = Array.from({ length: 30 }, (_, i) => 800 + 10 * i);
    const results = await Promise.all(
      deadlines.map((deadlineMs) => client.send("node-z", pin([1]), { deadlineMs })),
    );
    expect(new Set(results.map(({ kind }) => kind))).toEqual(new Set(["unreachable"]));
  });

  test("the broker dies during the wait for an answer", async () => {
    await using server = await NatsServer.start();
    await using a = await workerAt(server.tcpUrl, "node-a");
    await using client = connectControl({ nats: { url: server.tcpUrl } });
    a.worker.behave = ({ command, nth }, answer) => {
      const receipt = a.worker.carryOut(command);
      if (nth > 1) answer(receipt);
    };
    const result = client.send("node-a", pin([1]));
    await waitFor(() => a.worker.received.length === 1);
    await server.kill();
    await server.restart();
    expect(await result).toMatchObject({ kind: "receipt", receipt: { duplicate: true } });
    expect(a.worker.carriedOut).toHaveLength(1);
  });

  test("a broker that rejects the credentials", async () => {
    await using server = await NatsServer.start({ token: "right" });
    await using client = connectControl({ nats: { url: server.tcpUrl } });
    const result = await client.send("node-a", pin([1]), { deadlineMs: 1_500 });
    expect(result).toMatchObject({ kind: "unreachable", tries: 0 });
    expect(result).toHaveProperty("why", expect.stringContaining("no connection to the broker"));
  });

  test("a real control plane, as MessagePack, and hearth ctl beside it", async () => {
    await using server = await NatsServer.start();
    const url = server.tcpUrl;
    await using bus = openBus({ url, name: "w1", clock: systemClock, random: systemRandom });
    const { plane, events } = new PlaneKit();
    await using _subscriber = new ControlSubscriber({
      ...{ bus, plane, events, workerId: "w1", incarnation: 7n, version: "0.1.0" },
      ...{ role: "purge", issuer: "nats", publishReceipts: false, publishEvents: false },
      commandStream: null,
    });
    await waitFor(() => bus.state.status === "connected");
    await bus.flush(5_000);
    await using client = connectControl({ nats: { url }, encoding: "msgpack" });
    const command = pin([-1, 2n ** 63n], { id: "once", owner: "a" });
    const result = await client.send("w1", command);
    expect(result).toMatchObject({ kind: "receipt", receipt: { id: "once", worker_id: "w1" } });
    expect(await client.send("w1", command)).toMatchObject({ receipt: { duplicate: true } });
    const at = ["--nats", url];
    const workers = await hearth("ctl", "workers", ...at, "--wait", "2s", "--json");
    expect(workers).toMatchObject({ code: 0, err: "" });
    expect(JSON.parse(workers.out)).toEqual({ worker: "w1", version: "0.1.0", incarnation: "7" });
    const status = await hearth("ctl", "status", ...at, "--worker", "w1", "--json");
    expect(JSON.parse(status.out)).toEqual({ worker_id: "w1", version: "0.1.0", incarnation: "7" });
    expect((await hearth("ctl", "status", ...at, "--worker", "w2")).code).toBe(8);
    const sent = await hearth("ctl", "unpin", "111", ...at, "--worker", "w1", "--json");
    expect(JSON.parse(sent.out)).toMatchObject({ type: "Cache", worker_id: "w1" });
    // The configuration of this plane allows Think by broadcast, but not Cache.
    const think = await hearth("ctl", "think", "4", ...at, "--broadcast");
    // Outcomes that no worker reported are omitted.
    expect(think.out).toMatch(/^worker {2}status {2,}(done|already|missing) +reason$/m);
    const refused = await hearth("ctl", "pin", "4", ...at, "--broadcast", "--json");
    expect(refused.code).toBe(7);
    expect(JSON.parse(refused.out)).toMatchObject({ status: "rejected", worker_id: "w1" });
  });
});
