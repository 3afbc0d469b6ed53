import { createPrivateKey } from "node:crypto";
import { type Credentials, loadQuic } from "../../../src/peers/index.ts";

type Session = import("node:quic").QuicSession;
type Stream = import("node:quic").QuicStream;

export interface RawOptions {
  /** PEM, instead of the credentials' certificates. */
  readonly certificates?: string;
  readonly ticket?: Uint8Array;
}

/** A peer that sends arbitrary bytes on streams, with any credentials. */
export class RawClient implements AsyncDisposable {
  readonly session: Session;
  ticket: Uint8Array | null = null;
  /** Application code with which the connection ended, or null. */
  readonly ended: Promise<number | null>;

  private constructor(session: Session) {
    this.session = session;
    session.onsessionticket = (ticket) => {
      this.ticket = ticket as unknown as Uint8Array;
    };
    session.opened.catch(() => {});
    this.ended = session.closed.then(
      () => null,
      (thrown) => Number(thrown.errorCode),
    );
  }

  static async connect(
    port: number,
    credentials: Credentials,
    options: RawOptions = {},
  ): Promise<RawClient> {
    const quic = await loadQuic();
    const session = await quic.connect(`127.0.0.1:${port}`, {
      alpn: "hearth-kv/1",
      keys: [createPrivateKey(credentials.key)],
      certs: [Buffer.from(options.certificates ?? credentials.certificates)],
      ca: [Buffer.from(credentials.authorities)],
      verifyPeer: "manual",
      reuseEndpoint: false,
      transportParams: { maxIdleTimeout: 5 },
      ...(options.ticket === undefined ? {} : { sessionTicket: options.ticket }),
    });
    return new RawClient(session);
  }

  /** Writes to a new stream; returns the answer, or the code of the reset. */
  async say(
    bytes: Uint8Array,
    options: { readonly end?: boolean } = {},
  ): Promise<Uint8Array | number> {
    const stream = await this.session.createBidirectionalStream();
    return await this.exchange(stream, bytes, options.end ?? true);
  }

  async exchange(stream: Stream, bytes: Uint8Array, end: boolean): Promise<Uint8Array | number> {
    const reset = stream.closed.then(
      () => null,
      (thrown) => Number(thrown.errorCode),
    );
    if (bytes.length > 0) stream.writer.writeSync(bytes);
    if (end) stream.writer.endSync();
    const chunks: Uint8Array[] = [];
    try {
      for await (const batch of stream) chunks.push(...batch);
    } catch {
      return (await reset) ?? -1;
    }
    return Buffer.concat(chunks);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    if (!this.session.destroyed) this.session.destroy();
    await this.ended;
  }
}
