import type { TLSSocket } from "node:tls";
import { systemClock } from "../../../src/core/index.ts";
import type { Rdma, Region } from "../../../src/native/index.ts";
import {
  type Credentials,
  type Endpoint,
  type PullItem,
  type RdmaLimits,
  RdmaTransport,
  type Trust,
} from "../../../src/peers/index.ts";
import { RDMA_CODEC, type RdmaControl } from "../../../src/peers/transports/rdma/index.ts";
import { encodeRequest } from "../../../src/peers/wire/index.ts";
import { NAMESPACE, RegionServer } from "../../support/region-server.ts";
import { type LogLine, regionOf } from "./contract-kit.ts";
import { HostPair } from "./host-pair.ts";
import { PlainFabric } from "./plain-rdma.ts";
import { connectRaw, RawLine, RawListener } from "./raw-line.ts";
import { LINK_SETTINGS } from "./rdma-kit.ts";

const SPOKEN = { protocol: "hearth-rdma/1", encode: RDMA_CODEC.encode, decode: RDMA_CODEC.decode };

export interface PlainSide {
  readonly limits?: Partial<RdmaLimits>;
  readonly rails?: number;
}

/** An RDMA transport over plain memory, with its server and log. */
export class PlainHost implements AsyncDisposable {
  readonly transport: RdmaTransport;
  readonly region: Region;
  readonly server: RegionServer;
  readonly log: LogLine[] = [];
  readonly rdma: Rdma;
  endpoint: Endpoint = { host: "127.0.0.1", port: 0 };

  constructor(fabric: PlainFabric, trust: Trust, region: Region, side: PlainSide) {
    this.region = region;
    this.server = new RegionServer(region);
    this.rdma = fabric.open(region);
    this.transport = new RdmaTransport({
      ...{ trust, clock: systemClock, settings: LINK_SETTINGS, rails: side.rails ?? 1 },
      log: (level, text, fields) => void this.log.push({ level, text, fields }),
      rdmaOf: () => this.rdma,
      limits: side.limits ?? {},
    });
  }

  async listen(): Promise<void> {
    await this.transport.register(this.region);
    this.endpoint = await this.transport.listen(this.endpoint, this.server);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.transport[Symbol.asyncDispose]();
    await this.rdma[Symbol.asyncDispose]();
  }
}

/** One end of an RDMA control channel that sends arbitrary messages. */
export type RawRdma = RawLine<RdmaControl>;

/** A server and a client of one cluster over plain memory. */
export class PlainPair extends HostPair<PlainHost> {
  readonly fabric = new PlainFabric();
  readonly serverHost: PlainHost;
  readonly client: PlainHost;

  private constructor(serverHost: PlainSide, client: PlainSide) {
    super();
    const { cluster, fabric } = this;
    this.serverHost = new PlainHost(fabric, cluster.trust("server"), regionOf(0), serverHost);
    this.client = new PlainHost(fabric, cluster.trust("client"), regionOf(1), client);
  }

  static async make(serverHost: PlainSide = {}, client: PlainSide = {}): Promise<PlainPair> {
    const pair = new PlainPair(serverHost, client);
    await pair.serverHost.listen();
    await pair.client.transport.register(pair.client.region);
    return pair;
  }

  async raw(): Promise<RawRdma> {
    const credentials: Credentials = this.cluster.host("raw-client");
    const socket = await connectRaw(this.serverHost.endpoint, credentials, SPOKEN.protocol);
    return new RawLine<RdmaControl>(socket, SPOKEN);
  }

  /** A raw client that has joined, and its queue pair. */
  async joined() {
    const raw = await this.raw();
    const [port] = this.client.rdma.ports();
    raw.say({ kind: "hello", version: 1, wanted: 1, rails: [port!] });
    const { pairs } = await raw.hear("welcome");
    const pair = this.client.rdma.link(0, LINK_SETTINGS);
    pair.connect(pairs[0]!.address);
    raw.say({ kind: "join", addresses: [pair.address] });
    return { raw, pair, [Symbol.asyncDispose]: () => raw[Symbol.asyncDispose]() };
  }

  /** A server that sends arbitrary messages. */
  rawServer(onLink: (connection: RawRdma) => unknown): Promise<RawListener> {
    const take = (socket: TLSSocket) => onLink(new RawLine<RdmaControl>(socket, SPOKEN));
    return RawListener.listen(this.cluster.host("server"), SPOKEN.protocol, take);
  }
}

/** The body of a pull. */
export function pullBody(items: readonly PullItem[], deadlineMs = 30_000): Uint8Array {
  return encodeRequest({ op: "pull", namespace: NAMESPACE, items, deadlineMs });
}
