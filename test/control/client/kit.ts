import { type Bus, createLocalBus, LocalHub } from "../../../src/bus/index.ts";
import { type ControlClient, connectControl } from "../../../src/control/client/index.ts";
import { seededRandom } from "../../../src/core/index.ts";
import { ManualClock, waitFor } from "../../support/index.ts";
import { FakeWorker } from "./fake-worker.ts";

export interface Kit extends AsyncDisposable {
  readonly hub: LocalHub;
  readonly clock: ManualClock;
  readonly bus: Bus;
  readonly client: ControlClient;
  /** A worker with a bus of its own. */
  worker(name: string): Promise<FakeWorker>;
  /** Lets time pass until the promise settles; what it gave. */
  settle<T>(promise: Promise<T>, stepMs?: number): Promise<T>;
}

/** A client and workers on one hub, on a clock that stands still until a test moves it. */
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
