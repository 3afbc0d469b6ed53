import {
  type ConnectionOptions,
  connect,
  createServer,
  type Server,
  type TLSSocket,
} from "node:tls";
import type { Credentials, Endpoint } from "../../../src/peers/index.ts";
import {
  type ControlMessage,
  decodeControl,
  encodeControl,
} from "../../../src/peers/transports/stream/control/index.ts";
import { MessageReader } from "../../../src/peers/wire/index.ts";
import { waitFor } from "../../support/index.ts";

const ALPN = "hearth-stream/1";

/** One end of a stream link's TLS connection that says whatever a test wants. */
export class RawStream implements AsyncDisposable {
  readonly socket: TLSSocket;
  readonly heard: ControlMessage[] = [];
  isClosed = false;
  readonly #reader = new MessageReader(16 * 2 ** 20);

  constructor(socket: TLSSocket) {
    this.socket = socket;
    socket.on("error", () => {});
    socket.on("close", () => {
      this.isClosed = true;
    });
    socket.on("data", (chunk: Uint8Array) => {
      for (let at = 0; at < chunk.length; ) {
        at = this.#reader.take(chunk, at);
        if (this.#reader.message === null) continue;
        const message = decodeControl(this.#reader.message);
        if (message !== null) this.heard.push(message);
      }
    });
  }

  /** An asker whose certificate is good. */
  static async dial(
    to: Endpoint,
    credentials: Credentials,
    more: ConnectionOptions = {},
  ): Promise<RawStream> {
    const socket = connect({
      ...to,
      ...{ cert: credentials.certificates, key: credentials.key, ca: credentials.authorities },
      ALPNProtocols: [ALPN],
      servername: "",
      checkServerIdentity: () => undefined,
      ...more,
    });
    await new Promise((resolve, reject) => {
      socket.once("secureConnect", resolve);
      socket.once("error", reject);
    });
    return new RawStream(socket);
  }

  say(...messages: readonly ControlMessage[]): void {
    for (const message of messages) this.socket.write(encodeControl(message));
  }

  /** The first message of this kind, that has come or comes. */
  async hear<Kind extends ControlMessage["kind"]>(
    kind: Kind,
  ): Promise<Extract<ControlMessage, { kind: Kind }>> {
    const found = await waitFor(
      () => this.heard.find((message) => message.kind === kind),
      5_000,
      `a message ${kind}`,
    );
    return found as Extract<ControlMessage, { kind: Kind }>;
  }

  /** Nothing more comes. */
  async over(): Promise<void> {
    await waitFor(() => this.isClosed, 5_000, "the end of the connection");
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.socket.destroy();
  }
}

/** A holder with a good certificate that says whatever a test wants. */
export class RawHolder implements AsyncDisposable {
  readonly port: number;
  readonly #server: Server;
  readonly #links: RawStream[] = [];

  private constructor(server: Server, port: number) {
    this.#server = server;
    this.port = port;
  }

  static async listen(
    credentials: Credentials,
    onLink: (link: RawStream) => unknown,
  ): Promise<RawHolder> {
    const server = createServer({
      ...{ cert: credentials.certificates, key: credentials.key, ca: credentials.authorities },
      ...{ ALPNProtocols: [ALPN], requestCert: true, rejectUnauthorized: true },
    });
    await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
    const holder = new RawHolder(server, (server.address() as { port: number }).port);
    server.on("secureConnection", (socket) => {
      const link = new RawStream(socket);
      holder.#links.push(link);
      void onLink(link);
    });
    return holder;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#server.close();
    for (const { socket } of this.#links) socket.destroy();
  }
}
