import type { Clock } from "../../core/index.ts";
import type { Holds, Sessions } from "../pins/index.ts";
import type { SsdParts } from "../ssd/ssd-parts.ts";
import type { TieredStore } from "../tiered-store.ts";
import { Durability } from "./durability.ts";
import type { BlockSourcePort } from "./lifecycle.ts";
import { NameResolver } from "./resolve-names.ts";

/** What may change while the agent runs. */
export interface LifecycleLimits {
  /** The longest a lease may be, and how long it is where nobody said. */
  readonly leaseTtlMaxMs: number;
  /** Of all warm commands together: bytes on their way from SSD, and reads under way. */
  readonly warmBytesMax: number;
  readonly warmReads: number;
}

export interface LifecycleParts {
  readonly store: TieredStore;
  readonly holds: Holds;
  readonly sessions: Pick<Sessions, "endAt" | "holdersOf">;
  readonly clock: Clock;
  readonly log: SsdParts["log"];
  readonly limits: () => LifecycleLimits;
  /** Null: no other host is asked. */
  readonly peers: BlockSourcePort | null;
  /** Fires when the agent stops: what is at work ends with what it has done so far. */
  readonly signal: AbortSignal;
}

/** What all operations share. */
export interface LifecycleContext extends LifecycleParts {
  readonly names: NameResolver;
  readonly durability: Durability;
}

export function createContext(parts: LifecycleParts): LifecycleContext {
  const names = new NameResolver(parts.store);
  return { ...parts, names, durability: new Durability(parts.store, parts.holds) };
}
