import type {
  BlockName,
  BlockResult,
  CommandOrigin,
  HeldBy,
  NamespaceIndex,
  NodeId,
  OutcomeCounts,
} from "../../core/index.ts";
import type { BudgetFigures, EndedHold, Purged } from "../pins/index.ts";
import { createContext, type LifecycleContext, type LifecycleParts } from "./context.ts";
import { purgeExpired, renewLease, revokeLease } from "./lease.ts";
import { holdersOf } from "./outcomes.ts";
import { pause } from "./pause.ts";
import { pin, retain, unpin } from "./pin.ts";
import { flush, prune } from "./removal.ts";
import { markTransient, purgeTransient } from "./think.ts";
import { WarmGate, warm } from "./warm.ts";

/** What one operation came to. */
export interface LifecycleReport {
  /**
   * One for each block name that was given, in order; a name of several blocks has one. Of `prune`,
   * `flush` and `renewLease` one for all.
   */
  readonly results: readonly BlockResult[];
  /** By blocks; for `prune` and `flush` over all blocks they met. */
  readonly counts: OutcomeCounts;
  /** Blocks that stayed although the operation met them, the first 1,000; of prune and flush. */
  readonly held: readonly HeldBlock[];
  /** Bytes moved or freed. */
  readonly bytes: number;
  readonly figures: BudgetFigures | null;
  /** Granted, where a duration was asked for: cut to what the configuration allows. */
  readonly ttlMs: number | null;
  /** What is done survives a loss of power; false without an SSD tier. */
  readonly durable: boolean;
}

export interface HeldBlock extends BlockResult {
  /** Digest in hex; null where it is not known. */
  readonly digest: string | null;
  readonly layer: number;
}

/** How far a long operation has come; called at most ten times a second. */
export type OnProgress = (progress: {
  readonly doneBlocks: number;
  readonly doneBytes: number;
  /** Null: not known in advance. */
  readonly totalBlocks: number | null;
}) => void;

export interface WarmOptions {
  /** `gpu`: to RAM, then offered to the engine's sink; `deferred` without one. */
  readonly target: "ram" | "gpu";
  /** Peers that are said to have the blocks, by worker id; the best first. */
  readonly sources: readonly string[];
  readonly onProgress?: OnProgress;
  readonly signal?: AbortSignal;
}

/**
 * Called once, in the very turn in which holds or marks change and before anything is waited for
 * behind that (a commit of the ledger above all): what is written down in it lasts with the change
 * or not at all. `results`: as far as they are known then. Not called where nothing changes.
 * `expected`: where nothing but that commit is waited for, what is reported once it is confirmed:
 * this very object then, so that who wrote it down need not do so again.
 */
export type Remember = (results: readonly BlockResult[], expected?: LifecycleReport) => void;

export interface Remembering {
  readonly remember?: Remember;
}

/** Whether the caller may delete blocks. */
export interface Grant {
  readonly mayPurge: boolean;
  /** How it gets the grant, for the reason of a refusal: ", and KEY gives ROLE: ...". */
  readonly fix: string;
}

/** Brings blocks from other hosts into RAM. */
export interface BlockSourcePort {
  /**
   * One result for each: `done`, `missing`, `deferred` with the reason (it may be had later), or
   * `rejected`. Ends by itself, also where nobody answers; and soon once the signal fires.
   */
  pull(
    blocks: readonly BlockName[],
    sources: readonly string[],
    signal: AbortSignal | null,
  ): Promise<readonly BlockResult[]>;
}

/** A block in RAM that is wanted on the GPU of an engine of its namespace. */
export interface OfferedBlock {
  readonly namespace: NamespaceIndex;
  readonly layer: number;
  /** 32 bytes. */
  readonly digest: Uint8Array;
}

