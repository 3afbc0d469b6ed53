import { expect, test } from "bun:test";
import { networkInterfaces } from "node:os";
import { join } from "node:path";
import { systemClock } from "../../../src/core/index.ts";
import { loadNative, NativeError, openLanes, STATUS } from "../../../src/native/index.ts";
import { StreamTransport } from "../../../src/peers/index.ts";
import { makeCluster } from "../../support/cluster.ts";
import { describeNative } from "../../support/index.ts";
import { RegionServer } from "../../support/region-server.ts";
import { transportContract } from "./contract.ts";
import { regionOf } from "./contract-kit.ts";
import { PlainNetwork } from "./plain-lanes.ts";

await transportContract(join(import.meta.dir, "stream-maker.ts"));

describeNative("a stream transport", () => {
  const options = {
    trust: makeCluster().trust("host"),
    clock: systemClock,
    log: () => {},
    ciphers: ["aegis-128l" as const],
    ...{ lanes: 1, lanesPort: 0 },
  };
  const target = { host: "127.0.0.1", port: 1, worker: "other" as never };
  const signal = new AbortController().signal;

  test("encrypts, copies directly, and needs an open connection for pulls", async () => {
    const network = new PlainNetwork();
    await using one = new StreamTransport({ ...options, openLanes: (own) => network.open(own) });
    const own = { encrypted: true, direct: true, early: false, oneSided: false };
    expect(one.capabilities).toEqual(own);
    expect(one.unsupported).toBeNull();
    await one.reload();
    expect(one.inboundConnections).toBe(0);
  });

  test("without lanes reports why, and nothing else fails", async () => {
    const refuse = () => {
      throw new NativeError("hearth_lanes_create", STATUS.no_memory, 12);
    };
    await using one = new StreamTransport({ ...options, openLanes: refuse });
    await one.register(regionOf(0));
    expect(one.unsupported).toContain("hearth_lanes_create");
    const dialled = await one.dial(target, signal);
    expect(dialled).toMatchObject({ ok: false, fault: { kind: "unsupported" } });
    const listening = one.listen({ host: "127.0.0.1", port: 0 }, new RegionServer(regionOf(0)));
    expect(listening).rejects.toMatchObject({ code: "UNSUPPORTED" });
    await listening.catch(() => {});
  });

  test("listens and dials by name, and by addresses of both families", async () => {
    const cluster = makeCluster();
    const native = loadNative();
    const make = (worker: string) =>
      new StreamTransport({
        ...{ ...options, trust: cluster.trust(worker) },
        openLanes: (region) => openLanes(native, { region, threads: 1, socketBytes: 0 }),
      });
    const isThere = Object.values(networkInterfaces()).flat();
    const six = isThere.some((one) => one?.address === "::1") ? ["::1", "::1"] : [];
    const pairs = [["localhost", "localhost"], ["0.0.0.0", "127.0.0.1"], six];
    for (const [host, dialled] of pairs) {
      if (host === undefined || dialled === undefined) continue;
      await using serverHost = make("server");
      await using client = make("client");
      for (const one of [serverHost, client]) await one.register(regionOf(0));
      const { port } = await serverHost.listen({ host, port: 0 }, new RegionServer(regionOf(0)));
      const to = { host: dialled, port, worker: "server" as never };
      expect(await client.dial(to, signal)).toMatchObject({ ok: true });
    }
  });

  test("refuses a port in use with a message, and fails to dial a closed one", async () => {
    const network = new PlainNetwork();
    const make = () => new StreamTransport({ ...options, openLanes: (own) => network.open(own) });
    await using first = make();
    const second = make();
    const server = new RegionServer(regionOf(0));
    for (const one of [first, second]) await one.register(regionOf(0));
    const endpoint = await first.listen({ host: "127.0.0.1", port: 0 }, server);
    const refused = await second.listen(endpoint, server).catch((thrown) => thrown);
    expect(refused).toMatchObject({ code: "CONFIG_INVALID" });
    expect(refused.text).toContain(`127.0.0.1:${endpoint.port}`);
    await second[Symbol.asyncDispose]();
    const dialled = await second.dial({ ...target, ...endpoint }, signal);
    expect(dialled).toMatchObject({ ok: false, fault: { kind: "closed" } });
  });
});
