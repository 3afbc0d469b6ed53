import { expect, test } from "bun:test";
import type { Served } from "../../../src/peers/index.ts";
import { waitFor } from "../../support/index.ts";
import {
  chalk,
  MIB,
  Pair,
  placesFor,
  pullPlaces,
  type TransportMaker,
  tryDial,
  untouchedPlace,
} from "./contract-kit.ts";

/** Cancellation, deadlines, hangs, and closing. */
export function endingsContract(maker: TransportMaker): void {
  test("a cancelled pull stops the sender, and nothing is written any more", async () => {
    await using pair = await Pair.make(maker);
    const { server } = pair.serverHost;
    const items = Array.from({ length: 24 }, (_, index) => server.put(index + 1, 2 * MIB));
    await using connection = await pair.connection();
    const places = placesFor(items);
    const abort = new AbortController();
    let seen = 0;
    const { fault, results } = await pullPlaces(connection, places, {
      signal: abort.signal,
      onBytes(_, bytes) {
        seen += bytes;
        if (seen > 3 * MIB) abort.abort();
      },
    });
    chalk(pair.client.region, places);
    expect(fault?.kind).toBe("aborted");
    expect(results.filter((result) => result === undefined).length).toBeGreaterThan(0);
    await waitFor(() => server.lent === 0 && server.serving === 0);
    expect(server.signals[0]!.aborted).toBe(true);
    expect(server.released).toBeLessThan(24);
    // After a complete round trip everything that was in flight has arrived.
    const again = await pullPlaces(connection, placesFor(items.slice(0, 1)));
    expect(again.fault).toBeNull();
    for (const place of places.slice(1)) {
      expect(untouchedPlace(pair.client.region, place)).toBe(true);
    }
  });

  test("a pull that is aborted before it begins sends no request", async () => {
    await using pair = await Pair.make(maker);
    const item = pair.serverHost.server.put(1, 1000);
    await using connection = await pair.connection();
    const places = placesFor([item]);
    const outcome = await pullPlaces(connection, places, { signal: AbortSignal.abort() });
    expect(outcome.fault?.kind).toBe("aborted");
    const options = { deadlineMs: 1_000, signal: AbortSignal.abort() };
    const called = await connection.call({ op: "find", names: [] }, options);
    expect(called).toMatchObject({ ok: false, fault: { kind: "aborted" } });
    expect(pair.serverHost.server.asked).toBe(0);
  });

  test("the slot reference of a cancelled block is released", async () => {
    await using pair = await Pair.make(maker);
    const { server } = pair.serverHost;
    const items = [1, 2].map((seed) => server.put(seed, 10_000));
    const { promise: later, resolve } = Promise.withResolvers<void>();
    server.onServe = async (served): Promise<Served> => {
      if (served.index === 1) await later;
      return served;
    };
    await using connection = await pair.connection();
    const abort = new AbortController();
    const pulled = pullPlaces(connection, placesFor(items), { signal: abort.signal });
    await waitFor(() => server.released === 1);
    abort.abort();
    expect((await pulled).fault?.kind).toBe("aborted");
    await waitFor(() => server.signals[0]!.aborted);
    resolve();
    await waitFor(() => server.serving === 0 && server.lent === 0);
  });

  test("a silent sender times out, and the connection stays open", async () => {
    await using pair = await Pair.make(maker, { progressMs: 300 });
    const { server } = pair.serverHost;
    const items = [1, 2].map((seed) => server.put(seed, 10_000));
    const hang = (signal: AbortSignal) =>
      new Promise<undefined>((resolve) => {
        signal.addEventListener("abort", () => resolve(undefined));
      });
    server.onServe = (served, _, signal) => (served.index === 1 ? hang(signal) : served);
    server.onCall = async (_, signal) => (await hang(signal)) ?? { op: "refused", why: "late" };
    await using connection = await pair.connection();
    const places = placesFor(items);
    const { fault, results } = await pullPlaces(connection, places);
    expect(fault?.kind).toBe("stalled");
    expect(results[0]).toMatchObject({ kind: "came" });
    await waitFor(() => server.serving === 0);
    const called = await connection.call({ op: "find", names: [] }, { deadlineMs: 100 });
    expect(called).toMatchObject({ ok: false, fault: { kind: "stalled" } });
    server.onServe = (served) => served;
    expect((await pullPlaces(connection, places)).fault).toBeNull();
    expect(connection.fault).toBeNull();
  });

  test("a pull ends at its deadline, on both sides", async () => {
    await using pair = await Pair.make(maker);
    const { server } = pair.serverHost;
    const items = Array.from({ length: 64 }, (_, index) => server.put(index + 1, 1_000));
    // It makes progress all the time, and never ends.
    server.onServe = async (served) => {
      await Bun.sleep(20);
      return served;
    };
    await using connection = await pair.connection();
    const places = placesFor(items);
    const { fault } = await pullPlaces(connection, places, { deadlineMs: 200 });
    expect(fault?.kind).toBe("stalled");
    await waitFor(() => server.serving === 0);
    expect(server.signals[0]!.aborted).toBe(true);
    expect(server.released).toBeLessThan(64);
  });

  test("closing a connection ends its requests, and no other connection", async () => {
    await using pair = await Pair.make(maker);
    const { server } = pair.serverHost;
    const items = [1, 2].map((seed) => server.put(seed, 10_000));
    server.onServe = (served, _, signal) => {
      if (served.index === 0) return served;
      return new Promise((resolve) => signal.addEventListener("abort", () => resolve(undefined)));
    };
    const connection = await pair.connection();
    await using other = await pair.connection();
    const pulled = pullPlaces(connection, placesFor(items));
    await waitFor(() => server.released === 1);
    await connection[Symbol.asyncDispose]();
    await connection[Symbol.asyncDispose]();
    expect((await pulled).fault?.kind).toBe("closed");
    expect((await connection.ended).kind).toBe("closed");
    expect(connection.fault?.kind).toBe("closed");
    await waitFor(() => server.serving === 0 && server.lent === 0);
    const late = await pullPlaces(connection, placesFor(items));
    expect(late.fault?.kind).toBe("closed");
    const called = await connection.call({ op: "find", names: [] }, { deadlineMs: 1_000 });
    expect(called).toMatchObject({ ok: false, fault: { kind: "closed" } });
    expect(other.fault).toBeNull();
    expect((await other.call({ op: "find", names: [] }, { deadlineMs: 5_000 })).ok).toBe(true);
    await waitFor(() => pair.serverHost.transport.inboundConnections === 1);
  });

  test("closing a transport ends all its connections and frees its port", async () => {
    await using pair = await Pair.make(maker);
    const { server } = pair.serverHost;
    const items = [1, 2].map((seed) => server.put(seed, 10_000));
    server.onServe = (served, _, signal) => {
      if (served.index === 0) return served;
      return new Promise((resolve) => signal.addEventListener("abort", () => resolve(undefined)));
    };
    await using connection = await pair.connection();
    const pulled = pullPlaces(connection, placesFor(items));
    await waitFor(() => server.released === 1);
    await pair.serverHost[Symbol.asyncDispose]();
    await pair.serverHost[Symbol.asyncDispose]();
    expect((await pulled).fault).not.toBeNull();
    expect((await connection.ended).kind).not.toBe("closed");
    expect(server.lent).toBe(0);
    expect(pair.serverHost.transport.inboundConnections).toBe(0);
    const dialled = await tryDial(pair.client, pair.serverHost.endpoint, "server");
    // If a ticket is used, only the first request shows the refusal.
    if (dialled.ok) {
      const called = await dialled.connection.call(
        { op: "find", names: [] },
        { deadlineMs: 5_000 },
      );
      expect(called.ok).toBe(false);
    }
  });
}
