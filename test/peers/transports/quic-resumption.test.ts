import { expect, test } from "bun:test";
import { systemClock } from "../../../src/core/index.ts";
import { loadNative } from "../../../src/native/index.ts";
import { QuicTransport } from "../../../src/peers/index.ts";
import { measureResumption, UdpRelay } from "../../../src/workload/bench/index.ts";
import { makeCluster } from "../../support/cluster.ts";
import { describeNative, waitFor } from "../../support/index.ts";
import { dial, Host, LIMITS, Pair, placesFor, pullPlaces, regionOf } from "./contract-kit.ts";
import { maker } from "./quic-maker.ts";

const FIND = { op: "find", names: [] } as const;

/** Opens a connection, pulls once and closes it: the next connection can use its ticket. */
async function speakOnce(pair: Pair): Promise<void> {
  await using connection = await pair.connection();
  const places = placesFor([pair.serverHost.server.put(1, 1_000)]);
  expect((await pullPlaces(connection, places)).fault).toBeNull();
  expect(connection.resumed).toBe(false);
}

describeNative("a second connection by QUIC", () => {
  test("has its first byte after one round trip", async () => {
    const delayMs = 60;
    const options = { delayMs, blockBytes: 256 * 1024 };
    const { firstMs, againMs, resumed } = await measureResumption(loadNative(), options);
    expect(resumed).toBe(true);
    expect(firstMs).toBeGreaterThan(4 * delayMs);
    expect(againMs).toBeGreaterThan(2 * delayMs);
    expect(againMs).toBeLessThan(4 * delayMs);
  });

  test("waits for the handshake with everything except pulls", async () => {
    await using pair = await Pair.make(maker);
    const { host, port } = pair.serverHost.endpoint;
    using relay = await UdpRelay.open({ port, delayMs: 40, clock: systemClock });
    const wire = { host, port: relay.port };
    const first = await dial(pair.client, wire, "server");
    expect((await first.call(FIND, { deadlineMs: 5_000 })).ok).toBe(true);
    await first[Symbol.asyncDispose]();
    await using connection = await dial(pair.client, wire, "server");
    expect(connection.resumed).toBe(true);
    const startMs = performance.now();
    expect((await connection.call(FIND, { deadlineMs: 5_000 })).ok).toBe(true);
    expect(performance.now() - startMs).toBeGreaterThan(160);
  });

  test("receives many early pulls completely", async () => {
    await using pair = await Pair.make(maker);
    await speakOnce(pair);
    const { server } = pair.serverHost;
    const items = [2, 3, 4, 5, 6].map((seed) => server.put(seed, 100_000));
    await using connection = await pair.connection();
    expect(connection.resumed).toBe(true);
    expect(connection.identity.worker).toBe("server" as never);
    const places = placesFor(items);
    const outcomes = await Promise.all(places.map((place) => pullPlaces(connection, [place])));
    expect(outcomes.map(({ fault }) => fault)).toEqual(items.map(() => null));
    for (const [index, { offset, bytesMax }] of places.entries()) {
      const wrong = pair.client.region.firstWrong(offset, bytesMax, BigInt(index + 2));
      expect(wrong).toBeNull();
    }
  });

  test("to a restarted server does a full handshake, and the pull is sent again", async () => {
    await using pair = await Pair.make(maker);
    await speakOnce(pair);
    const { endpoint } = pair.serverHost;
    await pair.serverHost[Symbol.asyncDispose]();
    const limits = LIMITS;
    await using again = new Host(maker, pair.cluster.trust("server"), regionOf(0), limits);
    const item = again.server.put(1, 50_000);
    await again.transport.register(again.region);
    await again.transport.listen(endpoint, again.server);
    await using connection = await pair.connection();
    expect((await pullPlaces(connection, placesFor([item]))).fault).toBeNull();
    expect(connection.resumed).toBe(false);
    await waitFor(() => again.server.lent === 0 && again.server.serving === 0);
  });

  test("to an unreachable server is a fault of its first request", async () => {
    await using pair = await Pair.make(maker, { handshakeMs: 400 });
    await speakOnce(pair);
    await pair.serverHost[Symbol.asyncDispose]();
    await using connection = await pair.connection();
    const item = { ...pair.serverHost.server.put(2, 1_000) };
    const { fault } = await pullPlaces(connection, placesFor([item]));
    expect(["unreachable", "broken"]).toContain(fault!.kind);
    expect((await connection.ended).kind).toBe(fault!.kind);
  });

  test("does not use a ticket that is old, or of a peer that is no longer accepted", async () => {
    const cluster = makeCluster();
    const options = { clock: systemClock, native: loadNative(), log: () => {} };
    await using serverHost = new Host(maker, cluster.trust("server"), regionOf(0), LIMITS);
    await serverHost.listen();
    const trust = cluster.trust("client");
    await using client = new QuicTransport({ ...options, trust });
    await using forgetful = new QuicTransport({ ...options, trust, limits: { ticketMs: 0 } });
    for (const one of [client, forgetful]) await one.register(regionOf(1));
    const target = { ...serverHost.endpoint, worker: "server" as never };
    const places = placesFor([serverHost.server.put(1, 1_000)]);
    const speak = async (transport = client) => {
      const dialled = await transport.dial(target, new AbortController().signal);
      if (!dialled.ok) throw new Error(dialled.fault.why);
      await using connection = dialled.connection;
      const { resumed } = connection;
      expect((await pullPlaces(connection, places)).fault).toBeNull();
      return resumed;
    };
    expect(await speak()).toBe(false);
    expect(await speak()).toBe(true);
    // Tickets of other own certificates are discarded.
    trust.change(cluster.host("client"));
    await client.reload();
    expect(await speak()).toBe(false);
    expect(await speak(forgetful)).toBe(false);
    expect(await speak(forgetful)).toBe(false);
    // This side trusts another authority now, so the ticket is not used.
    trust.change({ ...trust.credentials, authorities: makeCluster().authority.certificate });
    const dialled = await client.dial(target, new AbortController().signal);
    expect(dialled).toMatchObject({ ok: false, fault: { kind: "refused" } });
  });
});

describeNative("an idle QUIC connection", () => {
  test("is closed after a while, and one in use is not", async () => {
    const cluster = makeCluster();
    await using serverHost = new Host(maker, cluster.trust("server"), regionOf(0), LIMITS);
    await serverHost.listen();
    const options = { clock: systemClock, native: loadNative(), log: () => {} };
    const limits = { idleMs: 150 };
    await using client = new QuicTransport({ ...options, trust: cluster.trust("client"), limits });
    await client.register(regionOf(1));
    const target = { ...serverHost.endpoint, worker: "server" as never };
    const dialled = await client.dial(target, new AbortController().signal);
    if (!dialled.ok) throw new Error(dialled.fault.why);
    const { connection } = dialled;
    const startMs = performance.now();
    while (performance.now() - startMs < 400) {
      expect((await connection.call(FIND, { deadlineMs: 1_000 })).ok).toBe(true);
    }
    expect(await connection.ended).toMatchObject({ kind: "closed" });
    await waitFor(() => serverHost.transport.inboundConnections === 0);
  });
});
