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
    const holder = hostOf({ ...old.host("holder"), authorities }, 0);
    const first = hostOf({ ...old.host("first"), authorities }, 1);
    const second = hostOf({ ...young.host("second"), authorities }, 2);
    await holder.host.listen();
    for (const { host } of [first, second]) await host.transport.register(host.region);
    return { holder, first, second, young: young.authority.certificate };
  };

  test("removing an authority ends the connections of its certificates", async () => {
    const { holder, first, second, young } = await three();
    await using holds = holder.host;
    await using firstAsks = first.host;
    await using secondAsks = second.host;
    const places = placesFor([holds.server.put(1, 10_000)]);
    const [out, stays] = [
      await dial(firstAsks, holds.endpoint, "holder"),
      await dial(secondAsks, holds.endpoint, "holder"),
    ];
    for (const connection of [out, stays])
      expect((await pullPlaces(connection, places)).fault).toBeNull();
    await holds.transport.reload();
    expect([out.fault, stays.fault, holds.transport.inboundConnections]).toEqual([null, null, 2]);
    holder.trust.change({ ...holder.trust.credentials, authorities: young });
    await holds.transport.reload();
    expect(await out.ended).toMatchObject({ kind: "refused" });
    await waitFor(() => holds.transport.inboundConnections === 1);
    expect((await pullPlaces(stays, places)).fault).toBeNull();
    expect(holds.log.some(({ fields }) => fields.peer === "first")).toBe(true);
    // The dialling side also checks the expiry.
    second.trust.change({ ...second.trust.credentials, authorities: young });
    await secondAsks.transport.reload();
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
    for (const isHolder of [true, false]) {
      await using holds = (isHolder ? short : lasting)("holder", 0);
      await using asks = (isHolder ? lasting : short)("asker", 1);
      await holds.listen();
      await asks.transport.register(asks.region);
      await using connection = await dial(asks, holds.endpoint, "holder");
      expect((await connection.call({ op: "find", names: [] }, { deadlineMs: 5_000 })).ok).toBe(
        true,
      );
      await waitFor(() => connection.fault !== null, 6_000);
      expect(connection.fault).toMatchObject({ kind: "refused" });
      await waitFor(() => holds.transport.inboundConnections === 0);
      // A resumed connection learns of it with its first request.
      const { asked } = holds.server;
      const again = await tryDial(asks, holds.endpoint, "holder");
      if (again.ok) {
        await using late = again.connection;
        const places = placesFor([holds.server.put(1, 1_000)]);
        expect((await pullPlaces(late, places)).fault).toMatchObject({ kind: "refused" });
      }
      expect(holds.server.asked).toBe(asked);
    }
  });
}
