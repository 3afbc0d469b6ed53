import { afterAll, beforeAll, expect } from "bun:test";
import type { Bus, BusBasics, BusLimits, BusMessage, Subscription } from "../../src/bus/index.ts";
import { systemClock, systemRandom } from "../../src/core/index.ts";

/** One broker and the buses on it. */
export interface BusWorld extends AsyncDisposable {
  open(basics: BusBasics): Bus;
  /** Kills the broker without a goodbye. */
  goDown(): Promise<void>;
  comeUp(): Promise<void>;
  /** Largest message in bytes that the broker accepts. */
  readonly payloadBytesMax: number;
}

export interface LogLine {
  readonly level: string;
  readonly message: string;
  readonly fields: Readonly<Record<string, unknown>>;
}

/** Timeouts short enough for tests. */
export const FAST: Partial<BusLimits> = {
  connectMs: 2_000,
  retryMinMs: 10,
  retryMaxMs: 50,
};

export function basics(limits: Partial<BusLimits> = {}, lines: LogLine[] = []): BusBasics {
  return {
    clock: systemClock,
    random: systemRandom,
    limits: { ...FAST, ...limits },
    log: (level, message, fields) => void lines.push({ level, message, fields }),
  };
}

export const bytes = (text: string) => new TextEncoder().encode(text);
export const text = (message: { readonly data: Uint8Array }) =>
  new TextDecoder().decode(message.data);

/** Buses on one broker, closed at the end of the suite. */
export interface Bench {
  /** Usable only inside of tests. */
  readonly world: BusWorld;
  /** A connected bus. */
  open(limits?: Partial<BusLimits>, lines?: LogLine[]): Promise<Bus>;
  /** A subject that no other test uses. */
  fresh(): string;
  /** Subscribes and waits until the broker has registered the subscription. */
  collect(
    bus: Bus,
    subject: string,
    queue?: string,
  ): Promise<{ messages: BusMessage[]; subscription: Subscription }>;
}

/** For use inside a `describe`. */
export function busBench(start: () => Promise<BusWorld>): Bench {
  let world: BusWorld | null = null;
  let subjects = 0;
  const opened: Bus[] = [];
  beforeAll(async () => {
    world = await start();
  });
  afterAll(async () => {
    await Promise.all(opened.map((bus) => bus.close(100)));
    await world?.[Symbol.asyncDispose]();
  });
  return {
    get world() {
      return world!;
    },
    async open(limits = {}, lines = []) {
      const bus = world!.open(basics(limits, lines));
      opened.push(bus);
      expect(await bus.connected(5_000)).toBe(true);
      return bus;
    },
    fresh: () => `test-${++subjects}`,
    async collect(bus, subject, queue) {
      const messages: BusMessage[] = [];
      const subscription = bus.subscribe(subject, (message) => void messages.push(message), queue);
      expect(await bus.flush(5_000)).toBe(true);
      return { messages, subscription };
    },
  };
}
