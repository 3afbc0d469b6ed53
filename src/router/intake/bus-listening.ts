import type { Bus, BusMessage } from "../../bus/index.ts";
import {
  ANY,
  decodeResidencyMessage,
  eventsSubject,
  type ResidencyMessage,
} from "../../events/index.ts";
import type { ResidencyListener } from "./feed.ts";

/** Hands what publishers of a cluster say to `listener`, as long as it is not disposed. */
export class BusListening implements Disposable {
  readonly #subscription: { unsubscribe(): void };

  constructor(bus: Bus, cluster: string, listener: ResidencyListener, onRefused: () => void) {
    const subject = eventsSubject(cluster, ANY);
    this.#subscription = bus.subscribe(subject, (message) => {
      if (!takeResidency(message, listener)) onRefused();
    });
  }

  [Symbol.dispose](): void {
    this.#subscription.unsubscribe();
  }
}

/** False: it cannot be read, or is said of another than its subject names. */
export function takeResidency(
  { subject, data }: Pick<BusMessage, "subject" | "data">,
  listener: ResidencyListener,
): boolean {
  const read = decodeResidencyMessage(data);
  if (!read.ok || !isOfItsOwn(read.value, subject)) return false;
  if (read.value.kind === "batch") listener.batch(read.value.batch);
  else listener.heartbeat(read.value.heartbeat);
  return true;
}

/** A broker says who may publish where: what is said of another is not believed. */
function isOfItsOwn(message: ResidencyMessage, subject: string): boolean {
  const { source } = message.kind === "batch" ? message.batch : message.heartbeat;
  return subject.endsWith(`.${source.worker}.${source.rank}`);
}
