import { expect, test } from "bun:test";
import { join } from "node:path";
import { systemClock } from "../../../src/core/index.ts";
import {
  type Endpoint,
  measured,
  type PeerIdentity,
  type PeerServer,
  type Served,
  type Transport,
  type TransportObserver,
} from "../../../src/peers/index.ts";
import { describeNative } from "../../support/index.ts";
import { blockOf } from "../../support/region-server.ts";
import { transportContract } from "./contract.ts";
import { Host, LIMITS, Pair, placesFor, pullPlaces, regionOf, tryDial } from "./contract-kit.ts";
import { maker } from "./quic-maker.ts";

// A measured transport keeps the promises of a transport.
await transportContract(join(import.meta.dir, "measured-maker.ts"));

test("a pull that is cancelled while it waits for a block ends at once", async () => {
  let measuredServer: PeerServer | null = null;
  const inner = {
    name: "stream",
    listen: async (endpoint: Endpoint, server: PeerServer) => {
      measuredServer = server;
      return endpoint;
    },
  } as unknown as Transport;
  const over = Promise.withResolvers<IteratorResult<Served>>();
  const end = (): IteratorResult<Served> => ({ done: true, value: undefined });
  const server: PeerServer = {
    call: async () => ({ op: "refused", why: "" }),
    serve: () => ({
      [Symbol.asyncIterator]: () => ({
        next: () => over.promise,
        return: async () => {
          over.resolve(end());
          return end();
        },
      }),
    }),
  };
  const observer = { lent: () => undefined } as unknown as TransportObserver;
  await measured(inner, systemClock, observer).listen({ host: "", port: 0 }, server);
  const peer = {} as PeerIdentity;
  const pull = {} as Parameters<PeerServer["serve"]>[1];
  const never = new AbortController().signal;
  const serving = measuredServer!.serve(peer, pull, never)[Symbol.asyncIterator]();
  const waiting = serving.next();
  expect(await serving.return!()).toEqual(end());
  expect(await waiting).toEqual(end());
});

describeNative("a measured transport", () => {
  test("reports each dial, call, pull, item and slot reference when it is over", async () => {
    await using pair = await Pair.make(maker);
    const told: unknown[][] = [];
    const note =
      (what: string) =>
      (...args: (string | number)[]) => {
        const seconds = args.pop();
        expect(seconds).toBeGreaterThanOrEqual(0);
        told.push([what, ...args]);
      };
    const observer = Object.fromEntries(
      ["dialled", "called", "pulled", "answered", "lent"].map((what) => [what, note(what)]),
    ) as unknown as TransportObserver;
    const make: typeof maker.make = (parts) => measured(maker.make(parts), systemClock, observer);
    const trust = pair.cluster.trust("third");
    await using host = new Host({ name: "measured", make }, trust, regionOf(2), LIMITS);
    await host.listen();
    const item = pair.serverHost.server.put(1, 70_000);
    const dialled = await tryDial(host, pair.serverHost.endpoint, "server");
    if (!dialled.ok) throw new Error(dialled.fault.why);
    await using connection = dialled.connection;
    await connection.call({ op: "find", names: [] }, { deadlineMs: 5_000 });
    const items = [item, { ...blockOf(2), bytesMax: 10, generation: 0n }];
    const places = placesFor(items);
    await pullPlaces(connection, places);
    await pullPlaces(connection, places, { signal: AbortSignal.abort() });
    await tryDial(host, pair.serverHost.endpoint, "nobody");
    expect(told).toEqual([
      ["dialled", "quic", "ok"],
      ["called", "quic", "find", "ok"],
      ["answered", "quic", "came", 70_000],
      ["answered", "quic", "absent", 0],
      ["pulled", "quic", "ok"],
      ["pulled", "quic", "aborted"],
      ["dialled", "quic", "refused"],
    ]);
    told.length = 0;
    host.server.put(1, 70_000);
    const back = await tryDial(pair.client, host.endpoint, "third");
    if (!back.ok) throw new Error(back.fault.why);
    await using backLink = back.connection;
    expect((await pullPlaces(backLink, placesFor([item]))).fault).toBeNull();
    expect(told).toEqual([["lent", "quic", 70_000]]);
  });
});
