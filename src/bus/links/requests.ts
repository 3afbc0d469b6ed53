import { type Clock, HearthError } from "../../core/index.ts";
import type { BusMessage, RequestOptions, RequestOutcome } from "../bus.ts";
import type { Incoming } from "./link.ts";

interface Waiting {
  settle(outcome: RequestOutcome): void;
}

/** Requests that wait for an answer: one subject for all of them, a last token for each. */
export class Requests {
  readonly #inbox: string;
  readonly #max: number;
  readonly #waiting = new Map<string, Waiting>();
  #count = 0;

  /** `inbox`: a subject that nobody else uses. */
  constructor(inbox: string, max: number) {
    this.#inbox = inbox;
    this.#max = max;
  }

  /** What to subscribe for the answers. */
  get pattern(): string {
    return `${this.#inbox}.*`;
  }

  get isFull(): boolean {
    return this.#waiting.size >= this.#max;
  }

  /** Where the answer is to go, and when it is there. */
  open(clock: Clock, options: RequestOptions): { reply: string; outcome: Promise<RequestOutcome> } {
    const token = (++this.#count).toString(36);
    const outcome = new Promise<RequestOutcome>((resolve, reject) => {
      const end = () => {
        this.#waiting.delete(token);
        timer[Symbol.dispose]();
        options.signal?.removeEventListener("abort", onAbort);
      };
      const onAbort = () => {
        end();
        reject(new HearthError("ABORTED", "the request was given up"));
      };
      const settle = (settled: RequestOutcome) => {
        end();
        resolve(settled);
      };
      const timer = clock.after(options.timeoutMs, () => settle({ kind: "timeout" }));
      options.signal?.addEventListener("abort", onAbort, { once: true });
      this.#waiting.set(token, { settle });
    });
    return { reply: `${this.#inbox}.${token}`, outcome };
  }

  /** An answer came. One that nobody waits for any more is left alone. */
  deliver({ status, ...message }: Incoming): void {
    const waiting = this.#waiting.get(message.subject.slice(this.#inbox.length + 1));
    if (waiting === undefined) return;
    if (status === 503) waiting.settle({ kind: "noResponders" });
    else waiting.settle({ kind: "reply", message: message satisfies BusMessage });
  }

  /** The answer to this one will not come. */
  giveUp(reply: string): void {
    this.#waiting.get(reply.slice(this.#inbox.length + 1))?.settle({ kind: "unreachable" });
  }

  giveUpAll(): void {
    for (const waiting of [...this.#waiting.values()]) waiting.settle({ kind: "unreachable" });
  }
}
