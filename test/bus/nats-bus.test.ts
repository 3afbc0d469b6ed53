import { expect, test } from "bun:test";
import { Svcm } from "@nats-io/services";
import { connect } from "@nats-io/transport-node";
import { openBus } from "../../src/bus/index.ts";
import { describeNats, NatsServer } from "../support/index.ts";
import { basics } from "./bus-bench.ts";
import { busContract } from "./bus-contract.ts";

describeNats("NATS", () => {
  for (const carrier of ["tcp", "ws"] as const) {
    const urlOf = (server: NatsServer) => (carrier === "tcp" ? server.tcpUrl : server.wsUrl);

    busContract(`NATS by ${carrier}`, async () => {
      const server = await NatsServer.start();
      return {
        open: (parts) => openBus({ ...parts, url: urlOf(server), name: "contract" }),
        goDown: () => server.kill(),
        comeUp: () => server.restart(),
        payloadBytesMax: 2 ** 20,
        [Symbol.asyncDispose]: () => server[Symbol.asyncDispose](),
      };
    });

    test(`a service over ${carrier} is found by the NATS tools`, async () => {
      await using server = await NatsServer.start();
      const bus = openBus({ ...basics(), url: urlOf(server), name: "tools" });
      const endpoints = [{ name: "commands", subject: "c", handler: () => undefined }];
      const metadata = { worker_id: "w1" };
      bus.serve({ name: "hearth-agent", version: "1.2.3", description: "d", metadata, endpoints });
      expect(await bus.flush(5_000)).toBe(true);
      const nc = await connect({ servers: `127.0.0.1:${server.tcpPort}`, reconnect: false });
      const client = new Svcm(nc).client();
      const [ping, info, stats] = await Promise.all(
        [client.ping(), client.info("hearth-agent"), client.stats()].map(async (asked) => {
          for await (const answer of await asked) return answer;
          return null;
        }),
      );
      const identity = { name: "hearth-agent", version: "1.2.3", id: ping!.id, metadata };
      expect(ping).toEqual({ ...identity, type: "io.nats.micro.v1.ping_response" } as never);
      expect(info).toMatchObject({ ...identity, description: "d", endpoints: [{ subject: "c" }] });
      expect(stats).toMatchObject({ ...identity, endpoints: [{ name: "commands" }] });
      await nc.close();
      await bus.close(0);
    });
  }
});