/** Takes blocks from RAM to an engine's GPU: the engine plane, where engines ask for them. */
export interface GpuSink {
  /**
   * One result for each: `done`, `missing` (it was gone when the engine came for it), or `deferred`
   * with the reason. Ends by itself, also where no engine answers; and soon once the signal fires.
   */
  offer(blocks: readonly OfferedBlock[], signal: AbortSignal): Promise<readonly BlockResult[]>;
}

/**
 * What commands do to this host's blocks, on all tiers. Promises:
 *
 * - Nothing blocks the event loop for more than some milliseconds, however large the tree.
 * - What is reported `done` survives a crash of any kind where there is an SSD tier; where the disk
 *   does not confirm that in time, the outcome is `deferred`.
 * - Blocks that are locked, pinned, leased or followed by such blocks are never removed: `held`.
 * - Names that lead to several blocks (namespaces, layers) mean all of them; the worst outcome is
 *   reported. A name that leads nowhere is `missing` and changes nothing.
 */
export interface Lifecycle {
  /** Counted; on this host, not in RAM: a pinned block may give up its place there for SSD. */
  pin(
    blocks: readonly BlockName[],
    options: Remembering & { readonly owner: string; readonly ttlMs: number | null },
  ): Promise<LifecycleReport>;
  /** `already` where the owner has no pin on the block. */
  unpin(
    blocks: readonly BlockName[],
    options: Remembering & { readonly owner: string },
  ): Promise<LifecycleReport>;
  /** Preference without promise; priority 0 takes the owner's preference back. */
  retain(
    blocks: readonly BlockName[],
    options: Remembering & {
      readonly owner: string;
      readonly priority: number;
      readonly idleMs: number | null;
    },
  ): Promise<LifecycleReport>;

  /** Removes all that follows the block; the block stays. `results` has one entry. */
  prune(
    after: BlockName,
    origin: CommandOrigin,
    options?: { readonly onProgress?: OnProgress; readonly signal?: AbortSignal },
  ): Promise<LifecycleReport>;

  /**
   * Never written to SSD from now on; a copy there is deleted. Without the grant a block whose only
   * copy that is stays as it is: `rejected`.
   */
  markTransient(
    blocks: readonly BlockName[],
    origin: CommandOrigin,
    options: Remembering & { readonly grant: Grant },
  ): Promise<LifecycleReport>;
  /** Removes those that are transient; others are `rejected`. */
  purgeTransient(
    blocks: readonly BlockName[],
    origin: CommandOrigin,
    options?: Remembering,
  ): Promise<LifecycleReport>;

  /**
   * To SSD at once, out of RAM, kept by the lease. Under a name that exists: adds and renews. If a
   * lease's time is over, its blocks are removed only if all who paused under it had the grant.
   */
  pause(
    blocks: readonly BlockName[],
    options: Remembering & {
      readonly lease: string;
      readonly owner: string;
      readonly ttlMs: number | null;
      readonly grant: Grant;
    },
  ): Promise<LifecycleReport>;
  /**
   * `results` has one entry: `done`, `missing`, or `rejected`: without the grant the lease of
   * another owner gets no shorter time. An owner without it may shorten its own, which then removes
   * nothing at its end.
   */
  renewLease(
    lease: string,
    ttlMs: number,
    options: Remembering & { readonly owner: string; readonly grant: Grant },
  ): Promise<LifecycleReport>;
  /**
   * Ends it and removes what nothing else holds or builds upon. One result for each block, a
   * `HeldBlock` that says which it is; what `remember` is told says only how many.
   */
  revokeLease(
    lease: string,
    origin: CommandOrigin,
    options?: Remembering,
  ): Promise<LifecycleReport>;

  warm(blocks: readonly BlockName[], options: WarmOptions): Promise<LifecycleReport>;

  /** Removes everything that nothing holds. */
  flush(origin: CommandOrigin): Promise<LifecycleReport>;

  /** From now on warm blocks for a GPU are offered here; null takes it away. */
  setGpuSink(sink: GpuSink | null): void;
}

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
