import { connect, createServer, type Socket } from "node:net";

/** A way to NATS that can be cut, or go silent, and come back. */
export class CutProxy implements AsyncDisposable {
  readonly #port: () => number;
  readonly #server = createServer((socket) => this.#carry(socket));
  readonly #pairs = new Set<readonly [Socket, Socket]>();
  #state: "open" | "cut" | "silent" = "open";

  /** `port`: of the server, whatever it is by then. */
  constructor(port: () => number) {
    this.#port = port;
  }

  listen(): Promise<number> {
    return new Promise((resolve) => {
      this.#server.listen(0, "127.0.0.1", () => {
        const address = this.#server.address();
        if (address === null || typeof address === "string") throw new Error("no port");
        resolve(address.port);
      });
    });
  }

  /** Connections break and none is taken. */
  cut(): void {
    this.#state = "cut";
    for (const pair of this.#pairs) for (const socket of pair) socket.destroy();
  }

  /** Connections stand, and nothing comes through. */
  silence(): void {
    this.#state = "silent";
    for (const pair of this.#pairs) for (const socket of pair) socket.pause();
  }

  heal(): void {
    this.#state = "open";
    for (const pair of this.#pairs) for (const socket of pair) socket.resume();
  }

  #carry(dialler: Socket): void {
    if (this.#state === "cut") {
      dialler.destroy();
      return;
    }
    const server = connect(this.#port(), "127.0.0.1");
    const pair = [dialler, server] as const;
    this.#pairs.add(pair);
    const end = () => {
      this.#pairs.delete(pair);
      for (const socket of pair) socket.destroy();
    };
    for (const [one, other] of [pair, [server, dialler]] as const) {
      one.on("data", (bytes) => other.write(bytes));
      one.on("error", end);
      one.on("close", end);
      if (this.#state === "silent") one.pause();
    }
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.cut();
    await new Promise((resolve) => this.#server.close(resolve));
  }
}
