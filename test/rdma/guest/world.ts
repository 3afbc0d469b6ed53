import { expect } from "bun:test";
import type { Endpoint, PeerConnection, PullItem } from "../../../src/peers/index.ts";
import {
  type ContractLimits,
  dial,
  Host,
  regionOf,
  type TransportMaker,
} from "../../peers/transports/contract-kit.ts";
import { makeCluster, type TestCluster } from "../../support/cluster.ts";
import { waitFor } from "../../support/index.ts";
import { RegionServer } from "../../support/region-server.ts";
import { Far } from "./far.ts";
import { PATIENT } from "./patient.ts";
import { MAKER, NEAR } from "./places.ts";

const { maker } = (await import(MAKER)) as { maker: TransportMaker };

/** A host in each guest; the near one asks. */
export class World implements AsyncDisposable {
  readonly cluster: TestCluster;
  readonly far: Far;
  readonly near: Host;
  /** Where the far host listens. */
  readonly there: Endpoint;
  /** What the far host has, here to compare with. */
  readonly twin: RegionServer;
  #nearEndpoint: Endpoint | null = null;
  #isFarGone = false;

  private constructor(cluster: TestCluster, far: Far, there: Endpoint, limits: ContractLimits) {
    this.cluster = cluster;
    this.far = far;
    this.there = there;
    this.near = new Host(maker, cluster.trust("near"), regionOf(0), limits);
    this.twin = new RegionServer(regionOf(1));
  }

  static async make(more: Partial<ContractLimits> = {}): Promise<World> {
    const limits = { ...PATIENT, ...more };
    const cluster = makeCluster();
    const far = await new Far().connect();
    const there = await far.order("start", { credentials: cluster.host("far"), limits });
    const world = new World(cluster, far, there, limits);
    await world.near.transport.register(world.near.region);
    return world;
  }

  /** A host that the others have no reason to trust, in this guest. */
  static async strangerTo(world: World, cluster: TestCluster): Promise<Host> {
    const { region } = world.near;
    const stranger = new Host(maker, cluster.trust("near"), region, PATIENT);
    await stranger.transport.register(region);
    return stranger;
  }

  /** So that the far host can ask this one, too. */
  async listen(): Promise<Endpoint> {
    const { transport, server } = this.near;
    this.#nearEndpoint ??= await transport.listen({ host: NEAR.net, port: 0 }, server);
    return this.#nearEndpoint;
  }

  /** Blocks 1, 2, 3… of these sizes at the far host. */
  async put(sizes: readonly number[]): Promise<{ seeds: number[]; items: PullItem[] }> {
    const blocks = sizes.map((bytes, index) => ({ seed: index + 1, bytes }));
    await this.far.order("put", { blocks });
    const items = blocks.map(({ seed, bytes }) => this.twin.put(seed, bytes));
    return { seeds: blocks.map(({ seed }) => seed), items };
  }

  link(): Promise<PeerConnection> {
    return dial(this.near, this.there, "far");
  }

  /** Waits until nothing is lent or served at the far host any more. */
  async quiet(): Promise<void> {
    const isQuiet = async () => {
      const { lent, serving } = await this.far.order("counts");
      return lent === 0 && serving === 0;
    };
    await waitFor(isQuiet, 20_000, "that the far host has nothing lent");
    expect(await this.far.order("counts")).toMatchObject({ releasedTwice: 0 });
  }

  /** The far host dies without a word. */
  async kill(): Promise<void> {
    this.#isFarGone = true;
    await this.far.kill();
  }

  /** The far guest is off: nobody is there to be told of the end. */
  forsake(): void {
    this.#isFarGone = true;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.near[Symbol.asyncDispose]();
    const { lent, serving, releasedTwice } = this.near.server;
    expect({ lent, serving, releasedTwice }).toEqual({ lent: 0, serving: 0, releasedTwice: 0 });
    if (this.#isFarGone) return;
    await this.quiet();
    await this.far.order("stop");
    await this.far[Symbol.asyncDispose]();
  }
}
