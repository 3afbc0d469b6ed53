import { expect, test } from "bun:test";
import { jetstreamManager } from "@nats-io/jetstream";
import { Kvm } from "@nats-io/kv";
import { connect } from "@nats-io/transport-node";
import { describeNats, NatsServer, waitFor } from "../support/index.ts";
import { AgentProcess } from "./agent-process.ts";

const TIMEOUT_MS = 30_000;

const codesOf = async (agent: AgentProcess): Promise<string[]> =>
  (await agent.status()).health.map(({ code }: { readonly code: string }) => code);

describeNats("a stream and a bucket that do not exist", () => {
  test(
    "a missing stream and bucket are reported by health, status and metrics, and used once created",
    async () => {
      await using server = await NatsServer.start({ jetStream: true });
      const nats = { url: server.tcpUrl, command_stream: "NOPE", workers_bucket: "nobody" };
      await using agent = await AgentProcess.start({ config: { node: { id: "w" }, nats } });
      const isTold = async () =>
        (await codesOf(agent)).filter((code) => code.startsWith("NATS_")).length === 2;
      await waitFor(isTold, TIMEOUT_MS, "the health codes");
      expect((await codesOf(agent)).sort()).toEqual(["NATS_STREAM", "NATS_WORKERS"]);
      expect(await (await agent.get("/healthz")).text()).toContain("NATS_STREAM");
      const missing = (await agent.status()).nats;
      expect(missing).toMatchObject({
        status: "connected",
        stream: { name: "NOPE", status: "missing", handled: 0, given_up: 0 },
        workers: { bucket: "nobody" },
      });
      expect(missing.stream.why).not.toBe("");
      expect(missing.workers.why).toBeString();
      expect(await agent.metric("hearth_bus_stream_reading")).toBe(0);
      expect(await agent.metric("hearth_health", 'code="NATS_STREAM"')).toBe(1);

      const nc = await connect({ port: server.tcpPort });
      await (await jetstreamManager(nc)).streams.add({ name: "NOPE", subjects: ["kv-control-w"] });
      await new Kvm(nc).create("nobody");
      nc.publish("kv-control-w", JSON.stringify({ type: "RenewLease", id: "a" }));
      await nc.flush();
      const isOver = async () => (await codesOf(agent)).length === 0;
      await waitFor(isOver, TIMEOUT_MS, "the end of the health codes");
      const isHandled = async () => (await agent.status()).nats.stream.handled === 1;
      await waitFor(isHandled, TIMEOUT_MS, "the command of the stream");
      const { nats: well } = await agent.status();
      expect(well.stream).toMatchObject({ status: "consuming", why: null });
      expect(well.workers).toEqual({ bucket: "nobody", why: null });
      expect(await agent.metric("hearth_bus_stream_reading")).toBe(1);
      const handled = await agent.metric("hearth_bus_stream_messages_total", 'outcome="handled"');
      expect(handled).toBe(1);
      expect(await agent.metric("hearth_bus_answers_total", 'outcome="unasked"')).toBe(1);
      await nc.close();
    },
    TIMEOUT_MS * 3,
  );
});
