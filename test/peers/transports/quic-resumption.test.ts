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
  const places = placesFor([pair.holder.server.put(1, 1_000)]);
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
    const { host, port } = pair.holder.endpoint;
    using relay = await UdpRelay.open({ port, delayMs: 40, clock: systemClock });
    const wire = { host, port: relay.port };
    const first = await dial(pair.asker, wire, "holder");
    expect((await first.call(FIND, { deadlineMs: 5_000 })).ok).toBe(true);
    await first[Symbol.asyncDispose]();
    await using connection = await dial(pair.asker, wire, "holder");
    expect(connection.resumed).toBe(true);
    const startMs = performance.now();
    expect((await connection.call(FIND, { deadlineMs: 5_000 })).ok).toBe(true);
    expect(performance.now() - startMs).toBeGreaterThan(160);
  });

  test("receives many early pulls completely", async () => {
    await using pair = await Pair.make(maker);
    await speakOnce(pair);
    const { server } = pair.holder;
    const items = [2, 3, 4, 5, 6].map((seed) => server.put(seed, 100_000));
    await using connection = await pair.connection();
    expect(connection.resumed).toBe(true);
    expect(connection.identity.worker).toBe("holder" as never);
    const places = placesFor(items);
    const outcomes = await Promise.all(places.map((place) => pullPlaces(connection, [place])));
    expect(outcomes.map(({ fault }) => fault)).toEqual(items.map(() => null));
    for (const [index, { offset, bytesMax }] of places.entries()) {
      const wrong = pair.asker.region.firstWrong(offset, bytesMax, BigInt(index + 2));
      expect(wrong).toBeNull();
    }
  });

  test("to a restarted server does a full handshake, and the pull is sent again", async () => {
    await using pair = await Pair.make(maker);
    await speakOnce(pair);
    const { endpoint } = pair.holder;
    await pair.holder[Symbol.asyncDispose]();
    const limits = LIMITS;
    await using again = new Host(maker, pair.cluster.trust("holder"), regionOf(0), limits);
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
    await pair.holder[Symbol.asyncDispose]();
    await using connection = await pair.connection();
    const item = { ...pair.holder.server.put(2, 1_000) };
    const { fault } = await pullPlaces(connection, placesFor([item]));
    expect(["unreachable", "broken"]).toContain(fault!.kind);
    expect((await connection.ended).kind).toBe(fault!.kind);
  });

  test("does not use a ticket that is old, or of a peer that is no longer accepted", async () => {
    const cluster = makeCluster();
    const options = { clock: systemClock, native: loadNative(), log: () => {} };
    await using holder = new Host(maker, cluster.trust("holder"), regionOf(0), LIMITS);
    await holder.listen();
    const trust = cluster.trust("asker");
    await using asker = new QuicTransport({ ...options, trust });
    await using forgetful = new QuicTransport({ ...options, trust, limits: { ticketMs: 0 } });
    for (const one of [asker, forgetful]) await one.register(regionOf(1));
    const target = { ...holder.endpoint, worker: "holder" as never };
    const places = placesFor([holder.server.put(1, 1_000)]);
    const speak = async (transport = asker) => {
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
    trust.change(cluster.host("asker"));
    await asker.reload();
    expect(await speak()).toBe(false);
    expect(await speak(forgetful)).toBe(false);
    expect(await speak(forgetful)).toBe(false);
    // This side trusts another authority now, so the ticket is not used.
    trust.change({ ...trust.credentials, authorities: makeCluster().authority.certificate });
    const dialled = await asker.dial(target, new AbortController().signal);
    expect(dialled).toMatchObject({ ok: false, fault: { kind: "refused" } });
  });
});

describeNative("an idle QUIC connection", () => {
  test("is closed after a while, and one in use is not", async () => {
    const cluster = makeCluster();
    await using holder = new Host(maker, cluster.trust("holder"), regionOf(0), LIMITS);
    await holder.listen();
    const options = { clock: systemClock, native: loadNative(), log: () => {} };
    const limits = { idleMs: 150 };
    await using asker = new QuicTransport({ ...options, trust: cluster.trust("asker"), limits });
    await asker.register(regionOf(1));
    const target = { ...holder.endpoint, worker: "holder" as never };
    const dialled = await asker.dial(target, new AbortController().signal);
    if (!dialled.ok) throw new Error(dialled.fault.why);
    const { connection } = dialled;
    const startMs = performance.now();
    while (performance.now() - startMs < 400) {
      expect((await connection.call(FIND, { deadlineMs: 1_000 })).ok).toBe(true);
    }
    expect(await connection.ended).toMatchObject({ kind: "closed" });
    await waitFor(() => holder.transport.inboundConnections === 0);
  });
});
