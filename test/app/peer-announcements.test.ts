import { expect, test } from "bun:test";
import { join } from "node:path";
import { openBus } from "../../src/bus/index.ts";
import { announcementSubject, readAnnouncement } from "../../src/peers/index.ts";
import { basics } from "../bus/bus-bench.ts";
import { describeNats, makeCluster, NatsServer, waitFor, withTempDir } from "../support/index.ts";
import { AgentProcess } from "./agent-process.ts";

const TIMEOUT_MS = 60_000;

describeNats("what a host announces", () => {
  test(
    "an announcement names only served namespaces",
    () =>
      withTempDir(async (folder) => {
        await using server = await NatsServer.start();
        const cluster = makeCluster(join(folder, "ca"));
        const { certFile, keyFile, caFile } = cluster.files("a");
        const files = { cert_file: certFile, key_file: keyFile, ca_file: caFile };
        const listen = { listen_stream: "127.0.0.1:0", listen_quic: "off" };
        const rest = { cluster: cluster.name };
        const start = (serveNamespaces: string) =>
          AgentProcess.start({
            config: {
              node: { id: "a" },
              peers: { ...files, ...listen, ...rest, serve_namespaces: serveNamespaces },
              nats: { url: server.tcpUrl },
            },
          });
        const bus = openBus({ ...basics(), url: server.tcpUrl, name: "listener" });
        const heard: (readonly string[] | null)[] = [];
        bus.subscribe(announcementSubject(cluster.name), ({ data }) => {
          const read = readAnnouncement(data);
          if (read.ok) heard.push(read.announcement.namespaces);
        });
        const heardOf = async (serveNamespaces: string) => {
          await using agent = await start(serveNamespaces);
          await using _engine = await agent.connect();
          heard.length = 0;
          await waitFor(() => heard.length >= 3, TIMEOUT_MS, "announcements");
          return heard.at(-1);
        };
        expect(await heardOf("any")).toHaveLength(1);
        expect(await heardOf("ab".repeat(32))).toEqual([]);
        await bus.close(0);
      }),
    TIMEOUT_MS,
  );
});
