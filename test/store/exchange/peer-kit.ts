import { LAYER_ALL, type NamespaceIndex } from "../../../src/core/index.ts";
import type {
  Arrival,
  Committed,
  IncomingBlock,
  Lent,
  Loan,
  PulledBlock,
  SlotRefusal,
  TieredStore,
} from "../../../src/store/index.ts";
import { BLOCK_BYTES, type BlockName, digestOf, parentOf, seedOf } from "../names.ts";
import { namespaceKey } from "../store-kit.ts";
import { verifyStore } from "../verify-store.ts";

export interface PullSpec {
  readonly namespace?: number;
  readonly bytes?: number;
  readonly layer?: number;
  readonly keep?: boolean;
}

/** A peer as the store sees it: it delivers blocks and reads blocks. */
export class PeerHost {
  readonly #store: TieredStore;

  constructor(store: TieredStore) {
    this.#store = store;
  }

  land(name: BlockName, spec: PullSpec = {}): IncomingBlock | SlotRefusal {
    const { namespace = 1, bytes = BLOCK_BYTES, layer = LAYER_ALL, keep } = spec;
    const blocks = this.#store.peerBlocks;
    const landed = blocks.land(namespace as NamespaceIndex, digestOf(name), layer, bytes, keep);
    verifyStore(this.#store);
    return landed;
  }

  /** As `land`, but fails without room. */
  place(name: BlockName, spec: PullSpec = {}): IncomingBlock {
    const landed = this.land(name, spec);
    if (typeof landed === "string") throw new Error(`${name}: ${landed}`);
    return landed;
  }

  /**
   * Writes the block's bytes into its slot and commits it, with the attributes in `lies` replaced.
   */
  commit(name: BlockName, landing: IncomingBlock, lies: Partial<PulledBlock> = {}): Committed {
    const said = lies.bytes ?? landing.bytes;
    const bytes = Math.max(1, Math.min(Math.floor(said), landing.bytes));
    const { region } = this.#store;
    region.fill(landing.offset, bytes, seedOf(name));
    const arrived = region.checksum(landing.offset, bytes);
    const committed = landing.commit({ ...this.block(name, bytes, arrived), ...lies }, arrived);
    verifyStore(this.#store);
    return committed;
  }

  block(name: BlockName, bytes: number, checksum: bigint): PulledBlock {
    const parent = parentOf(name);
    return {
      digest: digestOf(name),
      layer: LAYER_ALL,
      namespace: namespaceKey(1),
      bytes,
      checksum,
      mac: null,
      parent: parent === null ? null : digestOf(parent),
      transient: false,
      aliases: [],
    };
  }

  /** A successful fetch. */
  bring(name: BlockName, spec: PullSpec = {}, said: Partial<PulledBlock> = {}): Arrival {
    const namespace = namespaceKey(spec.namespace ?? 1);
    const layer = spec.layer ?? LAYER_ALL;
    const facts = { namespace, layer, ...said };
    const committed = this.commit(name, this.place(name, spec), facts);
    if (committed.kind !== "ok") throw new Error(`${name}: ${committed.kind} ${committed.why}`);
    return committed.arrival;
  }

  /** Fetches blocks without a waiting request. */
  pull(...names: BlockName[]): void {
    for (const name of names) this.release(this.bring(name));
  }

  release(arrival: Arrival, used = false): void {
    arrival.release(used);
    verifyStore(this.#store);
  }

  lend(
    name: BlockName,
    options: { namespace?: number; deadlineMs?: number; warm?: boolean } = {},
  ): Lent | Promise<Lent> {
    const { namespace = 1, deadlineMs = 1_000, warm = false } = options;
    const blocks = this.#store.peerBlocks;
    const digest = digestOf(name);
    return blocks.lend(namespace as NamespaceIndex, digest, LAYER_ALL, { deadlineMs, warm });
  }

  /** Serves a block, which must be available. */
  async borrow(name: BlockName): Promise<Loan> {
    const lent = await this.lend(name);
    if (typeof lent === "string") throw new Error(`${name}: ${lent}`);
    verifyStore(this.#store);
    return lent;
  }

  /** Whether the served bytes are those of the block. */
  proves(name: BlockName, { offset, bytes, checksum }: Loan): boolean {
    const { region } = this.#store;
    if (region.firstWrong(offset, bytes, seedOf(name)) !== null) return false;
    return region.checksum(offset, bytes) === checksum;
  }
}
