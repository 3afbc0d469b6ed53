import { expect, test } from "bun:test";
import { waitFor } from "../../support/index.ts";
import { Child } from "./child-process.ts";
import {
  chalk,
  dial,
  MIB,
  Pair,
  placesFor,
  pullPlaces,
  type TransportMaker,
  untouchedPlace,
} from "./contract-kit.ts";

/** Peers that are killed in the middle of a pull, and the state left on this side. */
export function vanishingContract(maker: TransportMaker, path: string): void {
  test("a server that is killed in the middle of a pull is a fault", async () => {
    await using pair = await Pair.make(maker, { progressMs: 700 });
    await using child = new Child(path, pair, "server", 0);
    const port = Number(await child.line());
    await using connection = await dial(pair.client, { host: "127.0.0.1", port }, "far-server");
    const { server } = pair.serverHost;
    const items = [1, 2, 3].map((seed) => server.put(seed, 16 * MIB));
    const places = placesFor(items);
    chalk(pair.client.region, places);
    const { fault, results } = await pullPlaces(connection, places, {
      onBytes: () => child.kill(),
    });
    expect(["broken", "stalled", "unreachable"]).toContain(fault!.kind);
    expect(results[2]).toBeUndefined();
    expect(untouchedPlace(pair.client.region, places[2]!)).toBe(true);
    const fate = await Promise.race([connection.ended, Bun.sleep(20_000)]);
    expect(["broken", "stalled", "unreachable"]).toContain(fate!.kind);
    const late = await pullPlaces(connection, places);
    expect(late.fault).not.toBeNull();
  });

  test("an client that is killed: what it was lent comes back, and its link goes", async () => {
    await using pair = await Pair.make(maker, { progressMs: 700 });
    const { server } = pair.serverHost;
    for (let seed = 1; seed <= 3; seed++) server.put(seed, 16 * MIB);
    await using child = new Child(path, pair, "client", pair.serverHost.endpoint.port);
    expect(await child.line()).toBe("dialled");
    await waitFor(() => server.lent > 0, 10_000);
    child.kill();
    await waitFor(() => server.lent === 0 && server.serving === 0, 20_000);
    await waitFor(() => pair.serverHost.transport.inboundConnections === 0, 20_000);
  });

  test("an client that stands still is given up, and others are served meanwhile", async () => {
    await using pair = await Pair.make(maker, { progressMs: 700 });
    const { server } = pair.serverHost;
    for (let seed = 1; seed <= 3; seed++) server.put(seed, 16 * MIB);
    await using child = new Child(path, pair, "client", pair.serverHost.endpoint.port);
    expect(await child.line()).toBe("dialled");
    await waitFor(() => server.lent > 0, 10_000);
    child.signal("SIGSTOP");
    await using connection = await pair.connection();
    const item = { ...server.put(4, 100_000) };
    const places = placesFor([item]);
    for (let i = 0; i < 5; i++) expect((await pullPlaces(connection, places)).fault).toBeNull();
    await waitFor(() => server.lent === 0 && server.serving === 0, 20_000);
    child.signal("SIGCONT");
  });
}
