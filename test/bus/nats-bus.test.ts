import { openBus } from "../../src/bus/index.ts";
import { describeNats, NatsServer } from "../support/index.ts";
import { busContract } from "./bus-contract.ts";

describeNats("NATS", () => {
  for (const carrier of ["tcp", "ws"] as const) {
    busContract(`NATS by ${carrier}`, async () => {
      const server = await NatsServer.start();
      const url = carrier === "tcp" ? server.tcpUrl : server.wsUrl;
      return {
        open: (basics) => openBus({ ...basics, url, name: "contract" }),
        goDown: () => server.kill(),
        comeUp: () => server.restart(),
        payloadBytesMax: 2 ** 20,
        [Symbol.asyncDispose]: () => server[Symbol.asyncDispose](),
      };
    });
  }
});
