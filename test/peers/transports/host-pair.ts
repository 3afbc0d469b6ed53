import type { Endpoint, PeerConnection, Transport } from "../../../src/peers/index.ts";
import { makeCluster, type TestCluster } from "../../support/cluster.ts";

interface PairedHost extends AsyncDisposable {
  readonly endpoint: Endpoint;
  readonly transport: Transport;
}

/** A server (`holder`) and a client (`asker`) of one cluster. */
export abstract class HostPair<Host extends PairedHost> implements AsyncDisposable {
  readonly cluster: TestCluster = makeCluster();
  abstract readonly holder: Host;
  abstract readonly asker: Host;

  dial(port = this.holder.endpoint.port) {
    const target = { host: "127.0.0.1", port, worker: "holder" as never };
    return this.asker.transport.dial(target, new AbortController().signal);
  }

  async connection(port?: number): Promise<PeerConnection> {
    const dialled = await this.dial(port);
    if (!dialled.ok) throw new Error(`${dialled.fault.kind}: ${dialled.fault.why}`);
    return dialled.connection;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.asker[Symbol.asyncDispose]();
    await this.holder[Symbol.asyncDispose]();
  }
}
