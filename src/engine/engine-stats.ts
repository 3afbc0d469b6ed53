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
  /** Copied between slots and engines' GPU memory. */
  gpuStoredBytes: number;
  gpuLoadedBytes: number;
  /** Copies that a device, or its driver, did not make. */
  gpuFailures: number;
  /** Slots that a device may touch until the process ends: they are never used again. */
  gpuLeakedSlots: number;
}

export function emptyEngineStats(): EngineStats {
  return {
    connected: 0,
    refusedPeers: 0,
    cutOff: 0,
    quarantines: 0,
    faults: 0,
    gpuStoredBytes: 0,
    gpuLoadedBytes: 0,
    gpuFailures: 0,
    gpuLeakedSlots: 0,
  };
}
