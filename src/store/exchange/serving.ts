import { DIGEST_BYTES, NO_NODE, type NodeId } from "../../core/index.ts";
import { MAC_BYTES } from "../../native/index.ts";
import { NodeFlag, type TableView, Tier } from "../blocks/index.ts";
import { isMac } from "../namespaces.ts";
import { HashBudget } from "../ram-check.ts";
import { checksumOf } from "../reservation.ts";
import type { TieredStore } from "../tiered-store.ts";
import { type BlockCopies, type Lent, type Loan, NAMES_MAX } from "./peer-blocks.ts";

const NOTHING: BlockCopies = Object.freeze({ tiers: 0, bytes: 0, generation: 0n, checksum: 0n });

interface ServeOptions {
  readonly deadlineMs: number;
  readonly warm: boolean;
}

/** The copies of the node that a client can read now. */
export function heldCopy({ table, ssd }: TieredStore, node: NodeId): BlockCopies {
  if (node === NO_NODE) return NOTHING;
  const readable = ssd?.readable === true ? Tier.ram | Tier.ssd : Tier.ram;
  const tiers = table.residencyOf(node) & readable;
  if (tiers === 0) return NOTHING;
  // A block only on SSD gets its slot, and with it a generation, when it is served.
  const generation = (tiers & Tier.ram) === 0 ? 0n : generationOf(table, node);
  return { tiers, bytes: table.bytesOf(node), generation, checksum: checksumOf(table, node) };
}

function macOf(table: TableView, node: NodeId): Uint8Array | null {
  const mac = new Uint8Array(MAC_BYTES);
  table.readMac(node, mac);
  return isMac(mac) ? mac : null;
}

/** Generation of the copy in RAM; never 0. No slot has the same generation twice. */
function generationOf(table: TableView, node: NodeId): bigint {
  return (BigInt(table.slotOf(node)) << 32n) | BigInt(table.slotGenerationOf(node) >>> 0);
}

/** Serves blocks of this host to peers. */
export class BlockServing {
  readonly #store: TieredStore;
  readonly #checks: ServedBlockChecks;

  constructor(store: TieredStore) {
    this.#store = store;
    this.#checks = new ServedBlockChecks(store);
  }

  lend(node: NodeId, options: ServeOptions): Lent | Promise<Lent> {
    const { table, ssd } = this.#store;
    if (table.isResident(node, Tier.ram)) return this.#loan(node);
    if (ssd === null || !table.isResident(node, Tier.ssd)) return "absent";
    if (!ssd.readable || !table.lock(node)) return "busy";
    return this.#load(node, options).finally(() => table.unlock(node));
  }

  /**
   * Reads a block that the caller has locked into RAM. A read that is under way continues after the
   * deadline.
   */
  async #load(node: NodeId, { deadlineMs, warm }: ServeOptions): Promise<Lent> {
    const { table, ssd, ram, clock } = this.#store;
    const late = Promise.withResolvers<"late">();
    using _timer = clock.after(deadlineMs, () => late.resolve("late"));
    const read = ssd!.load(node, { warm, mayEvictPins: false }).then((outcome) => {
      // No local request is waiting for the block: enter it into the order alone.
      if (outcome === "ok") ram.settleFresh(node);
      return outcome;
    });
    const came = await Promise.race([read, late.promise]);
    if (table.isResident(node, Tier.ram)) return this.#loan(node);
    return came === "miss" && !table.isResident(node, Tier.ssd) ? "absent" : "busy";
  }

  #loan(node: NodeId): Lent {
    const { table, slots, stats } = this.#store;
    if (!table.lock(node)) return "busy";
    const slot = table.slotOf(node);
    slots.addReference(slot);
    stats.lentBlocks++;
    stats.lentBytes += table.bytesOf(node);
    this.#checks.served(node);
    const digest = new Uint8Array(DIGEST_BYTES);
    table.readDigest(node, digest, 0);
    let isOver = false;
    const loan: Loan = {
      digest,
      layer: table.layerOf(node),
      bytes: table.bytesOf(node),
      checksum: checksumOf(table, node),
      mac: macOf(table, node),
      parent: this.#parentOf(node),
      transient: table.hasFlag(node, NodeFlag.transient),
      aliases: table.aliasesOf(node).slice(0, NAMES_MAX),
      offset: slots.offsetOf(slot),
      generation: generationOf(table, node),
      release: () => {
        if (isOver) return;
        isOver = true;
        slots.dropReference(slot);
        table.unlock(node);
        this.#store.ram.letGo(node);
      },
    };
    return loan;
  }

  /**
   * The parent's digest; zeros if the block has a parent whose digest is unknown here; null for
   * none.
   */
  #parentOf(node: NodeId): Uint8Array | null {
    const { table } = this.#store;
    const parent = table.parentOf(node);
    if (parent === NO_NODE) return null;
    const digest = new Uint8Array(DIGEST_BYTES);
    table.readDigest(parent, digest, 0);
    return digest;
  }
}

/** Bytes of served blocks to hash, per second and in a burst. */
const BYTES_PER_S = 128 * 2 ** 20;
const BYTES_AT_ONCE = 256 * 2 ** 20;
/** Maximum number of queued blocks. Further blocks are checked the next time they are served. */
const WAITING_MAX = 1_024;

/**
 * Hashes served blocks, one at a time on a native thread. The client verifies the bytes it receives
 * but does not report to this host. Without this check a damaged block would be served until the
 * scrub or a local reader finds it.
 */
class ServedBlockChecks {
  readonly #store: TieredStore;
  readonly #budget: HashBudget;
  readonly #waiting = new Set<NodeId>();
  #running: Promise<void> | null = null;

  constructor(store: TieredStore) {
    this.#store = store;
    this.#budget = new HashBudget(store.clock, BYTES_PER_S, BYTES_AT_ONCE);
  }

  served(node: NodeId): void {
    if (this.#waiting.size >= WAITING_MAX) return;
    this.#waiting.add(node);
    this.#running ??= this.#run();
  }

  async #run(): Promise<void> {
    const { table, checks } = this.#store;
    for (const node of this.#waiting) {
      this.#waiting.delete(node);
      // The node id may have been reused: then the new block is checked.
      if (!table.isResident(node, Tier.ram)) continue;
      if (this.#budget.take(table.bytesOf(node))) await checks.check(node, "peer");
    }
    this.#running = null;
  }
}
