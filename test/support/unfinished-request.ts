import type { Socket } from "bun";

/** A client that sends a request by hand and leaves it unfinished. */
export class UnfinishedRequest {
  answer = "";
  isClosed = false;
  #socket: Socket<undefined> | null = null;
  /** Bytes that the socket did not take yet. */
  #rest: Uint8Array = new Uint8Array(0);

  /** `head`: request line and headers, each with its line end. */
  static async open(port: number, head: string): Promise<UnfinishedRequest> {
    const client = new UnfinishedRequest();
    const ended = () => {
      client.isClosed = true;
    };
    client.#socket = await Bun.connect({
      hostname: "127.0.0.1",
      port,
      socket: {
        data(_socket, bytes) {
          client.answer += bytes.toString("latin1");
        },
        drain: () => client.#flush(),
        close: ended,
        error: ended,
      },
    });
    client.send(new Uint8Array(Buffer.from(`${head}\r\n`)));
    return client;
  }

  send(bytes: Uint8Array): void {
    this.#rest = new Uint8Array(Buffer.concat([this.#rest, bytes]));
    this.#flush();
  }

  chunk(bytes: Uint8Array): void {
    const size = Buffer.from(`${bytes.length.toString(16)}\r\n`);
    this.send(new Uint8Array(Buffer.concat([size, bytes, Buffer.from("\r\n")])));
  }

  get hasSent(): boolean {
    return this.#rest.length === 0;
  }

  get status(): number {
    return Number(/^HTTP\/1\.1 (\d+)/.exec(this.answer)?.[1] ?? 0);
  }

  end(): void {
    this.#socket?.terminate();
  }

  #flush(): void {
    const written = this.#socket?.write(this.#rest) ?? 0;
    if (written > 0) this.#rest = this.#rest.subarray(written);
  }
}
