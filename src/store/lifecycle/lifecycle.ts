import type {
  BlockName,
  BlockResult,
  CommandOrigin,
  HeldBy,
  NamespaceIndex,
  NodeId,
  OutcomeCounts,
} from "../../core/index.ts";
import type { BudgetFigures, EndedPin, Purged } from "../pins/index.ts";
import { createContext, type LifecycleContext, type LifecycleParts } from "./context.ts";
import { purgeExpired, renewLease, revokeLease } from "./lease.ts";
import { holdersOf } from "./outcomes.ts";
import { pause } from "./pause.ts";
import { pin, retain, unpin } from "./pin.ts";
import { flush, prune } from "./removal.ts";
import { markTransient, purgeTransient } from "./think.ts";
import { WarmGate, warm } from "./warm.ts";

/** Result of one operation. */
export interface LifecycleReport {
  /**
   * One result per given block name, in order; a name of several blocks has one. `prune`, `flush`
   * and `renewLease` have one result in total.
   */
  readonly results: readonly BlockResult[];
  /** Outcomes by block; for `prune` and `flush` over all blocks visited. */
  readonly counts: OutcomeCounts;
  /** The first 1,000 blocks that `prune` or `flush` could not remove. */
  readonly held: readonly HeldBlock[];
  /** Bytes moved or freed. */
  readonly bytes: number;
  readonly figures: BudgetFigures | null;
  /** Granted duration, if one was requested: limited by the configuration. */
  readonly ttlMs: number | null;
  /** Whether the changes survive a power loss; false without an SSD tier. */
  readonly durable: boolean;
}

export interface HeldBlock extends BlockResult {
  /** Digest in hex; null if unknown. */
  readonly digest: string | null;
  readonly layer: number;
}

/** Reports the progress of a long operation, at most ten times a second. */
export type OnProgress = (progress: {
  readonly doneBlocks: number;
  readonly doneBytes: number;
  /** Null if not known in advance. */
  readonly totalBlocks: number | null;
}) => void;

export interface WarmOptions {
  /** `gpu`: to RAM, then offered to the engine's sink. `deferred` without a sink. */
  readonly target: "ram" | "gpu";
  /** Worker ids of peers that may have the blocks, the best first. */
  readonly sources: readonly string[];
  readonly onProgress?: OnProgress;
  readonly signal?: AbortSignal;
}

/**
 * Called once, in the same turn of the event loop in which pins, leases or marks change, before the
 * operation waits for anything (in particular for the ledger's commit). Records written in the
 * callback therefore persist together with the change or not at all. `results`: as far as known.
 * Not called if nothing changes. `expected`: the report if only that commit is outstanding. The
 * operation returns the same object once the commit is confirmed, so that the caller need not write
 * it again.
 */
export type Remember = (results: readonly BlockResult[], expected?: LifecycleReport) => void;

export interface Remembering {
  readonly remember?: Remember;
}

/** Permission of the caller to delete blocks. */
export interface Grant {
  readonly mayPurge: boolean;
  /**
   * How to obtain the permission, appended to the reason of a refusal: ", and KEY gives ROLE: ...".
   */
  readonly fix: string;
}

/** Fetches blocks from peers into RAM. */
export interface BlockSourcePort {
  /**
   * One result per block: `done`, `missing`, `deferred` with the reason (a retry may succeed), or
   * `rejected`. Ends in bounded time even if no peer answers, and soon after the signal fires.
   */
  pull(
    blocks: readonly BlockName[],
    sources: readonly string[],
    signal: AbortSignal | null,
  ): Promise<readonly BlockResult[]>;
}

/** A block in RAM to be copied to the GPU of an engine of its namespace. */
export interface OfferedBlock {
  readonly namespace: NamespaceIndex;
  readonly layer: number;
  /** 32 bytes. */
  readonly digest: Uint8Array;
}

/** Copies blocks from RAM to an engine's GPU. Implemented by the engine plane. */
export interface GpuSink {
  /**
   * One result per block: `done`, `missing` (the block was removed before the engine read it), or
   * `deferred` with the reason. Ends in bounded time even if no engine answers, and soon after the
   * signal fires.
   */
  offer(blocks: readonly OfferedBlock[], signal: AbortSignal): Promise<readonly BlockResult[]>;
}

