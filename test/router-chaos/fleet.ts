import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { NatsServer } from "../../scripts/lib/nats-process.ts";
import { type Random, randomBelow } from "../../src/core/index.ts";
import { Child } from "./child.ts";
import type { Order, RouterReport, WorkerReport } from "./messages.ts";

/** How events are treated on their way while a round goes on. */
export const BAD_WIRE: Order = { order: "wire", drop: 0.05, double: 0.05, hold: 0.1 };
export const GOOD_WIRE: Order = { order: "wire", drop: 0, double: 0, hold: 0 };

/** Workers, routers and a broker, all processes. */
export class Fleet implements AsyncDisposable {
  readonly nats: NatsServer;
  readonly workers: readonly Child<WorkerReport>[];
  readonly routers: readonly Child<RouterReport>[];
  readonly #random: Random;
  readonly #folder = mkdtempSync(join(tmpdir(), "hearth-chaos-"));

  private constructor(nats: NatsServer, random: Random, workers: number, routers: number) {
    this.nats = nats;
    this.#random = random;
    const port = () => nats.tcpPort;
    this.workers = Array.from({ length: workers }, (_, at) => {
      const name = `worker-${at}`;
      return new Child<WorkerReport>(name, port, ({ number, seed }, url) => ({
        ...{ kind: "worker", name, url, seed, incarnation: String(number) },
        diskBlocks: seed % 300,
      }));
    });
    this.routers = Array.from({ length: routers }, (_, at) => {
      const name = `router-${at}`;
      const folder = join(this.#folder, name);
      return new Child<RouterReport>(name, port, ({ seed }, url) => {
        return { kind: "router", name, url, seed, folder };
      });
    });
  }

  static async start(random: Random, workers: number, routers: number): Promise<Fleet> {
    const fleet = new Fleet(await NatsServer.start(), random, workers, routers);
    await Promise.all(fleet.all.map((child) => child.open(fleet.seed())));
    return fleet;
  }

  get all(): readonly Child<WorkerReport | RouterReport>[] {
    return [...this.workers, ...this.routers] as Child<WorkerReport | RouterReport>[];
  }

  seed(): number {
    return randomBelow(this.#random, 2 ** 31);
  }

  order(order: Order): void {
    for (const child of this.all) child.order(order);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await Promise.all(this.all.map((child) => child[Symbol.asyncDispose]()));
    await this.nats[Symbol.asyncDispose]();
    rmSync(this.#folder, { recursive: true, force: true });
  }
}
