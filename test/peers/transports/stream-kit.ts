import { systemClock } from "../../../src/core/index.ts";
import type { Cipher, Region } from "../../../src/native/index.ts";
import type { Endpoint, PullItem, Trust } from "../../../src/peers/index.ts";
import { type StreamLimits, StreamTransport } from "../../../src/peers/transports/stream/index.ts";
import { encodeRequest } from "../../../src/peers/wire/index.ts";
import { NAMESPACE, RegionServer } from "../../support/region-server.ts";
import { type LogLine, regionOf } from "./contract-kit.ts";
import { HostPair } from "./host-pair.ts";
import { PlainNetwork } from "./plain-lanes.ts";
import { RawStream } from "./raw-stream.ts";

export interface StreamSide {
  readonly limits?: Partial<StreamLimits>;
  readonly ciphers?: readonly Cipher[];
  readonly lanes?: number;
}

/** A stream transport over plain lanes, with its server and log. */
export class StreamHost implements AsyncDisposable {
  readonly transport: StreamTransport;
  readonly region: Region;
  readonly server: RegionServer;
  readonly log: LogLine[] = [];
  endpoint: Endpoint = { host: "127.0.0.1", port: 0 };

  constructor(network: PlainNetwork, trust: Trust, region: Region, side: StreamSide) {
    this.region = region;
    this.server = new RegionServer(region);
    this.transport = new StreamTransport({
      trust,
      clock: systemClock,
      log: (level, text, fields) => void this.log.push({ level, text, fields }),
      openLanes: (own) => network.open(own),
      ciphers: side.ciphers ?? ["aegis-128l", "aes-128-gcm"],
      lanes: side.lanes ?? 2,
      lanesPort: 0,
      limits: side.limits ?? {},
    });
  }

  async listen(): Promise<void> {
    await this.transport.register(this.region);
    this.endpoint = await this.transport.listen(this.endpoint, this.server);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.transport[Symbol.asyncDispose]();
  }
}

/** A server and a client of one cluster over plain lanes. */
export class StreamPair extends HostPair<StreamHost> {
  readonly network = new PlainNetwork();
  readonly serverHost: StreamHost;
  readonly client: StreamHost;

  private constructor(serverHost: StreamSide, client: StreamSide) {
    super();
    const { cluster, network } = this;
    this.serverHost = new StreamHost(network, cluster.trust("server"), regionOf(0), serverHost);
    this.client = new StreamHost(network, cluster.trust("client"), regionOf(1), client);
  }

  static async make(serverHost: StreamSide = {}, client: StreamSide = {}): Promise<StreamPair> {
    const pair = new StreamPair(serverHost, client);
    await pair.serverHost.listen();
    await pair.client.transport.register(pair.client.region);
    return pair;
  }

  raw(): Promise<RawStream> {
    return RawStream.dial(this.serverHost.endpoint, this.cluster.host("raw-client"));
  }

  /** A raw client with connected lanes. */
  async greeted(): Promise<RawStream> {
    const raw = await this.raw();
    raw.say({ kind: "hello", version: 1, lanes: 1, ciphers: ["aegis-128l"] });
    const { session, port } = await raw.hear("welcome");
    await this.network.open(this.client.region).dial(session, "127.0.0.1", port, 1_000);
    return raw;
  }
}

/** The body of a pull. */
export function pullBody(items: readonly PullItem[], deadlineMs = 30_000): Uint8Array {
  return encodeRequest({ op: "pull", namespace: NAMESPACE, items, deadlineMs });
}
