import { LAYER_ALL, type NamespaceIndex } from "../../../src/core/index.ts";
import type {
  Arrival,
  Committed,
  Landing,
  Lent,
  Loan,
  PulledBlock,
  TieredStore,
  Unplaced,
} from "../../../src/store/index.ts";
import { BLOCK_BYTES, type BlockName, digestOf, parentOf, seedOf } from "../names.ts";
import { namespaceKey } from "../store-kit.ts";

export interface PullSpec {
  readonly namespace?: number;
  readonly bytes?: number;
  readonly layer?: number;
  readonly keep?: boolean;
}

/** Another host as the store sees it: blocks that come, and blocks that it borrows. */
export class PeerHost {
  readonly #store: TieredStore;

  constructor(store: TieredStore) {
    this.#store = store;
  }

  land(name: BlockName, spec: PullSpec = {}): Landing | Unplaced {
    const { namespace = 1, bytes = BLOCK_BYTES, layer = LAYER_ALL, keep } = spec;
    const blocks = this.#store.peerBlocks;
    const landed = blocks.land(namespace as NamespaceIndex, digestOf(name), layer, bytes, keep);
    this.#store.verifyIntegrity();
    return landed;
  }

  /** As `land`, where there must be room. */
  place(name: BlockName, spec: PullSpec = {}): Landing {
    const landed = this.land(name, spec);
    if (typeof landed === "string") throw new Error(`${name}: ${landed}`);
    return landed;
  }

  /** Puts the block's bytes into its place and commits it, but for what `lies` say. */
  commit(name: BlockName, landing: Landing, lies: Partial<PulledBlock> = {}): Committed {
    const said = lies.bytes ?? landing.bytes;
    const bytes = Math.max(1, Math.min(Math.floor(said), landing.bytes));
    const { region } = this.#store;
    region.fill(landing.offset, bytes, seedOf(name));
    const arrived = region.checksum(landing.offset, bytes);
    const committed = landing.commit({ ...this.block(name, bytes, arrived), ...lies }, arrived);
    this.#store.verifyIntegrity();
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

  /** A pull that succeeds. */
  bring(name: BlockName, spec: PullSpec = {}, said: Partial<PulledBlock> = {}): Arrival {
    const namespace = namespaceKey(spec.namespace ?? 1);
    const layer = spec.layer ?? LAYER_ALL;
    const facts = { namespace, layer, ...said };
    const committed = this.commit(name, this.place(name, spec), facts);
    if (committed.kind !== "ok") throw new Error(`${name}: ${committed.kind} ${committed.why}`);
    return committed.arrival;
  }

  /** Pulls blocks that nobody waits for. */
  pull(...names: BlockName[]): void {
    for (const name of names) this.release(this.bring(name));
  }

  release(arrival: Arrival, used = false): void {
    arrival.release(used);
    this.#store.verifyIntegrity();
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

  /** A loan that is there. */
  async borrow(name: BlockName): Promise<Loan> {
    const lent = await this.lend(name);
    if (typeof lent === "string") throw new Error(`${name}: ${lent}`);
    this.#store.verifyIntegrity();
    return lent;
  }

  /** Whether a loan's bytes are those of its block. */
  proves(name: BlockName, { offset, bytes, checksum }: Loan): boolean {
    const { region } = this.#store;
    if (region.firstWrong(offset, bytes, seedOf(name)) !== null) return false;
    return region.checksum(offset, bytes) === checksum;
  }
}
