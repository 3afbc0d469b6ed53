import { type Random, randomBelow, seededRandom } from "../../src/core/index.ts";
import type { FetchLimits, TransportName } from "../../src/peers/index.ts";
import { RealHost } from "../peers/hosts/real-host.ts";
import { maker as rdma } from "../peers/transports/rdma-maker.ts";
import type { StoreEngine } from "../store/store-engine.ts";
import { makeCluster } from "../support/cluster.ts";
import { waitFor } from "../support/wait.ts";
import { LyingServer } from "./lies.ts";

const MIB = 2 ** 20;
export const BLOCK_BYTES = 16_000;
const BLOCKS = 1_024;
const HOLDER_BYTES = 40 * MIB;
const SCRATCH_BLOCKS = 64;
const ASKER_BYTES = 16 * MIB;
/** Maximum time until hosts notice that a peer is gone. */
const QUIET_MS = 15_000;

/** Short, so that a run has many failures and recoveries. */
export const LIMITS: Partial<FetchLimits> = {
  bytesMax: 4 * MIB,
  peerBytesMax: 2 * MIB,
  namespaceBytesMax: 4 * MIB,
  itemsMax: 8,
  progressMs: 250,
  dialMs: 1_000,
  cooldownMs: 20,
  cooldownMaxMs: 60,
  mirrorPulls: false,
};

/** Transports that need more than a certificate. */
export const MAKERS = { rdma };

export interface Holder {
  readonly host: RealHost;
  readonly server: LyingServer;
}

/** Three hosts with the same blocks and faults on request, and any number of clients. */
export class World implements AsyncDisposable {
  readonly transport: TransportName;
  readonly random: Random;
  readonly cluster = makeCluster();
  readonly holders: Holder[] = [];
  readonly names: readonly string[] = Array.from({ length: BLOCKS }, (_, i) => `block ${i}`);
  #askers = 0;

  private constructor(transport: TransportName, seed: number) {
    this.transport = transport;
    this.random = seededRandom(seed);
  }

  static async make(transport: TransportName, seed: number): Promise<World> {
    const world = new World(transport, seed);
    for (const worker of ["a", "b", "c"]) world.holders.push(await world.holder(worker));
    return world;
  }

  /** A host that has all blocks; `lanesPort` maps the port of its lanes that others use. */
  async holder(worker: string, lanesPort?: (real: number) => number): Promise<Holder> {
    let server: LyingServer | undefined;
    const host = await new RealHost({
      ...{ worker, trust: this.cluster.trust(worker), transports: [this.transport] },
      makers: MAKERS,
      ...{ arenaBytes: HOLDER_BYTES, ...(lanesPort === undefined ? {} : { lanesPort }) },
      wrap: (inner, region) => {
        server = new LyingServer(inner, region, this.random);
        return server;
      },
    }).listen();
    const engine = host.engine();
    await putAll(engine, this.names);
    const scratch = Array.from({ length: SCRATCH_BLOCKS }, (_, i) => `scratch ${i}`);
    await putAll(engine, scratch);
    server!.useScratch(engine.acquire(scratch).map(({ offset }) => offset));
    return { host, server: server! };
  }

  /** A host without blocks that knows these hosts; default: the holders. */
  async asker(
    limits: Partial<FetchLimits> = {},
    others: readonly Pick<RealHost, "worker" | "endpoints">[] = this.holders.map(
      ({ host }) => host,
    ),
  ): Promise<RealHost> {
    const worker = `asker-${this.#askers++}`;
    const asker = await new RealHost({
      ...{ worker, trust: this.cluster.trust(worker), transports: [this.transport] },
      ...{ arenaBytes: ASKER_BYTES, makers: MAKERS },
      limits: { ...LIMITS, transports: [this.transport], ...limits },
    }).listen();
    asker.meet(others);
    const workers = others.map((host) => host.worker);
    asker.holders = (key) => {
      const first = key[31]! % workers.length;
      return [...workers.slice(first), ...workers.slice(0, first)];
    };
    return asker;
  }

  /** Random distinct names. */
  some(max: number): string[] {
    const count = 1 + randomBelow(this.random, max);
    const chosen = new Set<string>();
    while (chosen.size < count) chosen.add(this.names[randomBelow(this.random, BLOCKS)]!);
    return [...chosen];
  }

  honest(): void {
    for (const { server } of this.holders) {
      server.lying = 0;
      server.hung = false;
    }
  }

  /** Anything the holders should not have any more; empty if all is well. */
  async leftovers(): Promise<string[]> {
    return (await Promise.all(this.holders.map(({ host }) => this.quiet(host)))).flat();
  }

  /** The same for one host. */
  async quiet(host: RealHost): Promise<string[]> {
    const look = () => {
      const connections = host.transports.reduce(
        (sum, { inboundConnections }) => sum + inboundConnections,
        0,
      );
      return connections === 0
        ? host.leftovers()
        : [`${host.worker}: ${connections} links from others`];
    };
    await waitFor(() => look().length === 0, QUIET_MS, "quiet", 0).catch(() => null);
    return look();
  }

  async [Symbol.asyncDispose](): Promise<void> {
    for (const { host } of this.holders) await host[Symbol.asyncDispose]();
  }
}

export async function putAll(engine: StoreEngine, names: readonly string[]): Promise<void> {
  for (let from = 0; from < names.length; from += 64) {
    const some = names.slice(from, from + 64).map((name) => ({ name, bytes: BLOCK_BYTES }));
    await engine.put(...some);
  }
}
