/** A TCP proxy to a local port that can stall: it stops reading without breaking connections. */
export class StallProxy implements Disposable {
  readonly #listener: Bun.TCPSocketListener<Pair>;
  readonly #pairs = new Set<Pair>();
  #isStalled = false;

  constructor(targetPort: number) {
    this.#listener = Bun.listen<Pair>({
      hostname: "127.0.0.1",
      port: 0,
      socket: {
        open: (near) => {
          const pair: Pair = { near, far: null, toFar: [], toNear: [] };
          near.data = pair;
          this.#pairs.add(pair);
          if (this.#isStalled) near.pause();
          void this.#connect(pair, targetPort);
        },
        data: (_near, chunk) => this.#pass(_near.data, "toFar", chunk),
        drain: (near) => this.#flush(near.data),
        close: (near) => {
          this.#pairs.delete(near.data);
          near.data.far?.end();
        },
      },
    });
  }

  get port(): number {
    return this.#listener.port;
  }

  /** Number of connections through the proxy. */
  get connections(): number {
    return this.#pairs.size;
  }

  stall(): void {
    this.#isStalled = true;
    for (const { near, far } of this.#pairs) {
      near.pause();
      far?.pause();
    }
  }

  resume(): void {
    this.#isStalled = false;
    for (const pair of this.#pairs) {
      pair.near.resume();
      pair.far?.resume();
      this.#flush(pair);
    }
  }

  [Symbol.dispose](): void {
    this.#listener.stop(true);
    for (const { far } of this.#pairs) far?.end();
  }

  async #connect(pair: Pair, port: number): Promise<void> {
    try {
      pair.far = await Bun.connect<Pair>({
        hostname: "127.0.0.1",
        port,
        data: pair,
        socket: {
          data: (far, chunk) => this.#pass(far.data, "toNear", chunk),
          drain: (far) => this.#flush(far.data),
          close: (far) => void far.data.near.end(),
        },
      });
      this.#flush(pair);
    } catch {
      pair.near.end();
    }
  }

  #pass(pair: Pair, way: "toFar" | "toNear", chunk: Uint8Array): void {
    pair[way].push(Buffer.from(chunk));
    if (!this.#isStalled) this.#flush(pair);
  }

  #flush(pair: Pair): void {
    if (this.#isStalled) return;
    for (const [way, socket] of [
      ["toFar", pair.far],
      ["toNear", pair.near],
    ] as const) {
      const waiting = pair[way];
      while (socket !== null && waiting.length > 0) {
        const written = socket.write(waiting[0]!);
        if (written < waiting[0]!.length) {
          waiting[0] = waiting[0]!.subarray(Math.max(0, written));
          break;
        }
        waiting.shift();
      }
    }
  }
}

interface Pair {
  readonly near: Bun.Socket<Pair>;
  far: Bun.Socket<Pair> | null;
  readonly toFar: Buffer[];
  readonly toNear: Buffer[];
}
