import { expect, test } from "bun:test";
import type { PeerAnswer, PeerHello, PullItem } from "../../../src/peers/index.ts";
import { Tier } from "../../../src/store/blocks/index.ts";
import { waitFor } from "../../support/index.ts";
import { blockOf } from "../../support/region-server.ts";
import {
  chalk,
  dial,
  MIB,
  Pair,
  placesFor,
  pullAndProve,
  pullPlaces,
  type TransportMaker,
  untouchedPlace,
} from "./contract-kit.ts";

const HELLO: PeerHello = {
  worker: "client" as never,
  incarnation: 77n,
  hardware: { hasRdmaNic: false, rdmaDevices: [], cores: 2, hasAes: true },
};

/** Requests, answers, and blocks. */
export function pullsContract(maker: TransportMaker): void {
  test("calls are answered, and the server knows the client's identity", async () => {
    await using pair = await Pair.make(maker);
    const { server } = pair.serverHost;
    await using connection = await pair.connection();
    expect(connection.identity).toMatchObject({ worker: "server", cluster: pair.cluster.name });
    expect(connection.transport).toBe(pair.client.transport.name);
    const hello = await connection.call({ op: "hello", hello: HELLO }, { deadlineMs: 5_000 });
    expect(hello).toEqual({ ok: true, answer: { op: "hello", hello: HELLO } });
    expect(server.client).toBe("client" as never);
    server.put(1, 10_000);
    const blocks = [blockOf(1), blockOf(2)];
    const namespace = server.header(1).namespace;
    const has = await connection.call({ op: "has", namespace, blocks }, { deadlineMs: 5_000 });
    const { bytes, generation, checksum } = server.header(1);
    const nothing = { tiers: 0, bytes: 0, generation: 0n, checksum: 0n };
    const answer = {
      op: "has",
      blocks: [{ tiers: Tier.ram, bytes, generation, checksum }, nothing],
    };
    expect(has).toEqual({ ok: true, answer } as never);
    expect(connection.rttMs).toBeGreaterThan(0);
  });

  test("busy and refused are answers, and a summary may be long", async () => {
    await using pair = await Pair.make(maker);
    await using connection = await pair.connection();
    const filter = crypto.getRandomValues(new Uint8Array(60_000));
    const answers: PeerAnswer[] = [
      { op: "busy", retryAfterMs: 250 },
      { op: "refused", why: "not for you" },
      { op: "summary", version: 9n, filter },
      { op: "summary", version: 9n, filter: null },
    ];
    for (const answer of answers) {
      pair.serverHost.server.onCall = () => answer;
      const namespace = new Uint8Array(32);
      const called = connection.call(
        { op: "summary", namespace, known: 3n },
        { deadlineMs: 5_000 },
      );
      expect(await called).toEqual({ ok: true, answer });
    }
  });

  test("blocks of all sizes arrive complete, in their places and nowhere else", async () => {
    await using pair = await Pair.make(maker);
    const { server } = pair.serverHost;
    const sizes = [1, 7, 4096, 65_535, 65_536, 65_537, 256 * 1024, MIB + 1, 5_000_000];
    const seeds = sizes.map((_, index) => index + 1);
    const items = sizes.map((bytes, index) => server.put(index + 1, bytes));
    await using connection = await pair.connection();
    await pullAndProve(pair.client, connection, seeds, items, server);
    await waitFor(() => server.released === sizes.length);
  });

  test("a released block is not read any more", async () => {
    await using pair = await Pair.make(maker);
    const { server, region } = pair.serverHost;
    const sizes = [1, 4096, 65_536, 200_000, MIB + 1];
    const seeds = sizes.map((_, index) => index + 1);
    const items = sizes.map((bytes, index) => server.put(index + 1, bytes));
    server.onServe = (served) => {
      if (served.kind !== "block") return served;
      const release = () => {
        served.release();
        region.fill(served.offset, served.header.bytes, 99n);
      };
      return { ...served, release };
    };
    await using connection = await pair.connection();
    await pullAndProve(pair.client, connection, seeds, items, server);
    await waitFor(() => server.released === sizes.length);
  });

  test("all header fields arrive as they were sent", async () => {
    await using pair = await Pair.make(maker);
    const { server } = pair.serverHost;
    const more = {
      model: "m".repeat(255),
      parent: new Uint8Array(32).fill(3),
      transient: true,
      aliases: [new Uint8Array(8).fill(1), new Uint8Array(32).fill(2)],
    };
    const items = [server.put(1, 100, more), server.put(2, 100, { model: "" })];
    await using connection = await pair.connection();
    await pullAndProve(pair.client, connection, [1, 2], items, server);
  });

  test("the checksum is computed over the arena, whatever the header says", async () => {
    await using pair = await Pair.make(maker);
    const { server } = pair.serverHost;
    const item = server.put(1, 300_000, { checksum: 42n });
    await using connection = await pair.connection();
    const places = placesFor([item]);
    const { results } = await pullPlaces(connection, places);
    const checksum = server.region.checksum(0, 300_000);
    expect(results[0]).toMatchObject({ kind: "came", checksum, header: { checksum: 42n } });
  });

  test("many small blocks arrive in concurrent pulls on one connection", async () => {
    await using pair = await Pair.make(maker);
    const { server } = pair.serverHost;
    const items = Array.from({ length: 512 }, (_, index) => server.put(index + 1, 4_000 + index));
    await using connection = await pair.connection();
    const places = placesFor(items);
    chalk(pair.client.region, places);
    const pulls = Array.from({ length: 8 }, (_, at) => places.slice(at * 64, at * 64 + 64));
    const outcomes = await Promise.all(pulls.map((some) => pullPlaces(connection, some)));
    expect(outcomes.map(({ fault }) => fault)).toEqual(pulls.map(() => null));
    for (const [index, { offset, bytesMax }] of places.entries()) {
      const seed = BigInt(index + 1);
      expect(pair.client.region.firstWrong(offset, bytesMax, seed)).toBeNull();
    }
    await waitFor(() => server.released === 512);
  });

  test("large blocks arrive with progress, and few slot references at once", async () => {
    await using pair = await Pair.make(maker);
    const { server } = pair.serverHost;
    const items = [1, 2, 3].map((seed) => server.put(seed, 16 * MIB));
    await using connection = await pair.connection();
    const places = placesFor(items);
    let calls = 0;
    const outcome = await pullPlaces(connection, places, { onBytes: () => void calls++ });
    expect(outcome.fault).toBeNull();
    expect(outcome.told).toEqual(items.map(({ bytesMax }) => bytesMax));
    expect(calls).toBeGreaterThanOrEqual(3);
    for (const [index, { offset, bytesMax }] of places.entries()) {
      expect(pair.client.region.firstWrong(offset, bytesMax, BigInt(index + 1))).toBeNull();
    }
  });

  test("each block has its own answer", async () => {
    await using pair = await Pair.make(maker);
    const { server } = pair.serverHost;
    const items: PullItem[] = [
      server.put(1, 50_000),
      { ...blockOf(2), bytesMax: 50_000, generation: 0n },
      { ...server.put(3, 60_000), bytesMax: 59_999 },
      server.put(4, 70_000),
      server.put(5, 80_000),
      server.put(6, 90_000),
    ];
    server.onServe = (served) => {
      const { index } = served;
      if (index === 3) return { index, kind: "busy", retryAfterMs: 125 };
      if (index === 4) return { index, kind: "refused", why: "not in this namespace" };
      return served;
    };
    await using connection = await pair.connection();
    const places = placesFor(items);
    chalk(pair.client.region, places);
    const { fault, results } = await pullPlaces(connection, places);
    expect(fault).toBeNull();
    expect(results[0]).toMatchObject({ kind: "came" });
    expect(results[1]).toEqual({ kind: "absent" });
    expect(results[2]).toEqual({ kind: "tooLong", bytes: 60_000 });
    expect(results[3]).toEqual({ kind: "busy", retryAfterMs: 125 });
    expect(results[4]).toEqual({ kind: "refused", why: "not in this namespace" });
    expect(results[5]).toMatchObject({ kind: "came" });
    for (const index of [1, 2, 3, 4]) {
      expect(untouchedPlace(pair.client.region, places[index]!)).toBe(true);
    }
  });

  test("blocks may arrive in another order than requested", async () => {
    await using pair = await Pair.make(maker);
    const { server } = pair.serverHost;
    const items = [1, 2, 3].map((seed) => server.put(seed, 100_000 + seed));
    const turned = [2, 0, 1];
    server.onServe = (served) => {
      const index = turned[served.index]!;
      const header = server.header(index + 1);
      return { index, ...server.lend(header, server.offset(index + 1)) };
    };
    await using connection = await pair.connection();
    const outcome = await pullAndProve(pair.client, connection, [1, 2, 3], items, server);
    expect(outcome.results).toHaveLength(3);
  });

  test("both hosts can pull from each other at once", async () => {
    await using pair = await Pair.make(maker);
    const there = pair.serverHost.server;
    const here = pair.client.server;
    await using connection = await pair.connection();
    await using back = await dial(pair.serverHost, pair.client.endpoint, "client");
    const calls = [connection, back].map((one) =>
      one.call({ op: "hello", hello: HELLO }, { deadlineMs: 5_000 }),
    );
    for (const called of await Promise.all(calls)) expect(called.ok).toBe(true);
    expect([there.client, here.client]).toEqual(["client", "server"] as never);
  });
}
