/** What was done for others since the start. */
export interface ServeCounts {
  pulls: number;
  /** Requests that are no pulls. */
  questions: number;
  /** Items of pulls, by how they were answered. */
  blocks: number;
  absent: number;
  busy: number;
  tooLong: number;
  refused: number;
  /** Payload of the blocks. */
  bytes: number;
  /** Requests for namespaces that are not served or not known. */
  foreign: number;
  summariesBuilt: number;
}

export interface ServeStats extends Readonly<ServeCounts> {
  /** Under way now; and for how many peers. */
  readonly peers: number;
  readonly openPulls: number;
  readonly lentBlocks: number;
  readonly lentBytes: number;
  readonly reads: number;
}

export function noCounts(): ServeCounts {
  const items = { blocks: 0, absent: 0, busy: 0, tooLong: 0, refused: 0, bytes: 0 };
  return { pulls: 0, questions: 0, ...items, foreign: 0, summariesBuilt: 0 };
}
