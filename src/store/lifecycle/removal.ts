import type { NodeId, OutcomeCounts } from "../../core/index.ts";
import { crashPoint } from "../../native/index.ts";
import { Tier } from "../blocks/index.ts";
import type { Cause } from "../departures.ts";
import type { LifecycleContext } from "./context.ts";

/** Files on their way out for one command, beyond which it waits for some to be gone. */
const FILES_MAX = 2_048;

/** Takes blocks off all tiers of this host for one command. */
export class Removal {
  blocks = 0;
  bytes = 0;
  /** Of the blocks, those that had a file. */
  files = 0;
  /** Files that could not be removed; they are tried again. */
  stuck = 0;
  /** The disk hangs: nothing more should be asked of it. */
  hung = false;
  /** Blocks of which an engine still has a copy on its GPU. */
  onGpu = 0;
  readonly #context: LifecycleContext;
  readonly #cause: Cause;
  #leaving: Promise<boolean>[] = [];

  constructor(context: LifecycleContext, cause: Cause) {
    this.#context = context;
    this.#cause = cause;
  }

  /**
   * Takes an unprotected block off every tier of ours. Null where it had no file; else true when
   * that is gone, false where it could not be removed. The node may vanish.
   */
  drop(node: NodeId): Promise<boolean> | null {
    const { table, ram, landings } = this.#context.store;
    landings.removedNode(table, node);
    const inRam = table.isResident(node, Tier.ram);
    if (table.isResident(node, Tier.gpu)) this.onGpu++;
    this.blocks++;
    this.bytes += table.bytesOf(node);
    // From SSD first: without either the node is gone.
    const gone = table.isResident(node, Tier.ssd) ? this.dropFile(node) : null;
    if (inRam) ram.drop(node, this.#cause);
    return gone;
  }

  /** Takes a block off SSD alone. */
  dropFile(node: NodeId): Promise<boolean> {
    const { ssd } = this.#context.store;
    this.files++;
    const gone = ssd!.room.drop(node, this.#cause).then((isGone) => {
      if (!isGone) this.stuck++;
      return isGone;
    });
    this.#leaving.push(gone);
    return gone;
  }

  /** Whether so many files are on their way out that one should wait. */
  get isFull(): boolean {
    return this.#leaving.length >= FILES_MAX;
  }

  /** Resolves when the files so far are gone, or cannot be removed, or the disk hangs. */
  async room(): Promise<void> {
    const { ssd } = this.#context.store;
    if (this.#leaving.length === 0 || ssd === null) return;
    const leaving = this.#leaving;
    this.#leaving = [];
    if ((await ssd.orHung(Promise.all(leaving))) === null) this.hung = true;
  }

  /** The end: true where what is gone is gone for good; `stuck` says how much is not. */
  async end(): Promise<boolean> {
    await this.room();
    crashPoint("removal.over");
    return !this.hung && (await this.#context.durability.removals());
  }
  /** What became of all blocks that were met, once it is known what `end` said. */
  counts(isDurable: boolean, held: number): OutcomeCounts {
    const deferred = isDurable ? this.stuck : this.files;
    const done = this.blocks - deferred;
    return { done, already: 0, missing: 0, held, deferred, rejected: 0 };
  }
}
