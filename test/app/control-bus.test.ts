import { expect, test } from "bun:test";
import { ControlBus, type ControlBusParts } from "../../src/app/index.ts";
import { openBus } from "../../src/bus/index.ts";
import { systemClock, systemRandom } from "../../src/core/index.ts";
import { describeNats, NatsServer, waitFor } from "../support/index.ts";

const FLOOD = 9_000;
/** On one subject. */
const WAITING_MAX = 4_096;
const PATIENCE_MS = 20_000;

const NATS = {
  ...{ tokenFile: null, userFile: null, credsFile: null, nkeyFile: null },
  ...{ caFile: null, certFile: null, keyFile: null, commandStream: null, workersBucket: null },
  ...{ queueMessages: 100, queueBytes: 2 ** 20, role: "purge", receipts: false, events: false },
};

describeNats("commands rejected before decoding", () => {
  test(
    "commands rejected before decoding are counted",
    async () => {
      await using server = await NatsServer.start();
      let submitted = 0;
      const plane = {
        limits: () => ({ commandsPerSecond: 1_000_000, commandsBurst: 1_000_000, broadcast: [] }),
        submit: () => {
          submitted++;
          return new Promise(() => undefined);
        },
      };
      const nothing = () => undefined;
      await using bus = ControlBus.open({
        ...{ clock: systemClock, random: systemRandom, incarnation: 1n, version: "1.2.3" },
        ...{
          logger: { log: nothing },
          health: { clear: nothing, raise: nothing, report: nothing },
        },
        ...{ control: { plane, events: { listen: () => ({ [Symbol.dispose]: nothing }) } } },
        config: {
          ...{ node: { id: "w" }, control: { issuers: [] } },
          nats: { ...NATS, url: server.tcpUrl },
        },
      } as unknown as ControlBusParts)!;
      await using router = openBus({
        ...{ url: server.tcpUrl, name: "router", clock: systemClock, random: systemRandom },
      });
      const both = () => [bus, router].every(({ state }) => state.status === "connected");
      await waitFor(both, PATIENCE_MS);
      for (let nth = 0; nth < FLOOD; nth++) router.publish("kv-control-w", new Uint8Array(2));
      await waitFor(() => bus.state.receivedMessages === FLOOD, PATIENCE_MS);
      await waitFor(() => submitted === WAITING_MAX, PATIENCE_MS);
      expect(bus.sources.answers).toMatchObject({ overflowed: FLOOD - WAITING_MAX, limited: 0 });
    },
    PATIENCE_MS * 3,
  );
});
