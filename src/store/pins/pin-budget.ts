import { formatBytes, NO_NODE, type NodeId } from "../../core/index.ts";
import type { BlockTable } from "../blocks/index.ts";
import type { Pin, PinTable } from "./pin-table.ts";
import { isOnTiers, type OwnerPinnedBytes } from "./pinned-bytes.ts";
import type { BudgetFigures, PinRequest } from "./pins.ts";

/** Ancestors visited for rejected blocks per request. Takes some milliseconds. */
const REFUSED_STEPS_MAX = 1_048_576;

export interface BudgetLimits {
  /** Capacity of RAM and SSD together, in bytes. */
  readonly capacityBytes: () => number;
  /** Shares of the capacity, 0 to 1, that all pins and leases may keep, and those of one owner. */
  readonly shares: () => { readonly host: number; readonly owner: number };
}

/**
 * Limits the bytes that pins and leases keep, ancestors of the pinned blocks included. Used by the
 * host: the bytes that the block table keeps in RAM and on SSD, minus those that only soft pins
 * keep. Used by an owner: the bytes that its own pins and leases keep, each block once. A block
 * that is kept already always fits.
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

  /**
   * Returns a function that checks the blocks of one request, to be called for each block before it
   * is added to this pin. Its result is the reason for a rejection, or null.
   */
  budgetCheck({ owner, group }: Pin): (node: NodeId) => string | null {
    const { hostBudgetBytes, ownerBudgetBytes } = this.figures(owner);
    const reason = new CachedReason();
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
      if (isTooMuch) return reason.get(used, hostBudgetBytes, need.bytes, "");
      return reason.get(kept.bytes, ownerBudgetBytes, own.bytes, " for this owner");
    };
  }

  /**
   * Bytes that a pin on the node would add: the block and those of its ancestors that are not kept
   * yet. With `own`: that are not kept by this owner. The walk stops once the sum exceeds
   * `roomBytes`.
   */
  #need(node: NodeId, roomBytes: number, stepsMax: number, own: OwnerPinnedBytes | null): Need {
    const table = this.#table;
    const { pinnedBytes } = this.#pinTable;
    let [bytes, steps] = [0, 0];
    for (let step = node; step !== NO_NODE; step = table.parentOf(step)) {
      const isKept = own?.has(step) ?? (table.isKept(step) && !pinnedBytes.isSoftOnly(step));
      if (isKept) break;
      if (isOnTiers(table, step)) bytes += table.bytesOf(step);
      steps++;
      if (bytes > roomBytes) break;
      // After this many rejections the exact figure is not worth the time.
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

/** Caches the reason, because thousands of blocks of one size are rejected with the same text. */
class CachedReason {
  #key = "";
  #reason = "";

  get(used: number, budget: number, more: number, whose: string): string {
    const key = `${used}/${more}/${whose}`;
    if (key === this.#key) return this.#reason;
    this.#key = key;
    this.#reason =
      `budget: ${formatBytes(used)} of ${formatBytes(budget)} kept${whose}, ` +
      `${formatBytes(more)} more requested`;
    return this.#reason;
  }
}

/** Default maximum number of pins. */
const PINS_MAX = 1_000_000;
/** Blocks in one pin. */
const PIN_BLOCKS_MAX = 65_536;
/**
 * Blocks in all pins together, a block under two pins counted twice. The records take about 1 GB.
 */
const BLOCKS_MAX = 4_194_304;
/** Sum over all owners of the blocks kept, ancestors included. */
const KEPT_MAX = 8_388_608;
const OWNERS_MAX = 65_536;
const LEASES_MAX = 65_536;
/** Length of an owner's or a lease's name in UTF-8. */
const NAME_BYTES_MAX = 128;

/** Bounds the memory that pins take. Each rejection names the bound. */
export class PinLimits {
  readonly #pinTable: PinTable;
  readonly #pinsMax: number;

  constructor(pinTable: PinTable, pinsMax = PINS_MAX) {
    this.#pinTable = pinTable;
    this.#pinsMax = pinsMax;
  }

  /** Why the whole request is rejected, or null. */
  refusalOf({ kind, owner, name }: Pick<PinRequest, "kind" | "owner" | "name">): string | null {
    const { index, size, leases } = this.#pinTable;
    if (isTooLong(owner)) return `limit: an owner's name is longer than ${NAME_BYTES_MAX} bytes`;
    if (name !== null && isTooLong(name))
      return `limit: a lease's name is longer than ${NAME_BYTES_MAX} bytes`;
    if (size >= this.#pinsMax) return `limit: at most ${this.#pinsMax} pins`;
    if (index.owners >= OWNERS_MAX && !index.hasOwner(owner))
      return `limit: at most ${OWNERS_MAX} owners`;
    if (kind !== "lease") return null;
    if (leases.size >= LEASES_MAX) return `limit: at most ${LEASES_MAX} leases`;
    if (name === null) return "invalid: a lease needs a name";
    return leases.has(name) ? "exists: a lease of this name exists" : null;
  }

  /** Why the pin cannot take another block, or null. */
  limitOf(pin: Pin): string | null {
    if (pin.nodes.size >= PIN_BLOCKS_MAX) return `limit: at most ${PIN_BLOCKS_MAX} blocks per pin`;
    if (this.#pinTable.blocks >= BLOCKS_MAX)
      return `limit: at most ${BLOCKS_MAX} blocks in all pins`;
    return this.#pinTable.index.kept >= KEPT_MAX
      ? `limit: at most ${KEPT_MAX} blocks kept for all owners`
      : null;
  }
}

function isTooLong(name: string): boolean {
  return name.length > NAME_BYTES_MAX || Buffer.byteLength(name) > NAME_BYTES_MAX;
}
