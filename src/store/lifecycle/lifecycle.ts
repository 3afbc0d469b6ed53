import type { BlockName, BlockResult, NamespaceIndex, OutcomeCounts } from "../../core/index.ts";
import type { BudgetFigures } from "../pins/index.ts";
import { createContext, type LifecycleContext, type LifecycleParts } from "./context.ts";
import { purgeExpired, renewLease, revokeLease } from "./lease.ts";
import { holdersOf } from "./outcomes.ts";
import { pause } from "./pause.ts";
import { pin, retain, unpin } from "./pin.ts";
import { flush, prune } from "./removal.ts";
import { markTransient, purgeTransient } from "./think.ts";
import { warm } from "./warm.ts";

/** Result of one lifecycle operation. */
export interface LifecycleReport {
  /**
   * One result per given block name, in order; also if a name resolves to several blocks. `prune`,
   * `flush` and `renewLease` have one result in total.
   */
  readonly results: readonly BlockResult[];
  /** Number of blocks per outcome. For `prune` and `flush`: of all blocks visited. */
  readonly counts: OutcomeCounts;
  /** The first 1,000 blocks that `prune` or `flush` could not remove. */
  readonly held: readonly HeldBlock[];
  /** Bytes that the operation moved or freed. */
  readonly bytes: number;
  readonly figures: BudgetFigures | null;
  /** Granted time to live in milliseconds, if one was requested: limited by the configuration. */
  readonly ttlMs: number | null;
  /** True if the changes survive a power loss; false without an SSD tier. */
  readonly durable: boolean;
}

export interface HeldBlock extends BlockResult {
  /** Digest in hex; null if it is unknown. */
  readonly digest: string | null;
  readonly layer: number;
}

/** Receives the progress of a long operation, at most ten times a second. */
export type OnProgress = (progress: {
  readonly doneBlocks: number;
  readonly doneBytes: number;
  /** Total number of blocks; null if it is not known in advance. */
  readonly totalBlocks: number | null;
}) => void;

export interface WarmOptions {
  /**
   * Where to load the blocks. `gpu`: into RAM, then into the memory of an engine's GPU; `deferred`
   * if no engine accepts them.
   */
  readonly target: "ram" | "gpu";
  /** Worker ids of peers that may have the blocks, the best first. */
  readonly sources: readonly string[];
  readonly onProgress?: OnProgress;
  readonly signal?: AbortSignal;
}

/**
 * Lets the caller write records together with an operation's change. Called once, in the same turn
 * of the event loop in which the operation changes pins, leases or marks, before it waits for
 * anything, in particular for the ledger's commit. Records written in the callback therefore
 * persist together with the change or not at all. Not called if nothing changes. `results`: as far
 * as known. `expected`: the report, if only that commit is outstanding. The operation returns the
 * same object when the commit is confirmed, so that the caller need not write it again.
 */
export type Remember = (results: readonly BlockResult[], expected?: LifecycleReport) => void;

export interface Remembering {
  readonly remember?: Remember;
}

/** Whether the caller may delete blocks. */
export interface Grant {
  readonly mayPurge: boolean;
  /** Text for a refusal that says how to obtain the permission: ", and KEY gives ROLE: ...". */
  readonly fix: string;
}

/** Fetches blocks from peers into RAM. */
export interface BlockSourcePort {
  /**
   * Fetches the blocks into RAM. Resolves with one result per block: `done`, `missing`, `deferred`
   * with a reason (a retry may succeed), or `rejected`. Ends in bounded time even if no peer
   * answers, and soon after the signal fires.
   */
  pull(
    blocks: readonly BlockName[],
    sources: readonly string[],
    signal: AbortSignal | null,
  ): Promise<readonly BlockResult[]>;
}

/** A block in RAM that is to be copied to the GPU of an engine of its namespace. */
export interface OfferedBlock {
  readonly namespace: NamespaceIndex;
  readonly layer: number;
  /** Digest, 32 bytes. */
  readonly digest: Uint8Array;
}

/** Copies blocks from RAM to the GPU memory of an engine. Implemented by the engine server. */
export interface GpuSink {
  /**
   * Offers the blocks to engines. Resolves with one result per block: `done`, `missing` (the block
   * was removed before the engine read it), or `deferred` with a reason. Ends in bounded time even
   * if no engine answers, and soon after the signal fires.
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
 *
 * Each operation is documented at its function.
 */
export function createLifecycle(parts: LifecycleParts) {
  const context = createContext(parts);
  const of =
    <Arguments extends unknown[], Result>(
      operation: (context: LifecycleContext, ...rest: Arguments) => Result,
    ) =>
    (...rest: Arguments): Result =>
      operation(context, ...rest);
  return {
    pin: of(pin),
    unpin: of(unpin),
    retain: of(retain),
    prune: of(prune),
    markTransient: of(markTransient),
    purgeTransient: of(purgeTransient),
    pause: of(pause),
    renewLease: of(renewLease),
    revokeLease: of(revokeLease),
    warm: of(warm),
    flush: of(flush),
    /** Sets where warm commands with target `gpu` copy their blocks; null removes it. */
    setGpuSink(sink: GpuSink | null): void {
      context.gpuSink = sink;
    },
    purgeExpired: of(purgeExpired),
    holdersOf: of(holdersOf),
  };
}

/** All lifecycle operations, including those that only the agent itself calls. */
export type OwnLifecycle = ReturnType<typeof createLifecycle>;

/** The lifecycle operations that commands may call. */
export type Lifecycle = Omit<OwnLifecycle, "purgeExpired" | "holdersOf">;
