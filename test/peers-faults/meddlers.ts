import { createSocket, type Socket as UdpSocket } from "node:dgram";
import { connect, createServer, type Server, type Socket } from "node:net";
import { type Random, randomBelow } from "../../src/core/index.ts";

/** Network faults that begin at some byte of a connection. */
const TCP_FAULTS = ["cut", "stall", "drip", "flip", "drop"] as const;
type TcpFault = (typeof TCP_FAULTS)[number];

const FAULT_BYTES_MAX = 150_000;
const DRIP_MS = 5;

/** A proxy between two hosts; `port` replaces the target's port. */
export interface Meddler extends AsyncDisposable {
  readonly port: number;
  /** The target port; set before the first connection. */
  target: number;
  /** Number of damaged connections or packets. */
  readonly meddled: number;
}

/** Forwards TCP and damages every second connection, after some bytes, in one direction. */
export class TcpMeddler implements Meddler {
  target = 0;
  meddled = 0;
  readonly #random: Random;
  readonly #server: Server;
  readonly #sockets = new Set<Socket>();

  private constructor(random: Random) {
    this.#random = random;
    this.#server = createServer((socket) => this.#carry(socket));
  }

  static async listen(random: Random): Promise<TcpMeddler> {
    const meddler = new TcpMeddler(random);
    await new Promise<void>((resolve) => meddler.#server.listen(0, "127.0.0.1", resolve));
    return meddler;
  }

  get port(): number {
    return (this.#server.address() as { port: number }).port;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    for (const socket of this.#sockets) socket.destroy();
    await new Promise<void>((resolve) => this.#server.close(() => resolve()));
  }

  #carry(inner: Socket): void {
    const outer = connect(this.target, "127.0.0.1");
    const harmful = randomBelow(this.#random, 2) === 0;
    const direction = randomBelow(this.#random, 2);
    for (const [index, from, to] of [
      [0, inner, outer],
      [1, outer, inner],
    ] as const) {
      this.#sockets.add(from);
      from.on("error", () => to.destroy());
      from.on("close", () => {
        this.#sockets.delete(from);
        to.destroy();
      });
      const pass =
        harmful && index === direction ? this.#harm(to) : (chunk: Buffer) => to.write(chunk);
      from.on("data", pass);
    }
  }

  #harm(to: Socket): (chunk: Buffer) => void {
    const fault: TcpFault = TCP_FAULTS[randomBelow(this.#random, TCP_FAULTS.length)]!;
    let left = randomBelow(this.#random, FAULT_BYTES_MAX);
    let done = false;
    const dripping: number[] = [];
    const drip = () => {
      const byte = dripping.shift();
      if (byte !== undefined && !to.destroyed) to.write(Uint8Array.of(byte));
      if (!to.destroyed) setTimeout(drip, DRIP_MS);
    };
    return (chunk) => {
      if (chunk.length <= left) {
        left -= chunk.length;
        to.write(chunk);
        return;
      }
      if (!done) {
        this.meddled++;
        to.write(chunk.subarray(0, left));
        chunk = chunk.subarray(left);
        left = 0;
        if (fault === "drip") drip();
      }
      switch (fault) {
        case "cut":
          to.destroy();
          break;
        case "stall":
          break;
        case "drip":
          if (dripping.length < FAULT_BYTES_MAX) dripping.push(...chunk.subarray(0, 4_096));
          break;
        case "flip":
          if (!done) chunk[0] = chunk[0]! ^ 8;
          to.write(chunk);
          break;
        case "drop":
          to.write(done ? chunk : chunk.subarray(1));
          break;
        default:
          fault satisfies never;
      }
      done = true;
    };
  }
}

/** Forwards UDP; drops, duplicates, delays and changes packets, and sometimes drops all of them. */
export class UdpMeddler implements Meddler {
  target = 0;
  meddled = 0;
  readonly #random: Random;
  readonly #socket: UdpSocket;
  readonly #outer = new Map<number, UdpSocket>();
  /** Number of packets still to be dropped. */
  #silence = 0;
  #closed = false;

  private constructor(random: Random) {
    this.#random = random;
    this.#socket = createSocket("udp4");
    // A closed host answers late packets with an ICMP error.
    this.#socket.on("error", () => undefined);
    this.#socket.on("message", (packet, { port }) => {
      this.#meddle(packet, (some) => this.#outerOf(port).send(some, this.target, "127.0.0.1"));
    });
  }

  static async listen(random: Random): Promise<UdpMeddler> {
    const meddler = new UdpMeddler(random);
    await new Promise<void>((resolve) => meddler.#socket.bind(0, "127.0.0.1", resolve));
    return meddler;
  }

  get port(): number {
    return this.#socket.address().port;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#closed = true;
    for (const socket of [this.#socket, ...this.#outer.values()])
      await new Promise<void>((resolve) => socket.close(() => resolve()));
  }

  #outerOf(port: number): UdpSocket {
    let socket = this.#outer.get(port);
    if (socket === undefined) {
      socket = createSocket("udp4");
      socket.on("message", (packet) => {
        this.#meddle(packet, (some) => this.#socket.send(some, port, "127.0.0.1"));
      });
      socket.on("error", () => undefined);
      this.#outer.set(port, socket);
    }
    return socket;
  }

  #meddle(packet: Buffer, carry: (packet: Buffer) => void): void {
    const send = (some: Buffer) => {
      if (!this.#closed) carry(some);
    };
    const drawn = randomBelow(this.#random, 2_000);
    if (drawn === 0) this.#silence = randomBelow(this.#random, 400);
    if (this.#silence > 0) {
      this.#silence--;
      this.meddled++;
      return;
    }
    if (drawn < 30) this.meddled++;
    if (drawn < 10) return;
    if (drawn < 15) packet[randomBelow(this.#random, packet.length)]! ^= 16;
    if (drawn < 20) send(packet);
    if (drawn < 30) setTimeout(() => send(packet), 20);
    else send(packet);
  }
}
