import { expect, test } from "bun:test";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { jetstreamManager } from "@nats-io/jetstream";
import { Objm } from "@nats-io/obj";
import { connect } from "@nats-io/transport-node";
import { openBus } from "../../../src/bus/index.ts";
import { systemClock, type WorkerId } from "../../../src/core/index.ts";
import { BusPublisher, StreamPublisher } from "../../../src/events/publishing/index.ts";
import { basics } from "../../bus/bus-bench.ts";
import { describeNats, NatsServer, waitFor } from "../../support/index.ts";
import { Blocks, feedsOf } from "./feed-kit.ts";

const page = readFileSync(join(import.meta.dir, "../../../docs/operations.md"), "utf8");
const [, block = ""] = /```conf\n(authorization [\s\S]*?)```/.exec(page) ?? [];
const STREAM = "kv-events-hearth";
const BUCKET = "kv-snapshots-hearth";

describeNats("under the permissions of docs/operations.md", () => {
  for (const carrier of ["tcp", "ws"] as const) {
    test(`an agent writes its stream and its snapshots, by ${carrier}`, async () => {
      await using server = await NatsServer.start({ jetStream: true, lines: block.split("\n") });
      const nc = await connect({
        ...{ servers: `127.0.0.1:${server.tcpPort}`, user: "operator", pass: "change-me-3" },
        inboxPrefix: "_INBOX.operator",
      });
      const { streams } = await jetstreamManager(nc);
      await streams.add({ name: STREAM, subjects: ["kv-events-hearth.*.*"] });
      await new Objm(nc).create(BUCKET);
      const place = new URL(carrier === "tcp" ? server.tcpUrl : server.wsUrl).host;
      const url = `${carrier === "tcp" ? "nats" : "ws"}://agent-gpu-01:change-me-1@${place}`;
      const bus = openBus({ ...basics(), url, name: "agent", inboxPrefix: "_INBOX.gpu-01" });
      expect(await bus.connected(5_000)).toBe(true);
      const blocks = new Blocks();
      using feeds = feedsOf(blocks, { worker: "gpu-01" as WorkerId, mode: "stream" });
      const feed = feeds.feeds[0]!;
      const common = { feed, bus, cluster: "hearth", clock: systemClock };
      await using publisher = new BusPublisher({ ...common, sendsBatches: false });
      const { snapshots } = publisher;
      await using stream = new StreamPublisher({
        ...{ ...common, snapshots, durable: bus.durable!, stream: STREAM, bucket: BUCKET },
        ...{ snapshotMessages: 1, snapshotEveryMs: 600_000, log: () => undefined },
      });
      for (let round = 0; round < 2; round++) {
        blocks.churn(50);
        feed.flush();
        const before = stream.state.storedSnapshots;
        // A snapshot that replaces another one, and a purge behind it.
        await waitFor(() => stream.state.storedSnapshots > before, 15_000);
      }
      await waitFor(() => stream.state.behind === 0);
      await waitFor(() => stream.state.status === "publishing" || stream.state.why, 15_000);
      expect(stream.state).toMatchObject({ status: "publishing", why: null });
      expect(bus.state.refusedSubjects).toEqual([]);
      const { messages } = (await streams.info(STREAM)).state;
      expect(messages).toBeLessThan(4);
      await stream[Symbol.asyncDispose]();
      await publisher[Symbol.asyncDispose]();
      await bus.close(100);
      await nc.close();
    });
  }
});
