/** The far guest's process: does what the tests in the near one order, a line of JSON at a time. */
import { systemClock } from "../../../src/core/index.ts";
import type { Credentials, Endpoint } from "../../../src/peers/index.ts";
import { createTrust } from "../../../src/peers/trust/index.ts";
import {
  type ContractLimits,
  dial,
  Host,
  placesFor,
  pullPlaces,
  regionOf,
  type TransportMaker,
} from "../../peers/transports/contract-kit.ts";
import { blockOf } from "../../support/region-server.ts";
import { STORE_ORDERS } from "./far-store.ts";
import { FAR, MAKER, ORDERS_PORT } from "./places.ts";
import { lose, setRail } from "./shell.ts";

export interface BlockOrder {
  readonly seed: number;
  readonly bytes: number;
}

let host: Host | null = null;

function present(): Host {
  if (host === null) throw new Error("no host was started");
  return host;
}

/** How blocks are served, by name: rules cannot travel. */
const RULES = {
  all: () => present().server.onServe,
  /** Blocks three and four of a pull have other answers. */
  mixed: () => {
    present().server.onServe = (served) => {
      const { index } = served;
      if (index === 2) return { index, kind: "busy", retryAfterMs: 125 };
      return index === 3 ? { index, kind: "refused", why: "not in this namespace" } : served;
    };
  },
  /** What was given back is written over at once: it must have been read by then. */
  wipe: () => {
    const { server, region } = present();
    server.onServe = (served) => {
      if (served.kind !== "block") return served;
      const release = () => {
        served.release();
        region.fill(served.offset, served.header.bytes, 99n);
      };
      return { ...served, release };
    };
  },
  /** The third block of a pull never comes. */
  hold: () => {
    present().server.onServe = (served, _, signal) => {
      if (served.index < 2) return served;
      return new Promise((resolve) => signal.addEventListener("abort", () => resolve(undefined)));
    };
  },
} as const;

export const ORDERS = {
  ...STORE_ORDERS,
  async start(order: { credentials: Credentials; limits: ContractLimits }): Promise<Endpoint> {
    const { maker } = (await import(MAKER)) as { maker: TransportMaker };
    const trust = createTrust(order.credentials, systemClock);
    host = new Host(maker, trust, regionOf(0), order.limits);
    await host.transport.register(host.region);
    return await host.transport.listen({ host: FAR.net, port: 0 }, host.server);
  },
  async put({ blocks }: { blocks: readonly BlockOrder[] }): Promise<void> {
    for (const { seed, bytes } of blocks) present().server.put(seed, bytes);
  },
  async rule({ name }: { name: keyof typeof RULES }): Promise<void> {
    RULES[name]();
  },
  async counts() {
    const { server, transport } = present();
    const { lent, lentMost, released, releasedTwice, serving, asked } = server;
    const { inboundConnections, unsupported } = transport;
    return {
      lent,
      lentMost,
      released,
      releasedTwice,
      serving,
      asked,
      inboundConnections,
      unsupported,
    };
  },
  /** Asks the near host for blocks; how many came and are right. */
  async pull(order: { to: Endpoint; worker: string; seeds: readonly number[]; bytes: number }) {
    const { region } = present();
    await using link = await dial(present(), order.to, order.worker);
    const items = order.seeds.map((seed) => {
      return { ...blockOf(seed), bytesMax: order.bytes, generation: 0n };
    });
    const places = placesFor(items);
    const { fault, results } = await pullPlaces(link, places);
    const right = places.filter(({ offset }, index) => {
      if (results[index]?.kind !== "came") return false;
      return region.firstWrong(offset, order.bytes, BigInt(order.seeds[index]!)) === null;
    });
    return { fault: fault?.why ?? null, right: right.length };
  },
  async lose({ percent }: { percent: number }): Promise<void> {
    await lose(percent);
  },
  async rail({ state }: { state: "up" | "down" }): Promise<void> {
    await setRail(state, FAR.rail);
  },
  async stop(): Promise<void> {
    await host?.[Symbol.asyncDispose]();
    host = null;
  },
  /** As a crash would end it: nothing is closed, no word is said. */
  async die(): Promise<void> {
    process.kill(process.pid, "SIGKILL");
  },
} as const;

export type Orders = typeof ORDERS;

async function obey(text: string): Promise<string> {
  const { id, name, order } = JSON.parse(text);
  const run = ORDERS[name as keyof Orders] as (order: unknown) => Promise<unknown>;
  try {
    return JSON.stringify({ id, answer: (await run(order)) ?? null });
  } catch (thrown) {
    const why = thrown instanceof Error ? (thrown.stack ?? thrown.message) : String(thrown);
    return JSON.stringify({ id, why });
  }
}

if (import.meta.main) {
  Bun.listen<{ rest: string }>({
    hostname: FAR.net,
    port: ORDERS_PORT,
    socket: {
      open(socket) {
        socket.data = { rest: "" };
      },
      data(socket, bytes) {
        const lines = (socket.data.rest + bytes.toString()).split("\n");
        socket.data.rest = lines.pop()!;
        for (const line of lines) {
          void obey(line).then((answer) => void socket.write(`${answer}\n`));
        }
      },
    },
  });
}
