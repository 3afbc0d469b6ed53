import type { HeldBy, NodeId } from "../../core/index.ts";
import type { LifecycleContext } from "./context.ts";
import { heldBlock, holdersOf, isHeldByWriteAlone } from "./held.ts";
import type { HeldBlock } from "./lifecycle.ts";

/** Blocks that stayed of which the report says who holds them. */
const LISTED = 1_000;

/**
 * What a command that walks over many blocks could not remove. Writes that alone keep a block are
 * called off, and it is looked at again in another pass.
 */
export class KeptBlocks {
  readonly #context: LifecycleContext;
  #listed: HeldBlock[] = [];
  #count = 0;
  #cancelled: Promise<void>[] = [];
  #mayCancel = true;

  constructor(context: LifecycleContext) {
    this.#context = context;
  }

  get count(): number {
    return this.#count;
  }

  get listed(): readonly HeldBlock[] {
    return this.#listed;
  }

  /** Who holds the first of them. */
  get firstHolders(): readonly HeldBy[] {
    return this.#listed[0]?.by ?? [];
  }

  /** Another pass over everything: who was held may not be any more. */
  begin(mayCancel: boolean): void {
    this.#listed = [];
    this.#count = 0;
    this.#mayCancel = mayCancel;
  }

  /** A held block: calls its write off where nothing else keeps it, else counts it. */
  meet(node: NodeId): void {
    if (this.#mayCancel && isHeldByWriteAlone(this.#context, node)) {
      this.#cancelled.push(this.#context.store.ssd!.writer.cancel(node));
    } else this.add(node, null);
  }

  /** It stays. `by` null: whoever holds it now. */
  add(node: NodeId, by: readonly HeldBy[] | null): void {
    this.#count++;
    if (this.#listed.length >= LISTED) return;
    this.#listed.push(heldBlock(this.#context, node, by ?? holdersOf(this.#context, node)));
  }

  /** Waits for writes that were called off; false where there were none, or the disk hangs. */
  async cancelledAreOver(): Promise<boolean> {
    const { ssd } = this.#context.store;
    const cancelled = this.#cancelled;
    this.#cancelled = [];
    if (cancelled.length === 0 || ssd === null) return false;
    return (await ssd.orHung(Promise.all(cancelled))) !== null;
  }
}
