import { expect, test } from "bun:test";
import type { FrameHeader } from "../../../src/peers/index.ts";
import {
  chalk,
  Pair,
  placesFor,
  pullPlaces,
  type TransportMaker,
  untouchedPlace,
} from "./contract-kit.ts";

const LIES: Readonly<Record<string, Partial<FrameHeader>>> = {
  "another digest": { digest: new Uint8Array(32).fill(9) },
  "another layer": { layer: 3 },
  "another namespace": { namespace: new Uint8Array(32).fill(9) },
  "more bytes than were asked for": { bytes: 400_001 },
};

/** A sender of invalid data. */
export function liesContract(maker: TransportMaker): void {
  for (const [what, lie] of Object.entries(LIES)) {
    test(`a frame with ${what} is refused before a byte of it is written`, async () => {
      await using pair = await Pair.make(maker);
      const { server } = pair.serverHost;
      const items = [1, 2].map((seed) => server.put(seed, 400_000));
      server.onServe = (served) => {
        if (served.kind !== "block" || served.index !== 0) return served;
        return { ...served, header: { ...served.header, ...lie } };
      };
      await using connection = await pair.connection();
      const places = placesFor(items);
      chalk(pair.client.region, places);
      const { fault, results } = await pullPlaces(connection, places);
      expect(fault?.kind).toBe("protocol");
      expect(results[0]).toBeUndefined();
      expect(untouchedPlace(pair.client.region, places[0]!)).toBe(true);
    });
  }

  test("the same block twice, or one that was not requested, is refused", async () => {
    for (const wrong of [0, 2]) {
      await using pair = await Pair.make(maker);
      const { server } = pair.serverHost;
      const items = [1, 2].map((seed) => server.put(seed, 10_000));
      server.onServe = (served) => (served.index === 1 ? { ...served, index: wrong } : served);
      await using connection = await pair.connection();
      const places = placesFor(items);
      const { fault, results } = await pullPlaces(connection, places);
      expect(fault).not.toBeNull();
      expect(results[1]).toBeUndefined();
    }
  });

  test("a server that leaves blocks out makes the pull fail", async () => {
    await using pair = await Pair.make(maker);
    const { server } = pair.serverHost;
    const items = [1, 2, 3].map((seed) => server.put(seed, 10_000));
    server.onServe = (served) => (served.index === 2 ? undefined : served);
    await using connection = await pair.connection();
    const outcome = await pullPlaces(connection, placesFor(items));
    expect(outcome.fault).not.toBeNull();
    expect(outcome.results.map((result) => result?.kind)).toEqual(["came", "came", undefined]);
  });

  test("a server that throws ends the request and nothing else", async () => {
    await using pair = await Pair.make(maker);
    const { server } = pair.serverHost;
    const item = server.put(1, 10_000);
    server.onServe = () => Promise.reject(new Error("a bug of ours"));
    server.onCall = () => Promise.reject(new Error("another one"));
    await using connection = await pair.connection();
    const places = placesFor([item]);
    expect((await pullPlaces(connection, places)).fault).not.toBeNull();
    const called = await connection.call({ op: "find", names: [] }, { deadlineMs: 5_000 });
    expect(called.ok && called.answer.op !== "refused").toBe(false);
    server.onServe = (served) => served;
    expect((await pullPlaces(connection, places)).fault).toBeNull();
  });
}
