import { formatBytes, NO_NODE, type NodeId } from "../../core/index.ts";
import type { BlockTable } from "../blocks/index.ts";
import type { Pin, PinTable } from "./pin-table.ts";
import type { OwnerPinnedBytes } from "./pinned-bytes.ts";
import type { BudgetFigures, PinRequest } from "./pins.ts";

/** Steps up the tree for blocks that are then refused, for one request: some milliseconds. */
const REFUSED_STEPS_MAX = 1_048_576;

export interface BudgetLimits {
  /** RAM and SSD together. */
  readonly capacityBytes: () => number;
  /** Shares of it, 0 to 1, for pins and leases of all, and of one owner. */
  readonly shares: () => { readonly host: number; readonly owner: number };
}

/**
 * How much pins and leases may keep, blocks above those that were named included. Used by the host:
 * what the table keeps on RAM and SSD, less what only soft pins keep. Used by an owner: what its
 * own pins and leases keep, each block once, whoever else keeps it, too. What keeps nothing more
 * than is kept already always fits.
 */
export class Budget {
  readonly #table: BlockTable;
  readonly #pinTable: PinTable;
  readonly #limits: BudgetLimits;

  constructor(table: BlockTable, pinTable: PinTable, limits: BudgetLimits) {
    this.#table = table;
    this.#pinTable = pinTable;
    this.#limits = limits;
  }

  figures(owner: string | null): BudgetFigures {
    const capacityBytes = this.#limits.capacityBytes();
    const shares = this.#limits.shares();
    return {
      capacityBytes,
      hostBudgetBytes: Math.floor(capacityBytes * shares.host),
      hostUsedBytes: this.hostUsedBytes,
      ownerBudgetBytes: Math.floor(capacityBytes * shares.owner),
      ownerUsedBytes: owner === null ? 0 : (this.#pinTable.index.keptBy(owner)?.bytes ?? 0),
    };
  }

  get hostUsedBytes(): number {
    return Math.max(0, this.#table.keptBytes - this.#pinTable.pinnedBytes.softOnlyBytes);
  }

  /** Judges the blocks of one request, one after the other as they are added to this hold. */
  budgetCheck({ owner, group }: Pin): (node: NodeId) => string | null {
    const { hostBudgetBytes, ownerBudgetBytes } = this.figures(owner);
    const words = new CachedReason();
    let stepsMax = Infinity;
    return (node) => {
      const used = this.hostUsedBytes;
      const need = this.#need(node, hostBudgetBytes - used, stepsMax, null);
      const isTooMuch = need.bytes > 0 && used + need.bytes > hostBudgetBytes;
      const { kept } = group.owner;
      const own = isTooMuch
        ? NONE
        : this.#need(node, ownerBudgetBytes - kept.bytes, stepsMax, kept);
      const isTooMuchOwn = own.bytes > 0 && kept.bytes + own.bytes > ownerBudgetBytes;
      if (!isTooMuch && !isTooMuchOwn) return null;
      stepsMax = Math.min(stepsMax, REFUSED_STEPS_MAX) - need.steps - own.steps;
      if (isTooMuch) return words.say(used, hostBudgetBytes, need.bytes, "");
      return words.say(kept.bytes, ownerBudgetBytes, own.bytes, " for this owner");
    };
  }

  /**
   * Bytes that a pin on the node would keep and that none keeps now: its own, and of the blocks
   * above it; `own`: that no hold of this owner keeps. Stops where that is more than there is room
   * for.
   */
  #need(node: NodeId, roomBytes: number, stepsMax: number, own: OwnerPinnedBytes | null): Need {
    const table = this.#table;
    const { pinnedBytes } = this.#pinTable;
    let [bytes, steps] = [0, 0];
    for (let step = node; step !== NO_NODE; step = table.parentOf(step)) {
      const isKept = own?.has(step) ?? (table.isKept(step) && !pinnedBytes.isSoftOnly(step));
      if (isKept) break;
      if (this.#pinTable.isOnTiers(step)) bytes += table.bytesOf(step);
      steps++;
      if (bytes > roomBytes) break;
      // So much was refused already that the rest of the request is not looked at as closely.
      if (steps > stepsMax) return { bytes: Math.max(bytes, roomBytes + 1), steps };
    }
    return { bytes, steps };
  }
}

interface Need {
  readonly bytes: number;
  readonly steps: number;
}

const NONE: Need = { bytes: 0, steps: 0 };

/** Thousands of blocks of one length are refused in the same words. */
class CachedReason {
  #key = "";
  #words = "";

  say(used: number, budget: number, more: number, whose: string): string {
    const key = `${used}/${more}/${whose}`;
    if (key === this.#key) return this.#words;
    this.#key = key;
    this.#words =
      `budget: ${formatBytes(used)} of ${formatBytes(budget)} kept${whose}; ` +
      `${formatBytes(more)} more asked`;
    return this.#words;
  }
}

/** Holds at the same time, unless the options say otherwise. */
const PINS_MAX = 1_000_000;
/** Blocks of one hold. */
const PIN_BLOCKS_MAX = 65_536;
/** Blocks under holds, each once for each hold: about a gigabyte of records. */
const BLOCKS_MAX = 4_194_304;
/** Blocks that holds keep, those above the ones they name included, once for each owner. */
const KEPT_MAX = 8_388_608;
const OWNERS_MAX = 65_536;
const LEASES_MAX = 65_536;
/** Of the name of an owner or a lease, in UTF-8. */
const NAME_BYTES_MAX = 128;

/** Bounds what holds take of memory; each refusal says which bound it is. */
export class PinLimits {
  readonly #pinTable: PinTable;
  readonly #pinsMax: number;

  constructor(pinTable: PinTable, pinsMax = PINS_MAX) {
    this.#pinTable = pinTable;
    this.#pinsMax = pinsMax;
  }

  /** Why no block of the request is accepted. */
  refusalOf({ kind, owner, name }: Pick<PinRequest, "kind" | "owner" | "name">): string | null {
    const { index, size, leases } = this.#pinTable;
    if (isTooLong(owner)) return `limit: an owner's name has ${NAME_BYTES_MAX} bytes at most`;
    if (name !== null && isTooLong(name))
      return `limit: a lease's name has ${NAME_BYTES_MAX} bytes at most`;
    if (size >= this.#pinsMax) return `limit: ${this.#pinsMax} holds at the same time`;
    if (index.owners >= OWNERS_MAX && !index.hasOwner(owner))
      return `limit: ${OWNERS_MAX} owners at the same time`;
    if (kind !== "lease") return null;
    if (leases.size >= LEASES_MAX) return `limit: ${LEASES_MAX} leases at the same time`;
    if (name === null) return "invalid: a lease has a name";
    return leases.has(name) ? "exists: there is a lease of this name" : null;
  }

  /** Why the hold takes no further block. */
  limitOf(pin: Pin): string | null {
    if (pin.nodes.size >= PIN_BLOCKS_MAX) return `limit: ${PIN_BLOCKS_MAX} blocks in one hold`;
    if (this.#pinTable.blocks >= BLOCKS_MAX) return `limit: ${BLOCKS_MAX} blocks under holds`;
    return this.#pinTable.index.kept >= KEPT_MAX
      ? `limit: ${KEPT_MAX} blocks kept for owners`
      : null;
  }
}

function isTooLong(name: string): boolean {
  return name.length > NAME_BYTES_MAX || Buffer.byteLength(name) > NAME_BYTES_MAX;
}
