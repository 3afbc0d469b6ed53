import { expect, test } from "bun:test";
import type { WorkerId } from "../../../src/core/index.ts";
import type { Credentials, Trust } from "../../../src/peers/index.ts";
import { issueHost } from "../../../src/peers/trust/index.ts";
import { makeCluster, validFor } from "../../support/cluster.ts";
import { waitFor } from "../../support/index.ts";
import {
  dial,
  Host,
  LIMITS,
  Pair,
  placesFor,
  pullPlaces,
  regionOf,
  type TransportMaker,
  tryDial,
} from "./contract-kit.ts";

/** Authorization of peers. */
export function identityContract(maker: TransportMaker): void {
  /** A host that trusts the pair's cluster, whatever certificate it presents. */
  const impostor = async (pair: Pair, shown: Pick<Credentials, "certificates" | "key">) => {
    const { credentials, authorize, onChange } = pair.cluster.trust("client");
    const trust: Trust = { credentials: { ...credentials, ...shown }, authorize, onChange };
    const host = new Host(maker, trust, regionOf(2), LIMITS);
    await host.transport.register(host.region);
    return host;
  };

  /** No attempt succeeds, and the server sees no request. */
  const isRefused = async (pair: Pair, host: Host) => {
    const dialled = await tryDial(host, pair.serverHost.endpoint, "server");
    if (dialled.ok) {
      const { connection } = dialled;
      const item = pair.serverHost.server.put(1, 1_000);
      const { fault } = await pullPlaces(connection, placesFor([item]));
      expect(fault).not.toBeNull();
      const called = await connection.call({ op: "find", names: [] }, { deadlineMs: 1_000 });
      expect(called.ok).toBe(false);
      await connection[Symbol.asyncDispose]();
    }
    expect(pair.serverHost.server.asked).toBe(0);
    await waitFor(() => pair.serverHost.transport.inboundConnections === 0);
  };

  test("a stranger's certificate gets nothing parsed", async () => {
    await using pair = await Pair.make(maker);
    await using host = await impostor(pair, makeCluster().host("client"));
    await isRefused(pair, host);
    expect(JSON.stringify(pair.serverHost.log)).not.toContain("PRIVATE");
  });

  test("a certificate of our authority for another cluster gets nothing parsed", async () => {
    await using pair = await Pair.make(maker);
    const { authority } = pair.cluster;
    const name = { cluster: "elsewhere", worker: "client" as WorkerId };
    const issued = issueHost({ authority, name, key: null, validity: validFor(1) });
    await using host = await impostor(pair, { certificates: issued.certificate, key: issued.key });
    await isRefused(pair, host);
    await waitFor(() => pair.serverHost.log.some(({ level }) => level === "warn"));
  });

  test("a peer other than the dialled worker gets no request", async () => {
    await using pair = await Pair.make(maker);
    const dialled = await tryDial(pair.client, pair.serverHost.endpoint, "somebody-else");
    expect(dialled).toMatchObject({ ok: false, fault: { kind: "refused" } });
    const foreign = new Host(maker, makeCluster().trust("server"), regionOf(2), LIMITS);
    await using _ = foreign;
    await foreign.listen();
    const stranger = await tryDial(pair.client, foreign.endpoint, "server");
    expect(stranger).toMatchObject({ ok: false, fault: { kind: "refused" } });
    expect([pair.serverHost.server.asked, foreign.server.asked]).toEqual([0, 0]);
  });

  test("new certificates apply to new connections, and open ones continue", async () => {
    await using pair = await Pair.make(maker);
    const { cluster } = pair;
    const renewed = ["client", "server"].map((name, index) => {
      const trust = cluster.trust(name);
      return { trust, host: new Host(maker, trust, regionOf(index), LIMITS) };
    });
    const [client, serverHost] = renewed.map(({ host }) => host) as [Host, Host];
    await using _asker = client;
    await using _server = serverHost;
    await serverHost.listen();
    await client.transport.register(client.region);
    const item = serverHost.server.put(1, 10_000);
    const places = placesFor([item]);
    await using before = await dial(client, serverHost.endpoint, "server");
    expect((await pullPlaces(before, places)).fault).toBeNull();
    for (const { trust, host } of renewed) {
      trust.change(cluster.host(trust.credentials.worker));
      await host.transport.reload();
    }
    expect((await pullPlaces(before, places)).fault).toBeNull();
    await before[Symbol.asyncDispose]();
    // A listener may need time to present them.
    await waitFor(async () => {
      await using after = await dial(client, serverHost.endpoint, "server");
      expect((await pullPlaces(after, places)).fault).toBeNull();
      expect(after.identity.worker).toBe(before.identity.worker);
      return after.identity.fingerprint !== before.identity.fingerprint;
    });
  });
}
