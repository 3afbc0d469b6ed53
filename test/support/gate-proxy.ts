import { connect, createServer, type Socket } from "node:net";

/**
 * A TCP proxy that passes an exact number of bytes to the client, and then none until it is
 * opened: the sender is stopped by full buffers. The other direction is always open.
 */
export class GateProxy implements AsyncDisposable {
  readonly #target: number;
  readonly #server = createServer((socket) => this.#carry(socket));
  readonly #sockets = new Set<Socket>();
  readonly #waiting: (() => void)[] = [];
  #left: number;

  constructor(target: number, bytes: number) {
    this.#target = target;
    this.#left = bytes;
  }

  /** The port to dial instead. */
  listen(): Promise<number> {
    return new Promise((resolve) => {
      this.#server.listen(0, "127.0.0.1", () => {
        const address = this.#server.address();
        if (address === null || typeof address === "string") throw new Error("no port");
        resolve(address.port);
      });
    });
  }

  get isShut(): boolean {
    return this.#left === 0;
  }

  open(): void {
    this.#left = Number.POSITIVE_INFINITY;
    for (const goOn of this.#waiting.splice(0)) goOn();
  }

  #carry(dialler: Socket): void {
    const listener = connect(this.#target, "127.0.0.1");
    for (const socket of [dialler, listener]) {
      this.#sockets.add(socket);
      socket.on("error", () => {});
    }
    dialler.on("data", (bytes) => listener.write(bytes));
    dialler.on("close", () => listener.destroy());
    listener.on("close", () => dialler.end());
    listener.on("data", (bytes: Buffer) => {
      const passed = bytes.subarray(0, this.#left);
      this.#left -= passed.length;
      dialler.write(passed);
      if (passed.length === bytes.length) return;
      listener.pause();
      this.#waiting.push(() => {
        dialler.write(bytes.subarray(passed.length));
        listener.resume();
      });
    });
  }

  async [Symbol.asyncDispose](): Promise<void> {
    for (const socket of this.#sockets) socket.destroy();
    await new Promise((resolve) => this.#server.close(resolve));
  }
}
