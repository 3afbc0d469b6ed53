import type { Consumption, ConsumptionState, DurableBus } from "../../bus/index.ts";
import { ANY, eventsStream, eventsSubject, snapshotBucket } from "../../events/index.ts";
import { takeResidency } from "./bus-listening.ts";
import type { ResidencyListener } from "./feed.ts";

/**
 * Reads the stream that the broker keeps of all events, from where this router was last time. What
 * came over the bus already is passed over by its number; what did not closes the gap. Heartbeats
 * that a stream kept are of the past, and count for nothing.
 */
export class StreamListening implements AsyncDisposable {
  readonly #consumption: Consumption;

  constructor(
    durable: DurableBus,
    cluster: string,
    /** Under this name the broker remembers where it was. */
    consumer: string,
    listener: ResidencyListener,
    onRefused: () => void,
  ) {
    const batches: ResidencyListener = {
      batch: (batch) => listener.batch(batch),
      heartbeat: () => undefined,
    };
    const stream = eventsStream(cluster);
    const subject = eventsSubject(cluster, ANY);
    this.#consumption = durable.consume({ stream, consumer, subject }, async (message) => {
      if (!takeResidency(message, batches)) onRefused();
    });
  }

  get state(): ConsumptionState {
    return this.#consumption.state;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#consumption[Symbol.asyncDispose]();
  }
}

/** Forgets what the broker keeps: the stream's events and the pictures. False: not all of it. */
export async function forgetStream(durable: DurableBus, cluster: string): Promise<boolean> {
  const subject = eventsSubject(cluster, ANY);
  const purged = await durable.purge(eventsStream(cluster), subject, Number.MAX_SAFE_INTEGER);
  const objects = durable.objects(snapshotBucket(cluster));
  const listed = await objects.list();
  const deleted = await Promise.all((listed ?? []).map(({ name }) => objects.delete(name)));
  return [purged, ...deleted].every(({ kind }) => kind === "done") && listed !== null;
}
