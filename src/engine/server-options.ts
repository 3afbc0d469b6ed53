import type { Clock } from "../core/index.ts";
import type { Hashing } from "../identity/index.ts";
import type { Gpus, Native, Queue } from "../native/index.ts";
import type { FrameCounts, Health, LookupOutcome } from "../observability/index.ts";
import type { BlockStore, Namespaces } from "../store/index.ts";
import type { CommandPort } from "./engine-handlers.ts";
import type { EngineLimits } from "./limits.ts";

export interface EngineServerOptions {
  readonly socketPath: string;
  /** Group that may connect beside the agent's own; null = the agent's. */
  readonly socketGroup: number | null;
  readonly limits: EngineLimits;
  readonly store: BlockStore;
  readonly namespaces: Namespaces;
  readonly native: Native;
  readonly hashing: Hashing;
  readonly queue: Queue;
  readonly clock: Clock;
  readonly incarnation: bigint;
  /** Copies between slots and engines' GPU memory; null, or none: engines do so by themselves. */
  readonly gpus?: Gpus | null;
  /** Where engines' commands go; null, or none: this agent takes none from them. */
  readonly commands?: CommandPort | null;
  readonly frames: FrameCounts;
  /** Where an engine that holds nearly everything is reported. */
  readonly health?: Pick<Health, "raise">;
  /** One request's blocks were looked up in RAM. */
  lookedUp(tier: "ram" | "ssd" | "peer", outcome: LookupOutcome, seconds: number): void;
  /** Called with one line and fields for what an operator should see. */
  log(level: "info" | "warn" | "error", text: string, fields?: Record<string, unknown>): void;
}
