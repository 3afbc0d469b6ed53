import type { Hold } from "./hold.ts";
import type { HoldBook } from "./hold-book.ts";
import type { HoldRequest } from "./holds.ts";

/** Holds at the same time, unless the options say otherwise. */
const HOLDS_MAX = 1_000_000;
/** Blocks of one hold. */
const HOLD_BLOCKS_MAX = 65_536;
/** Blocks under holds, each once for each hold: about a gigabyte of records. */
const BLOCKS_MAX = 4_194_304;
/** Blocks that holds keep, those above the ones they name included, once for each owner. */
const KEPT_MAX = 8_388_608;
const OWNERS_MAX = 65_536;
const LEASES_MAX = 65_536;
/** Of the name of an owner or a lease, in UTF-8. */
const NAME_BYTES_MAX = 128;

/** Bounds what holds take of memory; each refusal says which bound it is. */
export class HoldLimits {
  readonly #book: HoldBook;
  readonly #holdsMax: number;

  constructor(book: HoldBook, holdsMax = HOLDS_MAX) {
    this.#book = book;
    this.#holdsMax = holdsMax;
  }

  /** Why no block of the request is accepted. */
  refusalOf({ kind, owner, name }: Pick<HoldRequest, "kind" | "owner" | "name">): string | null {
    const { index, size, leases } = this.#book;
    if (isTooLong(owner)) return `limit: an owner's name has ${NAME_BYTES_MAX} bytes at most`;
    if (name !== null && isTooLong(name))
      return `limit: a lease's name has ${NAME_BYTES_MAX} bytes at most`;
    if (size >= this.#holdsMax) return `limit: ${this.#holdsMax} holds at the same time`;
    if (index.owners >= OWNERS_MAX && !index.hasOwner(owner))
      return `limit: ${OWNERS_MAX} owners at the same time`;
    if (kind !== "lease") return null;
    if (leases.size >= LEASES_MAX) return `limit: ${LEASES_MAX} leases at the same time`;
    if (name === null) return "invalid: a lease has a name";
    return leases.has(name) ? "exists: there is a lease of this name" : null;
  }

  /** Why the hold takes no further block. */
  limitOf(hold: Hold): string | null {
    if (hold.nodes.size >= HOLD_BLOCKS_MAX) return `limit: ${HOLD_BLOCKS_MAX} blocks in one hold`;
    if (this.#book.blocks >= BLOCKS_MAX) return `limit: ${BLOCKS_MAX} blocks under holds`;
    return this.#book.index.kept >= KEPT_MAX ? `limit: ${KEPT_MAX} blocks kept for owners` : null;
  }
}

function isTooLong(name: string): boolean {
  return name.length > NAME_BYTES_MAX || Buffer.byteLength(name) > NAME_BYTES_MAX;
}
