import { expect, test } from "bun:test";
import { X509Certificate } from "node:crypto";
import { QuicTransport, type Trust } from "../../../src/peers/index.ts";
import { makeCluster } from "../../support/cluster.ts";
import { describeNative, waitFor } from "../../support/index.ts";
import {
  dial,
  Host,
  LIMITS,
  placesFor,
  pullPlaces,
  regionOf,
  type TransportMaker,
  tryDial,
} from "./contract-kit.ts";

function makerWith(limits: { readonly reloadMs: number }): TransportMaker {
  const make: TransportMaker["make"] = (parts) => new QuicTransport({ ...parts, limits });
  return { name: "quic", make };
}

describeNative("new certificates by QUIC", () => {
  test("apply after open connections and their requests have ended, or after a limit", async () => {
    const cluster = makeCluster();
    const maker = makerWith({ reloadMs: 300 });
    const trust = cluster.trust("server");
    await using serverHost = new Host(maker, trust, regionOf(0), LIMITS);
    await serverHost.listen();
    await using client = new Host(maker, cluster.trust("client"), regionOf(1), LIMITS);
    await client.transport.register(client.region);
    const { server } = serverHost;
    const items = [server.put(1, 10_000), server.put(2, 10_000)];
    const places = placesFor(items);
    const gate = Promise.withResolvers<void>();
    server.onServe = async (served) => {
      if (served.index === 1) await gate.promise;
      return served;
    };
    await using connection = await dial(client, serverHost.endpoint, "server");
    const before = connection.identity.fingerprint;
    expect((await pullPlaces(connection, places.slice(0, 1))).fault).toBeNull();
    trust.change(cluster.host("server"));
    await serverHost.transport.reload();
    expect(connection.fault).toBeNull();
    const pulled = pullPlaces(connection, places);
    await waitFor(() => server.released === 2);
    // After the limit no new request is accepted, and the connection ends with its last answer.
    const find = { op: "find", names: [] } as const;
    await waitFor(async () => !(await connection.call(find, { deadlineMs: 5_000 })).ok);
    gate.resolve();
    expect((await pulled).fault).toBeNull();
    expect((await connection.ended).kind).toBe("broken");
    await using after = await dial(client, serverHost.endpoint, "server");
    // A ticket is bound to the previous certificate until the handshake is complete.
    expect((await pullPlaces(after, places)).fault).toBeNull();
    expect(after.identity.fingerprint).not.toBe(before);
  });

  test("of another authority are accepted, and those of the previous one no longer", async () => {
    const [old, young] = [makeCluster(), makeCluster()];
    const maker = makerWith({ reloadMs: 300 });
    const trust = old.trust("server");
    await using serverHost = new Host(maker, trust, regionOf(0), LIMITS);
    await serverHost.listen();
    const asked = async (cluster: typeof old) => {
      const client = new Host(maker, cluster.trust("client"), regionOf(1), LIMITS);
      await using _ = client;
      await client.transport.register(client.region);
      const dialled = await tryDial(client, serverHost.endpoint, "server");
      if (!dialled.ok) return false;
      await using connection = dialled.connection;
      return (await connection.call({ op: "find", names: [] }, { deadlineMs: 5_000 })).ok;
    };
    expect([await asked(old), await asked(young)]).toEqual([true, false]);
    trust.change(young.host("server"));
    await serverHost.transport.reload();
    await waitFor(async () => await asked(young));
    expect(await asked(old)).toBe(false);
  });

  test("that arrive during a reload are loaded after it", async () => {
    const cluster = makeCluster();
    const maker = makerWith({ reloadMs: 300 });
    const own = cluster.trust("server");
    let onRead = () => {};
    const trust: Trust = {
      get credentials() {
        onRead();
        return own.credentials;
      },
      authorize: (der, dialled) => own.authorize(der, dialled),
      onChange: (listener) => own.onChange(listener),
    };
    await using serverHost = new Host(maker, trust, regionOf(0), LIMITS);
    await serverHost.listen();
    await using client = new Host(maker, cluster.trust("client"), regionOf(1), LIMITS);
    await client.transport.register(client.region);
    const last = cluster.host("server");
    let reads = 0;
    onRead = () => {
      // The certificates are tested at another port, then bound at the real one: that takes a
      // while.
      if (++reads !== 2) return;
      queueMicrotask(() => {
        own.change(last);
        void serverHost.transport.reload();
      });
    };
    own.change(cluster.host("server"));
    await serverHost.transport.reload();
    // No connection has to end first.
    await waitFor(() => reads >= 4);
    await using connection = await waitFor(async () => {
      const dialled = await tryDial(client, serverHost.endpoint, "server");
      return dialled.ok ? dialled.connection : null;
    });
    const { fingerprint256 } = new X509Certificate(last.certificates);
    expect(connection.identity.fingerprint).toBe(fingerprint256.replaceAll(":", "").toLowerCase());
  });

  test("that cannot be used leave the previous ones in use", async () => {
    const cluster = makeCluster();
    const trust = cluster.trust("server");
    await using serverHost = new Host(makerWith({ reloadMs: 300 }), trust, regionOf(0), LIMITS);
    await serverHost.listen();
    const own = cluster.trust("client");
    await using client = new Host(makerWith({ reloadMs: 300 }), own, regionOf(1), LIMITS);
    await client.transport.register(client.region);
    // The key belongs to another certificate.
    trust.change({ ...trust.credentials, key: cluster.host("server").key });
    await serverHost.transport.reload();
    expect(serverHost.log.map(({ level }) => level)).toEqual(["error"]);
    await using connection = await dial(client, serverHost.endpoint, "server");
    expect((await connection.call({ op: "find", names: [] }, { deadlineMs: 5_000 })).ok).toBe(true);
  });
});
