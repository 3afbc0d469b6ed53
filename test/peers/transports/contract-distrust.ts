import { expect, test } from "bun:test";
import { systemClock } from "../../../src/core/index.ts";
import type { Credentials } from "../../../src/peers/index.ts";
import { createTrust, issueHost } from "../../../src/peers/trust/index.ts";
import { makeCluster } from "../../support/cluster.ts";
import { waitFor } from "../../support/index.ts";
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

/** Connections whose peer was accepted when they were made, and is not any more. */
export function distrustContract(maker: TransportMaker): void {
  const hostOf = (credentials: Credentials, index: number) => {
    const trust = createTrust(credentials, systemClock);
    return { trust, host: new Host(maker, trust, regionOf(index), LIMITS) };
  };

  /** A client of each authority, and a server of the first; all accept both. */
  const three = async () => {
    const [old, young] = [makeCluster(), makeCluster()];
    const authorities = old.authority.certificate + young.authority.certificate;
    const serverHost = hostOf({ ...old.host("server"), authorities }, 0);
    const first = hostOf({ ...old.host("first"), authorities }, 1);
    const second = hostOf({ ...young.host("second"), authorities }, 2);
    await serverHost.host.listen();
    for (const { host } of [first, second]) await host.transport.register(host.region);
    return { serverHost, first, second, young: young.authority.certificate };
  };

  test("removing an authority ends the connections of its certificates", async () => {
    const { serverHost, first, second, young } = await three();
    await using holds = serverHost.host;
    await using firstClient = first.host;
    await using secondClient = second.host;
    const places = placesFor([holds.server.put(1, 10_000)]);
    const [out, stays] = [
      await dial(firstClient, holds.endpoint, "server"),
      await dial(secondClient, holds.endpoint, "server"),
    ];
    for (const connection of [out, stays])
      expect((await pullPlaces(connection, places)).fault).toBeNull();
    await holds.transport.reload();
    expect([out.fault, stays.fault, holds.transport.inboundConnections]).toEqual([null, null, 2]);
    serverHost.trust.change({ ...serverHost.trust.credentials, authorities: young });
    await holds.transport.reload();
    expect(await out.ended).toMatchObject({ kind: "refused" });
    await waitFor(() => holds.transport.inboundConnections === 1);
    expect((await pullPlaces(stays, places)).fault).toBeNull();
    expect(holds.log.some(({ fields }) => fields.peer === "first")).toBe(true);
    // The dialling side also checks the expiry.
    second.trust.change({ ...second.trust.credentials, authorities: young });
    await secondClient.transport.reload();
    expect(await stays.ended).toMatchObject({ kind: "refused" });
    await waitFor(() => holds.transport.inboundConnections === 0);
  });

  test("a connection ends when the certificate of either side expires", async () => {
    const cluster = makeCluster();
    const { authority } = cluster;
    const lasting = (worker: string, index: number) => hostOf(cluster.host(worker), index).host;
    const short = (worker: string, index: number) => {
      const good = cluster.host(worker);
      const nowMs = systemClock.wallMs();
      const validity = { notBeforeMs: nowMs - 60_000, notAfterMs: nowMs + 2_500 };
      const issued = issueHost({ authority, name: good, key: null, validity });
      const { certificate: certificates, key } = issued;
      return hostOf({ ...good, certificates, key }, index).host;
    };
    for (const isServer of [true, false]) {
      await using holds = (isServer ? short : lasting)("server", 0);
      await using asks = (isServer ? lasting : short)("client", 1);
      await holds.listen();
      await asks.transport.register(asks.region);
      await using connection = await dial(asks, holds.endpoint, "server");
      expect((await connection.call({ op: "find", names: [] }, { deadlineMs: 5_000 })).ok).toBe(
        true,
      );
      await waitFor(() => connection.fault !== null, 6_000);
      expect(connection.fault).toMatchObject({ kind: "refused" });
      await waitFor(() => holds.transport.inboundConnections === 0);
      // A resumed connection learns of it with its first request.
      const { asked } = holds.server;
      const again = await tryDial(asks, holds.endpoint, "server");
      if (again.ok) {
        await using late = again.connection;
        const places = placesFor([holds.server.put(1, 1_000)]);
        expect((await pullPlaces(late, places)).fault).toMatchObject({ kind: "refused" });
      }
      expect(holds.server.asked).toBe(asked);
    }
  });
}
