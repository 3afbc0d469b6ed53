import type { HeldBy, NodeId } from "../../core/index.ts";
import type { EndedHold, Purged } from "../pins/index.ts";
import { createContext, type LifecycleContext, type LifecycleParts } from "./context.ts";
import { flush } from "./flush.ts";
import { holdersOf } from "./held.ts";
import { purgeExpired, renewLease, revokeLease } from "./lease.ts";
import type { GpuSink, Lifecycle } from "./lifecycle.ts";
import { pause } from "./pause.ts";
import { pin } from "./pin.ts";
import { prune } from "./prune.ts";
import { markTransient, purgeTransient } from "./think.ts";
import { retain, unpin } from "./unpin.ts";
import { warm } from "./warm.ts";
import { WarmGate } from "./warm-gate.ts";

/** The lifecycle of a store's blocks, and what has to happen when a lease ends by itself. */
export interface OwnLifecycle extends Lifecycle {
  /** Removes what only the lease held. For the holds' `onLeaseExpired`. */
  purgeExpired(ended: EndedHold): Promise<Purged>;
  /** Who keeps a protected block from being removed, as receipts say it. */
  holdersOf(node: NodeId): readonly HeldBy[];
}

export function createLifecycle(parts: LifecycleParts): OwnLifecycle {
  return new StoreLifecycle(createContext(parts));
}

type Arguments<Name extends keyof Lifecycle> = Parameters<Lifecycle[Name]>;

class StoreLifecycle implements OwnLifecycle {
  readonly #context: LifecycleContext;
  readonly #gate: WarmGate;
  #sink: GpuSink | null = null;

  constructor(context: LifecycleContext) {
    this.#context = context;
    this.#gate = new WarmGate(context.limits);
  }

  pin(...[blocks, options]: Arguments<"pin">) {
    return pin(this.#context, blocks, options);
  }

  unpin(...[blocks, options]: Arguments<"unpin">) {
    return unpin(this.#context, blocks, options);
  }

  retain(...[blocks, options]: Arguments<"retain">) {
    return retain(this.#context, blocks, options);
  }

  prune(...[after, origin, options]: Arguments<"prune">) {
    return prune(this.#context, after, origin, options);
  }

  markTransient(...[blocks, origin, options]: Arguments<"markTransient">) {
    return markTransient(this.#context, blocks, origin, options);
  }

  purgeTransient(...[blocks, origin, options]: Arguments<"purgeTransient">) {
    return purgeTransient(this.#context, blocks, origin, options);
  }

  pause(...[blocks, options]: Arguments<"pause">) {
    return pause(this.#context, blocks, options);
  }

  renewLease(...[lease, ttlMs, options]: Arguments<"renewLease">) {
    return renewLease(this.#context, lease, ttlMs, options);
  }

  revokeLease(...[lease, origin, options]: Arguments<"revokeLease">) {
    return revokeLease(this.#context, lease, origin, options);
  }

  warm(...[blocks, options]: Arguments<"warm">) {
    return warm(this.#context, this.#gate, this.#sink, blocks, options);
  }

  flush(...[origin]: Arguments<"flush">) {
    return flush(this.#context, origin);
  }

  setGpuSink(sink: GpuSink | null): void {
    this.#sink = sink;
  }

  holdersOf(node: NodeId): readonly HeldBy[] {
    return holdersOf(this.#context, node);
  }

  purgeExpired(ended: EndedHold): Promise<Purged> {
    return purgeExpired(this.#context, ended);
  }
}
