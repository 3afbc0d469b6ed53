import { type Bus, type BusMessage, createLocalBus, LocalHub } from "../../../src/bus/index.ts";
import { type ControlClient, connectControl } from "../../../src/control/client/index.ts";
import type { Receipt } from "../../../src/control/index.ts";
import { type Json, parseJson, seededRandom, stringifyJson } from "../../../src/core/index.ts";
import { ManualClock, waitFor } from "../../support/index.ts";

export interface Kit extends AsyncDisposable {
  readonly hub: LocalHub;
  readonly clock: ManualClock;
  readonly bus: Bus;
  readonly client: ControlClient;
  /** A worker with a bus of its own. */
  worker(name: string): Promise<FakeWorker>;
  /** Advances time until the promise settles, and returns its result. */
  settle<T>(promise: Promise<T>, stepMs?: number): Promise<T>;
}

/** A client and workers on one hub, with a clock that only the test advances. */
export async function kit(issuer?: string): Promise<Kit> {
  const hub = new LocalHub();
  const clock = new ManualClock();
  const random = seededRandom(7);
  const buses: Bus[] = [];
  const open = async () => {
    const bus = createLocalBus(hub, { clock, random });
    buses.push(bus);
    await waitFor(() => bus.state.status === "connected");
    return bus;
  };
  const bus = await open();
  const client = connectControl({
    bus,
    clock,
    random,
    ...(issuer === undefined ? {} : { issuer }),
  });
  return {
    hub,
    clock,
    bus,
    client,
    worker: async (name) => new FakeWorker(await open(), name),
    async settle(promise, stepMs = 50) {
      let isSettled = false;
      const noted = promise.finally(() => {
        isSettled = true;
      });
      noted.catch(() => undefined);
      for (let step = 0; step < 20_000; step++) {
        for (let turn = 0; turn < 5 && !isSettled; turn++) {
          await new Promise((resolve) => setImmediate(resolve));
        }
        if (isSettled) return noted;
        clock.advance(stepMs);
      }
      throw new Error("did not settle");
    },
    async [Symbol.asyncDispose]() {
      await client[Symbol.asyncDispose]();
      for (const each of buses) await each[Symbol.asyncDispose]();
    },
  };
}

type Received = { readonly [name: string]: Json };

/** A receipt in which everything succeeded; `with` replaces members. */
export function receiptOf(worker: string, command: Received, members: Partial<Receipt> = {}) {
  return {
    id: typeof command.id === "string" ? command.id : null,
    type: String(command.type),
    worker_id: worker,
    incarnation: "18446744073709551615",
    issuer: String(command.issuer ?? "nobody"),
    status: "ok",
    counts: { done: 1, already: 0, missing: 0, held: 0, deferred: 0, rejected: 0 },
    blocks: [{ block: -9223372036854775808n, outcome: "done" }],
    elapsed_ms: 1.5,
    ...members,
  } satisfies Receipt;
}

/** The handling of each message; the default answers at once. */
type Behave = (
  message: { readonly command: Received; readonly raw: BusMessage; readonly nth: number },
  answer: (receipt: Receipt) => void,
) => void;

/** A minimal worker: a command with a known id changes nothing and gets the earlier receipt. */
export class FakeWorker {
  readonly name: string;
  readonly received: Received[] = [];
  /** Commands that had an effect, by id. */
  readonly carriedOut: string[] = [];
  readonly #bus: Bus;
  readonly #known = new Map<string, Receipt>();
  behave: Behave = ({ command }, answer) => answer(this.carryOut(command));
  isFound = true;

  constructor(bus: Bus, name: string) {
    this.#bus = bus;
    this.name = name;
    const take = (raw: BusMessage) => this.#take(raw);
    bus.subscribe(`kv-control-${name}`, take);
    bus.subscribe("kv-control-broadcast", take);
    bus.subscribe("$SRV.PING.hearth-agent", ({ reply }) => {
      if (this.isFound && reply !== null) bus.publish(reply, this.ping());
    });
  }

  carryOut(command: Received): Receipt {
    const id = String(command.id);
    const known = this.#known.get(id);
    if (known !== undefined) return { ...known, duplicate: true };
    const receipt = receiptOf(this.name, command);
    this.#known.set(id, receipt);
    this.carriedOut.push(id);
    return receipt;
  }

  ping(name = "hearth-agent"): Uint8Array {
    return new TextEncoder().encode(
      JSON.stringify({
        name,
        id: `id-of-${this.name}`,
        version: "1.2.3",
        metadata: { worker_id: this.name, incarnation: "77" },
        type: "io.nats.micro.v1.ping_response",
      }),
    );
  }

  #take(raw: BusMessage): void {
    const command = parseJson(new TextDecoder().decode(raw.data)) as Received;
    this.received.push(command);
    const { reply } = raw;
    this.behave({ command, raw, nth: this.received.length }, (receipt) => {
      if (reply !== null) this.#bus.publish(reply, encode(receipt));
    });
  }
}

export function encode(value: unknown): Uint8Array {
  return new TextEncoder().encode(stringifyJson(value));
}
