import type {
  BREAKER_STATES,
  PEER_STATES,
  PULL_OUTCOME_LABELS,
  SERVED_OUTCOMES,
  TransportLabel,
} from "./catalogue-peers.ts";

type Counts<Names extends readonly string[]> = Readonly<Record<Names[number], number>>;

/** Pulling from other hosts and serving them. Counters since the start. */
export interface PeersSnapshot {
  readonly outcomes: Counts<typeof PULL_OUTCOME_LABELS>;
  readonly byTransport: Readonly<
    Record<
      TransportLabel,
      {
        readonly blocks: number;
        readonly bytes: number;
        readonly fallbacks: number;
        readonly inboundLinks: number;
      }
    >
  >;
  readonly hedges: number;
  readonly hedgesWon: number;
  readonly sharedPulls: number;
  readonly corrupt: number;
  readonly inFlightBytes: number;
  readonly waiting: number;
  readonly states: Counts<typeof PEER_STATES>;
  readonly breakers: Counts<typeof BREAKER_STATES>;
  readonly served: Counts<typeof SERVED_OUTCOMES>;
  readonly servedBytes: number;
  readonly lentBytes: number;
  readonly summaryBytes: number;
  readonly wrongSummaries: number;
  readonly announcements: Counts<readonly ["heard", "refused", "dropped"]>;
  /** Since 1970. */
  readonly certificateEndsSeconds: number;
}
