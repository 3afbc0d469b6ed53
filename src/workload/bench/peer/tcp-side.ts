import { HearthError } from "../../../core/index.ts";
import {
  type Native,
  type PlainListener,
  plainListen,
  plainPull,
  plainServe,
  type Region,
} from "../../../native/index.ts";
import type { BenchSide, Pulled, PullOrder } from "./orders.ts";

/** A program with blocking sockets: what the network gives to those who ask it for nothing else. */
export class TcpSide implements BenchSide {
  readonly #native: Native;
  readonly #region: Region;
  readonly #listener: PlainListener | null;
  #port = 0;

  constructor(native: Native, region: Region, role: "holder" | "asker") {
    this.#native = native;
    this.#region = region;
    this.#listener = role === "holder" ? plainListen(native) : null;
  }

  get port(): number {
    return this.#listener?.port ?? 0;
  }

  async prepare(_: number, connections: number, ready: () => Promise<void>): Promise<void> {
    await ready();
    if (this.#listener === null) throw new HearthError("INTERNAL", "an asker serves nobody");
    plainServe(this.#native, this.#region, this.#listener, connections);
  }

  async dial(port: number): Promise<void> {
    this.#port = port;
  }

  async pull(order: PullOrder): Promise<Pulled> {
    const { blockBytes, blocks, connections, inFlight } = order;
    const start = Bun.nanoseconds();
    const own = { region: this.#region, port: this.#port };
    plainPull(this.#native, { ...own, blockBytes, blocks, connections, inFlight });
    return { seconds: (Bun.nanoseconds() - start) / 1e9, ms: [], wrong: 0 };
  }

  async [Symbol.asyncDispose](): Promise<void> {}
}
