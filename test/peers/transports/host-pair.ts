import type { Endpoint, PeerConnection, Transport } from "../../../src/peers/index.ts";
import { makeCluster, type TestCluster } from "../../support/cluster.ts";

interface PairedHost extends AsyncDisposable {
  readonly endpoint: Endpoint;
  readonly transport: Transport;
}

/** A server (`serverHost`) and a client (`client`) of one cluster. */
export abstract class HostPair<Host extends PairedHost> implements AsyncDisposable {
  readonly cluster: TestCluster = makeCluster();
  abstract readonly serverHost: Host;
  abstract readonly client: Host;

  dial(port = this.serverHost.endpoint.port) {
    const target = { host: "127.0.0.1", port, worker: "server" as never };
    return this.client.transport.dial(target, new AbortController().signal);
  }

  async connection(port?: number): Promise<PeerConnection> {
    const dialled = await this.dial(port);
    if (!dialled.ok) throw new Error(`${dialled.fault.kind}: ${dialled.fault.why}`);
    return dialled.connection;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.client[Symbol.asyncDispose]();
    await this.serverHost[Symbol.asyncDispose]();
  }
}
