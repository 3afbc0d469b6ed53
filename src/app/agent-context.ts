import type { Config } from "../config/index.ts";
import type { Clock, Random } from "../core/index.ts";
import type { Native, Rdma, Region } from "../native/index.ts";
import type { Health, Logger } from "../observability/index.ts";
import type { PeerSource } from "../peers/index.ts";
import type { Namespaces, TieredStore } from "../store/index.ts";

/** Dependencies shared by the services of an agent. */
export interface AgentContext {
  readonly config: Config;
  readonly native: Native;
  readonly clock: Clock;
  readonly random: Random;
  readonly logger: Logger;
  readonly health: Health;
  readonly region: Region;
  /** The host's RDMA devices. Null if RDMA is disabled or unusable. */
  readonly rdma: Rdma | null;
  readonly store: TieredStore;
  readonly namespaces: Namespaces;
  readonly incarnation: bigint;
  /** Fetches from peers the blocks that a `warm` command names and this host lacks. */
  readonly source: PeerSource;
}
