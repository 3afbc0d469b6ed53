import type { NodeId } from "../../core/index.ts";

/** Files remembered one by one: some megabytes. */
const FILES_MAX = 65_536;

/**
 * Which blocks came to SSD so lately that a loss of power may take them: those since the disk last
 * confirmed that all is safe. Where there are too many to remember, older ones count as such too.
 */
export class FreshFiles {
  /** By their numbers, the oldest first. */
  readonly #files = new Map<NodeId, number>();
  #came = 0;
  /** Files with numbers up to this one are safe; what an earlier run left is number 0. */
  #safe = -1;
  #forgotten = 0;

  /** How many came so far. */
  get came(): number {
    return this.#came;
  }

  /** The block has come to lie on SSD. */
  enter(node: NodeId): void {
    this.#files.delete(node);
    this.#files.set(node, ++this.#came);
    if (this.#files.size <= FILES_MAX) return;
    const [oldest, number] = this.#files.entries().next().value!;
    this.#files.delete(oldest);
    this.#forgotten = number;
  }

  /** The disk has confirmed the first `came` files. */
  noteSafe(came: number): void {
    this.#safe = Math.max(this.#safe, came);
    for (const [node, number] of this.#files) {
      if (number > this.#safe) return;
      this.#files.delete(node);
    }
  }

  /** Whether the file of a block that is on SSD survives a loss of power. */
  isSafe(node: NodeId): boolean {
    return !this.#files.has(node) && this.#forgotten <= this.#safe;
  }
}
