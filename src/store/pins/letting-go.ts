import type { NodeId } from "../../core/index.ts";
import type { Hold } from "./hold.ts";
import type { HoldPart } from "./hold-blocks.ts";
import type { HoldBook } from "./hold-book.ts";

/** An owner lets go of blocks, of each once; what that changes is written down at the end. */
export class LettingGo {
  readonly #book: HoldBook;
  readonly #kind: "pin" | "retain";
  readonly #owner: string;
  readonly #changed = new Map<HoldPart, Hold>();
  readonly #over = new Set<Hold>();

  constructor(book: HoldBook, kind: "pin" | "retain", owner: string) {
    this.#book = book;
    this.#kind = kind;
    this.#owner = owner;
  }

  /** False where the owner has no hold on it. */
  letGo(node: NodeId): boolean {
    const hold = this.#book.index.endsFirst(this.#kind, this.#owner, node);
    if (hold === null) return false;
    this.#changed.set(this.#book.leave(hold, node), hold);
    if (hold.nodes.size === 0) {
      this.#book.drop(hold);
      this.#over.add(hold);
    }
    return true;
  }

  record(): void {
    const { records } = this.#book;
    for (const [part, hold] of this.#changed) records.changePart(hold, part);
    for (const { id } of this.#over) records.forget(id);
  }
}
