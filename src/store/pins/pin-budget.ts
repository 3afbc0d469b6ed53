import { formatBytes, NO_NODE, type NodeId } from "../../core/index.ts";
import type { BlockTable } from "../blocks/index.ts";
import type { Pin, PinTable } from "./pin-table.ts";
import { isOnTiers, type OwnerPinnedBytes } from "./pinned-bytes.ts";
import type { BudgetFigures, PinRequest } from "./pins.ts";

/**
 * Maximum number of ancestors visited per request for blocks that exceed the budget. Takes some
 * milliseconds.
 */
const REFUSED_STEPS_MAX = 1_048_576;

export interface BudgetLimits {
  /** Capacity of RAM and SSD together, in bytes. */
  readonly capacityBytes: () => number;
  /**
   * Shares of the capacity, 0 to 1, that pins and leases may protect: all of them together
   * (`host`), and those of one owner (`owner`).
   */
  readonly shares: () => { readonly host: number; readonly owner: number };
}

/**
 * Limits the bytes that pins and leases protect, including the ancestors of the pinned blocks. Use
 * by the host: bytes protected in RAM and on SSD, without those that only soft pins protect. Use by
 * an owner: bytes that its own pins and leases protect, each block counted once. A block that is
 * already protected always fits.
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
   * Returns a function that checks one block of a request against the budget. The caller calls it
   * for each block before it adds the block to this pin. The function returns the reason to reject
   * the block, or null.
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
   * Returns the bytes that a pin of the node would add: the block and those of its ancestors that
   * are not protected yet, or, with `own`, not protected by this owner yet. Stops when the sum
   * exceeds `roomBytes`.
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
      // After this many steps for rejected blocks, computing the exact figure takes too long.
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

/**
 * Keeps the latest rejection text, because thousands of blocks of one size are rejected for the
 * same reason.
 */
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

/** Default maximum number of pins, soft pins and leases together. */
const PINS_MAX = 1_000_000;
/** Maximum number of blocks in one pin. */
const PIN_BLOCKS_MAX = 65_536;
/**
 * Maximum number of blocks in all pins together; a block in two pins counts twice. The ledger
 * records take about 1 GB.
 */
const BLOCKS_MAX = 4_194_304;
/**
 * Maximum of the sum, over all owners, of the blocks that each owner's pins and leases protect,
 * ancestors included.
 */
const KEPT_MAX = 8_388_608;
const OWNERS_MAX = 65_536;
const LEASES_MAX = 65_536;
/** Maximum length of the name of an owner or a lease, in UTF-8 bytes. */
const NAME_BYTES_MAX = 128;

/**
 * Limits on the number of pins, blocks, owners and leases, which bound the memory for pins. A
 * rejection names the limit.
 */
export class PinLimits {
  readonly #pinTable: PinTable;
  readonly #pinsMax: number;

  constructor(pinTable: PinTable, pinsMax = PINS_MAX) {
    this.#pinTable = pinTable;
    this.#pinsMax = pinsMax;
  }

  /** Returns the reason to reject the whole request, or null. */
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

  /** Returns the reason why the pin cannot take another block, or null. */
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
