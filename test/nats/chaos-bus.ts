import type {
  Bus,
  BusHandler,
  BusState,
  DurableBus,
  PublishOptions,
  PublishOutcome,
  RequestOptions,
  RequestOutcome,
  ServiceSpec,
  Subscription,
} from "../../src/bus/index.ts";
import { type Random, randomBelow } from "../../src/core/index.ts";

/** What happens to commands on their way to the broker. */
export interface Mischief {
  /** Of each command published, the share that is published once more. */
  readonly duplicateShare: number;
  /** Within this time a command goes out: those behind it overtake it. */
  readonly shuffleMs: number;
  /** Within this time after it, its copy. */
  readonly lateMs: number;
}

export const MISCHIEF: Mischief = { duplicateShare: 0.5, shuffleMs: 30, lateMs: 4_000 };

/** A bus on which commands are shuffled, and many come twice; everything else passes as it is. */
export class ChaosBus implements Bus {
  readonly #bus: Bus;
  readonly #random: Random;
  readonly #mischief: Mischief;
  readonly #outstanding = new Set<NodeJS.Timeout>();
  #resolveQuiet: (() => void)[] = [];
  /** Commands given to it, each try counted. */
  published = 0;
  duplicates = 0;

  constructor(bus: Bus, random: Random, mischief: Mischief = MISCHIEF) {
    this.#bus = bus;
    this.#random = random;
    this.#mischief = mischief;
  }

  get state(): BusState {
    return this.#bus.state;
  }
  get payloadBytesMax(): number {
    return this.#bus.payloadBytesMax;
  }
  get inboxPrefix(): string {
    return this.#bus.inboxPrefix;
  }
  get durable(): DurableBus | null {
    return this.#bus.durable;
  }

  publish(subject: string, data: Uint8Array, options: PublishOptions = {}): PublishOutcome {
    if (!subject.startsWith("kv-control-")) return this.#bus.publish(subject, data, options);
    const { duplicateShare, shuffleMs, lateMs } = this.#mischief;
    this.published++;
    const send = () => void this.#bus.publish(subject, data, options);
    this.#later(randomBelow(this.#random, shuffleMs + 1), send);
    if (this.#random.u32() < duplicateShare * 2 ** 32) {
      this.duplicates++;
      this.#later(randomBelow(this.#random, lateMs + 1), send);
    }
    return this.#bus.state.status === "connected" ? "sent" : "queued";
  }

  /** Resolves when all that is late has been handed to the broker. */
  async quiet(ms: number): Promise<boolean> {
    if (this.#outstanding.size > 0) {
      await new Promise<void>((resolve) => this.#resolveQuiet.push(resolve));
    }
    return this.#bus.flush(ms);
  }

  subscribe(subject: string, handler: BusHandler, queue?: string): Subscription {
    return this.#bus.subscribe(subject, handler, queue);
  }
  request(subject: string, data: Uint8Array, options: RequestOptions): Promise<RequestOutcome> {
    return this.#bus.request(subject, data, options);
  }
  serve(spec: ServiceSpec): void {
    this.#bus.serve(spec);
  }
  onStatus(listener: (state: BusState) => void): Disposable {
    return this.#bus.onStatus(listener);
  }
  connected(ms: number): Promise<boolean> {
    return this.#bus.connected(ms);
  }
  flush(ms: number): Promise<boolean> {
    return this.#bus.flush(ms);
  }

  async close(ms: number): Promise<void> {
    for (const timer of this.#outstanding) clearTimeout(timer);
    this.#outstanding.clear();
    await this.#bus.close(ms);
  }
  [Symbol.asyncDispose](): Promise<void> {
    return this.close(1_000);
  }

  #later(ms: number, send: () => void): void {
    const timer = setTimeout(() => {
      this.#outstanding.delete(timer);
      send();
      if (this.#outstanding.size > 0) return;
      for (const resolve of this.#resolveQuiet.splice(0)) resolve();
    }, ms);
    this.#outstanding.add(timer);
  }
}
