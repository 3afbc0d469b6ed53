/** What the server counted since it started. */
export interface EngineStats {
  connected: number;
  /** Not let in: wrong user, or one too many. */
  refusedPeers: number;
  /** Lease overstayed, answers unread, no hello. */
  cutOff: number;
  /** Connections that ended while their process held slots. */
  quarantines: number;
  /** Failures of our own while a frame was handled. */
  faults: number;
}

export function emptyEngineStats(): EngineStats {
  return { connected: 0, refusedPeers: 0, cutOff: 0, quarantines: 0, faults: 0 };
}
