import { assert, HearthError, type WorkerId } from "../../../core/index.ts";
import type { Region } from "../../../native/index.ts";
import type { OutgoingPull, PeerLink, Transport } from "../../../peers/index.ts";
import { BENCH_NAMESPACE, BenchServer, benchBlock } from "./bench-server.ts";
import type { BenchSide, Pulled, PullOrder } from "./orders.ts";

const HOST = "127.0.0.1";
export const HOLDER = "holder" as WorkerId;
const PULL_MS = 120_000;
const NS_PER_MS = 1e6;

/** A transport of ours, as pulls use it: one request for each block. */
export class TransportSide implements BenchSide {
  readonly #transport: Transport;
  readonly #region: Region;
  readonly #server: BenchServer;
  readonly port: number;
  #link: PeerLink | null = null;

  private constructor(transport: Transport, region: Region, server: BenchServer, port: number) {
    this.#transport = transport;
    this.#region = region;
    this.#server = server;
    this.port = port;
  }

  static async start(
    transport: Transport,
    region: Region,
    role: "holder" | "asker",
  ): Promise<TransportSide> {
    await transport.register(region);
    if (transport.unsupported !== null) {
      throw new HearthError("UNSUPPORTED", `${transport.name}: ${transport.unsupported}`);
    }
    const server = new BenchServer(region);
    const isHolder = role === "holder";
    const port = isHolder ? (await transport.listen({ host: HOST, port: 0 }, server)).port : 0;
    return new TransportSide(transport, region, server, port);
  }

  async prepare(blockBytes: number, _: number, ready: () => Promise<void>): Promise<void> {
    this.#server.setBlockBytes(blockBytes);
    await ready();
  }

  async dial(port: number): Promise<void> {
    const giveUp = new AbortController();
    const target = { host: HOST, port, worker: HOLDER };
    const dialled = await this.#transport.dial(target, giveUp.signal);
    if (!dialled.ok) {
      const { kind, why } = dialled.fault;
      throw new HearthError("INTERNAL", `the holder was not reached: ${kind}: ${why}`);
    }
    this.#link = dialled.connection;
  }

  async pull(order: PullOrder): Promise<Pulled> {
    const { blockBytes, blocks, inFlight } = order;
    const slots = Math.floor(this.#region.bytes / blockBytes);
    assert(slots >= inFlight, "blocks on their way have places of their own");
    const ms: number[] = [];
    let next = 0;
    let wrong = 0;
    const start = Bun.nanoseconds();
    const one = async () => {
      while (next < blocks) {
        const began = Bun.nanoseconds();
        const isRight = await this.#pullOne(next++ % slots, blockBytes);
        ms.push((Bun.nanoseconds() - began) / NS_PER_MS);
        if (!isRight) wrong++;
      }
    };
    await Promise.all(Array.from({ length: inFlight }, one));
    return { seconds: (Bun.nanoseconds() - start) / 1e9, ms, wrong };
  }

  /** True: it came, and what lies in the arena is what the holder has. */
  async #pullOne(slot: number, bytesMax: number): Promise<boolean> {
    const link = this.#link;
    assert(link !== null, "an asker has dialled");
    let isRight = false;
    const pull: OutgoingPull = {
      namespace: BENCH_NAMESPACE,
      items: [{ ...benchBlock(slot), bytesMax, generation: 0n, offset: slot * bytesMax }],
      deadlineMs: PULL_MS,
      signal: this.#never.signal,
      onBytes() {},
      onItem(_, result) {
        isRight = result.kind === "came" && result.checksum === result.header.checksum;
      },
    };
    const fault = await link.pull(pull);
    if (fault !== null) {
      throw new HearthError("INTERNAL", `a pull failed: ${fault.kind}: ${fault.why}`);
    }
    return isRight;
  }

  readonly #never = new AbortController();

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#link?.[Symbol.asyncDispose]();
    await this.#transport[Symbol.asyncDispose]();
  }
}
