import { TRANSPORTS, type TransportName } from "../transport.ts";
import { PULL_OUTCOMES, type PullerStats, type PullOutcome } from "./puller.ts";

/** Counts since the start. */
export class Tallies {
  readonly #outcomes = Object.fromEntries(PULL_OUTCOMES.map((name) => [name, 0])) as Record<
    PullOutcome,
    number
  >;
  readonly #byTransport = Object.fromEntries(
    TRANSPORTS.map((name) => [name, { blocks: 0, bytes: 0, fallbacks: 0 }]),
  ) as Record<TransportName, { blocks: number; bytes: number; fallbacks: number }>;
  corrupt = 0;
  hedges = 0;
  hedgesWon = 0;
  sharedPulls = 0;
  #fallbacks = 0;

  ended(outcome: PullOutcome): void {
    this.#outcomes[outcome]++;
  }

  came(transport: TransportName, bytes: number): void {
    this.#byTransport[transport].blocks++;
    this.#byTransport[transport].bytes += bytes;
  }

  /** This transport failed, and another one took over. */
  fellBack(transport: TransportName): void {
    this.#fallbacks++;
    this.#byTransport[transport].fallbacks++;
  }

  stats(now: Pick<PullerStats, "inFlightBytes" | "waiting">): PullerStats {
    return {
      outcomes: { ...this.#outcomes },
      corrupt: this.corrupt,
      hedges: this.hedges,
      hedgesWon: this.hedgesWon,
      fallbacks: this.#fallbacks,
      sharedPulls: this.sharedPulls,
      ...now,
      byTransport: structuredClone(this.#byTransport),
    };
  }
}
