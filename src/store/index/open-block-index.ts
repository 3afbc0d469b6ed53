import type { Clock } from "../../core/index.ts";
import type { BlockIndex } from "./block-index.ts";
import { openLine } from "./open-line.ts";
import type { IndexOwner, OpenOrder } from "./protocol.ts";
import { WriteBehindIndex } from "./write-behind.ts";

export interface BlockIndexOptions {
  /** Made where it is missing. */
  readonly folder: string;
  /** Names this run of the agent; never used by another. */
  readonly incarnation: bigint;
  readonly owner: IndexOwner;
  readonly clock: Clock;
  /** Gives up waiting for a disk that hangs. */
  readonly signal?: AbortSignal;
  /** How long another program may keep the index locked before it is set aside. */
  readonly busyMs?: number;
  /** Changes that may wait to be committed. */
  readonly pendingMax?: number;
}

const BUSY_MS = 2_000;

/**
 * Opens the index in a folder, or makes one. An index that cannot be used is set aside
 * (`state.setAside`) and the new one is empty; where the disk does not even allow that, the index
 * is `failing`, keeps changes waiting and opens as soon as it can: `previous.incarnation` is null
 * either way, and the caller reads the headers of all blocks. Throws HearthError INDEX_IN_USE where
 * another agent has it, INDEX_FOREIGN where it belongs to another worker or machine, ABORTED.
 */
export async function openBlockIndex(options: BlockIndexOptions): Promise<BlockIndex> {
  const { folder, incarnation, owner, clock, signal, pendingMax } = options;
  const busyMs = options.busyMs ?? BUSY_MS;
  const wallMs = clock.wallMs();
  const openOrder: OpenOrder = { kind: "open", folder, owner, wallMs, busyMs, isLate: false };
  const { line, answer } = await openLine(openOrder, "opened", signal);
  const limits = pendingMax === undefined ? {} : { pendingMax };
  return new WriteBehindIndex(line, answer, { clock, incarnation, openOrder, ...limits });
}
