import type { Clock } from "../../../core/index.ts";

type Socket = Bun.udp.Socket<"buffer">;

const HOST = "127.0.0.1";
/** Sockets of clients, each with its own way to the server. */
const CLIENTS_MAX = 64;

export interface UdpRelayOptions {
  /** Where datagrams go, on this host. */
  readonly port: number;
  /** How long each is on its way, in either direction; milliseconds. */
  readonly delayMs: number;
  readonly clock: Clock;
}

/** A wire of some length, in user space: passes on datagrams after a while, in order. */
export class UdpRelay implements Disposable {
  readonly #options: UdpRelayOptions;
  readonly #timers = new Set<Disposable>();
  /** By the client's port. */
  readonly #back = new Map<number, Promise<Socket>>();
  #front!: Socket;
  /** Datagrams that passed, both ways. */
  datagrams = 0;
  #isClosed = false;

  private constructor(options: UdpRelayOptions) {
    this.#options = options;
  }

  static async open(options: UdpRelayOptions): Promise<UdpRelay> {
    const relay = new UdpRelay(options);
    relay.#front = await Bun.udpSocket({
      hostname: HOST,
      socket: { data: (_, data, port) => void relay.#toServer(data, port) },
    });
    return relay;
  }

  /** Where clients send to. */
  get port(): number {
    return this.#front.port;
  }

  async #toServer(data: Buffer, client: number): Promise<void> {
    const bytes = Buffer.from(data);
    if (!this.#back.has(client)) {
      if (this.#back.size === CLIENTS_MAX) return;
      const toClient = (_: unknown, answer: Buffer) => {
        const copy = Buffer.from(answer);
        this.#later(() => this.#front.send(copy, client, HOST));
      };
      this.#back.set(client, Bun.udpSocket({ hostname: HOST, socket: { data: toClient } }));
    }
    const back = await this.#back.get(client)!;
    this.#later(() => back.send(bytes, this.#options.port, HOST));
  }

  #later(send: () => void): void {
    if (this.#isClosed) return;
    const timer = this.#options.clock.after(this.#options.delayMs, () => {
      this.#timers.delete(timer);
      this.datagrams++;
      send();
    });
    this.#timers.add(timer);
  }

  [Symbol.dispose](): void {
    this.#isClosed = true;
    for (const timer of this.#timers) timer[Symbol.dispose]();
    this.#front.close();
    for (const back of this.#back.values()) void back.then((socket) => socket.close());
  }
}
