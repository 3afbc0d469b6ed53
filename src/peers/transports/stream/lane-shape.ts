/** How the payload of stream links is carried on a host. */
export interface LaneShape {
  /** Connections of each link: enough that blocks on their way seldom wait for each other. */
  readonly lanes: number;
  /** Threads that serve the lanes of all links. */
  readonly threads: number;
  /**
   * 0: the lanes keep what is on its way to a near host small, and the kernel sizes the sockets'
   * buffers for others as they need it. A size of ours would be cut to `net.core.rmem_max`, which
   * most hosts leave at 208 KiB, and would never grow.
   */
  readonly socketBytes: number;
}

const LANES = 4;
const THREADS_MAX = 4;
/** Sealing is done by a thread, and the engines need the cores for other things. */
const CORES_A_THREAD = 4;

export function laneShape(cores: number): LaneShape {
  const threads = Math.min(THREADS_MAX, Math.max(1, Math.floor(cores / CORES_A_THREAD)));
  return { lanes: LANES, threads, socketBytes: 0 };
}
