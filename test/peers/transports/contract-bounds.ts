import { expect, test } from "bun:test";
import type { PeerConnection } from "../../../src/peers/index.ts";
import { waitFor } from "../../support/index.ts";
import {
  LIMITS,
  MIB,
  Pair,
  placesFor,
  pullPlaces,
  type TransportMaker,
  tryDial,
} from "./contract-kit.ts";

/** Limits on the memory and requests that a peer can occupy. */
export function boundsContract(maker: TransportMaker): void {
  test("no listener: the dial is unreachable in bounded time, and can be aborted", async () => {
    await using pair = await Pair.make(maker, { handshakeMs: 400 });
    const free = await Bun.udpSocket({ hostname: "127.0.0.1", port: 0 });
    const nowhere = { host: "127.0.0.1", port: free.port };
    free.close();
    const dead = await tryDial(pair.client, nowhere, "server");
    expect(dead).toMatchObject({ ok: false, fault: { kind: "unreachable" } });
    const unknown = await tryDial(pair.client, { host: "host.invalid", port: 9 }, "server");
    expect(unknown).toMatchObject({ ok: false, fault: { kind: "unreachable" } });
    const aborted = await tryDial(pair.client, nowhere, "server", AbortSignal.abort());
    expect(aborted).toMatchObject({ ok: false, fault: { kind: "aborted" } });
  });

  test("inbound connections are bounded, and a freed place is given again", async () => {
    await using pair = await Pair.make(maker, { linksMax: 3 });
    const connections: PeerConnection[] = [];
    const works = async (connection: PeerConnection) =>
      (await connection.call({ op: "find", names: [] }, { deadlineMs: 3_000 })).ok;
    for (let i = 0; i < 6; i++) {
      const dialled = await tryDial(pair.client, pair.serverHost.endpoint, "server");
      if (dialled.ok && (await works(dialled.connection))) connections.push(dialled.connection);
      expect(pair.serverHost.transport.inboundConnections).toBeLessThanOrEqual(3);
    }
    expect(connections).toHaveLength(3);
    await connections.pop()![Symbol.asyncDispose]();
    await waitFor(() => pair.serverHost.transport.inboundConnections === 2);
    const dialled = await tryDial(pair.client, pair.serverHost.endpoint, "server");
    expect(dialled.ok && (await works(dialled.connection))).toBe(true);
    if (dialled.ok) connections.push(dialled.connection);
    for (const connection of connections) await connection[Symbol.asyncDispose]();
  });

  test("concurrent requests are bounded, and all are answered", async () => {
    await using pair = await Pair.make(maker, { requestsMax: 4 });
    const { server } = pair.serverHost;
    const items = Array.from({ length: 24 }, (_, index) => server.put(index + 1, 20_000));
    await using connection = await pair.connection();
    const places = placesFor(items);
    const outcomes = await Promise.all(places.map((place) => pullPlaces(connection, [place])));
    for (const { fault, results } of outcomes) {
      expect(fault).toBeNull();
      expect(["came", "busy"]).toContain(results[0]!.kind);
    }
    expect(server.servingMost).toBeLessThanOrEqual(4);
    expect(outcomes.filter(({ results }) => results[0]!.kind === "came").length).toBeGreaterThan(3);
  });

  test("few slot references are held at once, however many blocks are requested", async () => {
    await using pair = await Pair.make(maker, { progressMs: LIMITS.progressMs * 4 });
    const { server } = pair.serverHost;
    const items = Array.from({ length: 48 }, (_, index) => server.put(index + 1, MIB));
    await using connection = await pair.connection();
    const { fault } = await pullPlaces(connection, placesFor(items));
    expect(fault).toBeNull();
    await waitFor(() => server.released === 48);
    expect(server.lentMost).toBeLessThanOrEqual(16);
  });

  test("cancelled pulls leave nothing behind", async () => {
    await using pair = await Pair.make(maker);
    const { server } = pair.serverHost;
    const item = server.put(1, 200_000);
    await using connection = await pair.connection();
    const places = placesFor([item]);
    for (let i = 0; i < 100; i++) {
      const abort = new AbortController();
      const onBytes = () => void (i % 2 === 0 && abort.abort());
      const { fault } = await pullPlaces(connection, places, { signal: abort.signal, onBytes });
      expect(fault === null || fault.kind === "aborted").toBe(true);
    }
    await waitFor(() => server.lent === 0 && server.serving === 0);
    expect((await pullPlaces(connection, places)).fault).toBeNull();
  });
}
