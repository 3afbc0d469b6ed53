import type { Bus, BusMessage } from "../../bus/index.ts";
import {
  ANY,
  decodeResidencyMessage,
  eventsSubject,
  type ResidencyMessage,
} from "../../kvevents/index.ts";
import type { ResidencyListener } from "./feed.ts";

/** Hands what publishers of a cluster say to `listener`, as long as it is not disposed. */
export class BusListening implements Disposable {
  readonly #listener: ResidencyListener;
  readonly #onRefused: () => void;
  readonly #subscription: { unsubscribe(): void };

  constructor(bus: Bus, cluster: string, listener: ResidencyListener, onRefused: () => void) {
    this.#listener = listener;
    this.#onRefused = onRefused;
    const subject = eventsSubject(cluster, ANY);
    this.#subscription = bus.subscribe(subject, (message) => this.take(message));
  }

  /** Also for what a stream kept of the same subjects. */
  take({ subject, data }: Pick<BusMessage, "subject" | "data">): void {
    const read = decodeResidencyMessage(data);
    if (!read.ok || !isOfItsOwn(read.value, subject)) this.#onRefused();
    else if (read.value.kind === "batch") this.#listener.batch(read.value.batch);
    else this.#listener.heartbeat(read.value.heartbeat);
  }

  [Symbol.dispose](): void {
    this.#subscription.unsubscribe();
  }
}

/** A broker says who may publish where: what is said of another is not believed. */
function isOfItsOwn(message: ResidencyMessage, subject: string): boolean {
  const { source } = message.kind === "batch" ? message.batch : message.heartbeat;
  return subject.endsWith(`.${source.worker}.${source.rank}`);
}
