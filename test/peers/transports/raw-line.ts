import {
  type ConnectionOptions,
  connect,
  createServer,
  type Server,
  type TLSSocket,
} from "node:tls";
import type { Credentials, Endpoint } from "../../../src/peers/index.ts";
import { MessageReader } from "../../../src/peers/wire/index.ts";
import { waitFor } from "../../support/index.ts";

/** A protocol over a control channel. */
export interface Spoken<Message extends { readonly kind: string }> {
  readonly protocol: string;
  encode(message: Message): Uint8Array;
  decode(bytes: Uint8Array): Message | null;
}

/** One end of a control channel that sends arbitrary messages. */
export class RawLine<Message extends { readonly kind: string }> implements AsyncDisposable {
  readonly socket: TLSSocket;
  readonly heard: Message[] = [];
  isClosed = false;
  readonly #spoken: Spoken<Message>;
  readonly #reader = new MessageReader(16 * 2 ** 20);

  constructor(socket: TLSSocket, spoken: Spoken<Message>) {
    this.socket = socket;
    this.#spoken = spoken;
    socket.on("error", () => {});
    socket.on("close", () => {
      this.isClosed = true;
    });
    socket.on("data", (chunk: Uint8Array) => {
      for (let at = 0; at < chunk.length; ) {
        at = this.#reader.take(chunk, at);
        if (this.#reader.message === null) continue;
        const message = spoken.decode(this.#reader.message);
        if (message !== null) this.heard.push(message);
      }
    });
  }

  say(...messages: readonly Message[]): void {
    for (const message of messages) this.socket.write(this.#spoken.encode(message));
  }

  /** The first message of this kind, received already or later. */
  async hear<Kind extends Message["kind"]>(
    kind: Kind,
  ): Promise<Extract<Message, { readonly kind: Kind }>> {
    const found = await waitFor(
      () => this.heard.find((message) => message.kind === kind),
      5_000,
      `a message ${kind}`,
    );
    return found as Extract<Message, { readonly kind: Kind }>;
  }

  /** Resolves when the connection has ended. */
  async over(): Promise<void> {
    await waitFor(() => this.isClosed, 5_000, "the end of the connection");
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.socket.destroy();
  }
}

/** A client's connection with the certificate of `credentials`. */
export async function connectRaw(
  to: Endpoint,
  credentials: Credentials,
  protocol: string,
  more: ConnectionOptions = {},
): Promise<TLSSocket> {
  const socket = connect({
    ...to,
    ...{ cert: credentials.certificates, key: credentials.key, ca: credentials.authorities },
    ALPNProtocols: [protocol],
    servername: "",
    checkServerIdentity: () => undefined,
    ...more,
  });
  await new Promise((resolve, reject) => {
    socket.once("secureConnect", resolve);
    socket.once("error", reject);
  });
  return socket;
}

/** A server with a valid certificate whose connections send arbitrary messages. */
export class RawListener implements AsyncDisposable {
  readonly port: number;
  readonly #server: Server;
  readonly #sockets: TLSSocket[] = [];

  private constructor(server: Server, port: number) {
    this.#server = server;
    this.port = port;
  }

  static async listen(
    credentials: Credentials,
    protocol: string,
    onLink: (socket: TLSSocket) => unknown,
  ): Promise<RawListener> {
    const server = createServer({
      ...{ cert: credentials.certificates, key: credentials.key, ca: credentials.authorities },
      ...{ ALPNProtocols: [protocol], requestCert: true, rejectUnauthorized: true },
    });
    await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
    const listener = new RawListener(server, (server.address() as { port: number }).port);
    server.on("secureConnection", (socket) => {
      listener.#sockets.push(socket);
      void onLink(socket);
    });
    return listener;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#server.close();
    for (const socket of this.#sockets) socket.destroy();
  }
}
