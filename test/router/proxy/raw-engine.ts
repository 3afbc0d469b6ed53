type Socket = Bun.Socket<undefined>;

/** A TCP server with scripted, misbehaving answers. */
export class RawEngine implements Disposable {
  /** Requests received. */
  requests = 0;
  connections = 0;
  readonly #listener: Bun.TCPSocketListener<undefined>;

  /** `handle` is called with the first bytes of each request. */
  constructor(handle: (socket: Socket, request: number, text: string) => void) {
    this.#listener = Bun.listen({
      hostname: "127.0.0.1",
      port: 0,
      socket: {
        open: () => {
          this.connections++;
        },
        data: (socket, bytes) => {
          if (!bytes.includes("HTTP/1.1\r\n")) return;
          handle(socket, ++this.requests, bytes.toString("latin1"));
        },
        error: () => undefined,
      },
    });
  }

  get port(): number {
    return this.#listener.port;
  }

  get url(): string {
    return `http://127.0.0.1:${this.port}`;
  }

  [Symbol.dispose](): void {
    this.#listener.stop(true);
  }
}

/** A URL whose port has no listener. */
export function deadUrl(): string {
  const listener = Bun.listen({ hostname: "127.0.0.1", port: 0, socket: { data() {} } });
  const { port } = listener;
  listener.stop(true);
  return `http://127.0.0.1:${port}`;
}

export const STREAM_HEAD =
  "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n";

export function chunkOf(text: string): string {
  return `${Buffer.byteLength(text).toString(16)}\r\n${text}\r\n`;
}
