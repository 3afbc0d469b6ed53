import { systemClock } from "../../../src/core/index.ts";
import type { Credentials, Endpoint, TransportName } from "../../../src/peers/index.ts";
import { createTrust } from "../../../src/peers/trust/index.ts";
import { RealHost } from "../../peers/hosts/real-host.ts";
import type { TransportMaker } from "../../peers/transports/contract-kit.ts";
import type { BlockSpec } from "../../store/names.ts";
import { PATIENT } from "./patient.ts";
import { MAKER, type Place } from "./places.ts";

/** The rail first, and what blocks go by when it is down. */
export const WAYS = ["rdma", "stream"] as const satisfies readonly TransportName[];

const ARENA_BYTES = 64 * 2 ** 20;

/** A whole host with a store, which offers its blocks on both networks. */
export async function storeAt(place: Place, credentials: Credentials): Promise<RealHost> {
  const { maker } = (await import(MAKER)) as { maker: TransportMaker };
  const host = new RealHost({
    ...{ worker: credentials.worker, trust: createTrust(credentials, systemClock) },
    ...{ arenaBytes: ARENA_BYTES, transports: WAYS, listenAt: place.net },
    makers: { rdma: { ...maker, make: (parts) => maker.make({ ...parts, limits: PATIENT }) } },
    // Emulated processors are slow, and the host may have other work.
    // In this order always: by speed, which says nothing here, the stream may be the better one.
    limits: { dialMs: 15_000, progressMs: 5_000, transports: WAYS },
  });
  return await host.listen();
}

let store: RealHost | null = null;

function present(): RealHost {
  if (store === null) throw new Error("no store was opened");
  return store;
}

/** What the far guest does with a store of its own. */
export const STORE_ORDERS = {
  async openStore(order: { place: Place; credentials: Credentials }): Promise<{
    endpoints: Partial<Record<TransportName, Endpoint>>;
  }> {
    store = await storeAt(order.place, order.credentials);
    return { endpoints: store.endpoints };
  },
  async store({ blocks }: { blocks: readonly BlockSpec[] }): Promise<readonly string[]> {
    const engine = present().engine();
    const outcomes = await engine.put(...blocks);
    engine.die();
    return outcomes;
  },
  async served(): Promise<number> {
    return present().serving.stats.blocks;
  },
  async leftovers(): Promise<readonly string[]> {
    return present().leftovers();
  },
  async closeStore(): Promise<void> {
    await store?.[Symbol.asyncDispose]();
    store = null;
  },
} as const;