/**
 * Commands on the blocks of this host, on all tiers. Guarantees:
 *
 * - No operation blocks the event loop for more than some milliseconds, however large the tree.
 * - With an SSD tier, a result `done` survives any crash. If the disk does not confirm in time, the
 *   outcome is `deferred`.
 * - A block that is locked, pinned, leased, or an ancestor of such a block is never removed: the
 *   outcome is `held`.
 * - A name that resolves to several blocks (namespaces, layers) means all of them, and the worst
 *   outcome is reported. A name that resolves to none is `missing` and changes nothing.
 */
export interface Lifecycle {
  /**
   * Pins are counted. They protect the block on this host, not in RAM: it may leave RAM for SSD.
   */
  pin(
    blocks: readonly BlockName[],
    options: Remembering & { readonly owner: string; readonly ttlMs: number | null },
  ): Promise<LifecycleReport>;
  /** `already` if the owner has no pin on the block. */
  unpin(
    blocks: readonly BlockName[],
    options: Remembering & { readonly owner: string },
  ): Promise<LifecycleReport>;
  /** Sets a soft pin. Priority 0 removes the owner's soft pin. */
  retain(
    blocks: readonly BlockName[],
    options: Remembering & {
      readonly owner: string;
      readonly priority: number;
      readonly idleMs: number | null;
    },
  ): Promise<LifecycleReport>;

  /** Removes all descendants of the block, but not the block itself. `results` has one entry. */
  prune(
    after: BlockName,
    origin: CommandOrigin,
    options?: { readonly onProgress?: OnProgress; readonly signal?: AbortSignal },
  ): Promise<LifecycleReport>;

  /**
   * Excludes the blocks from SSD and deletes copies there. Without the grant, a block whose only
   * copy is on SSD is unchanged: `rejected`.
   */
  markTransient(
    blocks: readonly BlockName[],
    origin: CommandOrigin,
    options: Remembering & { readonly grant: Grant },
  ): Promise<LifecycleReport>;
  /** Removes transient blocks; others are `rejected`. */
  purgeTransient(
    blocks: readonly BlockName[],
    origin: CommandOrigin,
    options?: Remembering,
  ): Promise<LifecycleReport>;

  /**
   * Writes the blocks to SSD, removes them from RAM and leases them. An existing lease of that name
   * is extended and renewed. When the lease expires, its blocks are removed only if every caller
   * that paused under it had the grant.
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
   * `results` has one entry: `done`, `missing` or `rejected`. Without the grant a caller cannot
   * shorten another owner's lease. An owner without the grant may shorten its own lease, whose
   * expiry then removes no blocks.
   */
  renewLease(
    lease: string,
    ttlMs: number,
    options: Remembering & { readonly owner: string; readonly grant: Grant },
  ): Promise<LifecycleReport>;
  /**
   * Ends the lease and removes its blocks that have no other owner and no descendants. One
   * `HeldBlock` result per block. `remember` receives only the counts.
   */
  revokeLease(
    lease: string,
    origin: CommandOrigin,
    options?: Remembering,
  ): Promise<LifecycleReport>;

  warm(blocks: readonly BlockName[], options: WarmOptions): Promise<LifecycleReport>;

  /** Removes every block that is not protected. */
  flush(origin: CommandOrigin): Promise<LifecycleReport>;

  /** Sets the sink for warm commands with target `gpu`; null removes it. */
  setGpuSink(sink: GpuSink | null): void;
}

/** The lifecycle, with the operation to run when a lease expires. */
export interface OwnLifecycle extends Lifecycle {
  /** Removes the blocks that only the lease protected. For `onLeaseExpired` of the holds. */
  purgeExpired(ended: EndedPin): Promise<Purged>;
  /** Owners that protect a block, in the format of receipts. */
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

  purgeExpired(ended: EndedPin): Promise<Purged> {
    return purgeExpired(this.#context, ended);
  }
}
