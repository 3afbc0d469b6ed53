import { expect, test } from "bun:test";
import { createApi, OPEN_ACCESS } from "../../src/api/index.ts";
import { systemClock } from "../../src/core/index.ts";
import { FakeControl } from "./fake-control.ts";
import { FakePeers } from "./fake-peers.ts";

test("a second server on the same port is refused with a reason", async () => {
  const services = {
    status: () => {
      throw new Error("not asked here");
    },
    readiness: () => ({ ready: true, reasons: [] }),
    health: () => [],
    sessions: () => ({ sessions: [], next: null }),
    session: () => [],
    purge: async () => [],
    persist: async () => ({ written: 0, skipped: 0, durable: true }),
    metricsText: async () => "",
    metricsContentType: "text/plain",
    control: new FakeControl(),
    peers: new FakePeers(),
  };
  const options = {
    version: "0",
    clock: systemClock,
    access: OPEN_ACCESS,
    onFault: () => undefined,
  };
  await using first = createApi(services, options).listen({ port: 0 });
  const second = () => createApi(services, options).listen({ port: first.port });
  expect(second).toThrow("Is port");
});
