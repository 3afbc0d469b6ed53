import { expect, test } from "bun:test";
import { describeNative, waitFor } from "../../support/index.ts";
import { placesFor, pullPlaces } from "./contract-kit.ts";
import { pullBody, StreamPair } from "./stream-kit.ts";

describeNative("pulls that a stream transport serves", () => {
  test("a block whose header cannot be encoded ends its pull at once", async () => {
    await using pair = await StreamPair.make();
    const { server } = pair.serverHost;
    const items = [server.put(1, 1_000), server.put(2, 1_000)];
    server.onServe = (served) => {
      if (served.kind !== "block" || served.index === 0) return served;
      return { ...served, header: { ...served.header, model: "m".repeat(1_000_000) } };
    };
    await using connection = await pair.connection();
    const { fault, results } = await pullPlaces(connection, placesFor(items));
    expect(fault).toMatchObject({ kind: "broken" });
    expect(fault?.why).toContain("could not be served");
    expect(results.map((result) => result?.kind)).toEqual(["came", undefined]);
    await waitFor(() => server.lent === 0 && server.serving === 0);
    expect(connection.fault).toBeNull();
  });

  test("a transfer number in use ends the client's connection, with a reason", async () => {
    await using pair = await StreamPair.make();
    const { server } = pair.serverHost;
    const items = [server.put(1, 1_000), server.put(2, 1_000)];
    await using raw = await pair.greeted();
    const gate = Promise.withResolvers<void>();
    pair.network.onSlice = () => gate.promise;
    for (const [id, item] of items.entries()) {
      raw.say({ kind: "pull", id, transfer: 5, announced: 1, body: pullBody([item]) });
    }
    const bye = await raw.hear("bye");
    expect(bye).toMatchObject({ fault: "protocol" });
    expect(bye.why).toContain("transfer number");
    gate.resolve();
    await waitFor(() => server.lent === 0 && pair.serverHost.transport.inboundConnections === 0);
    expect(pair.serverHost.log.some(({ level }) => level === "error")).toBe(false);
  });
});
