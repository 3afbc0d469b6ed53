import { HashTable, NO_ENTRY, NO_NODE, type NodeId } from "../../core/index.ts";
import type { Hashing } from "../../identity/index.ts";
import type { KeySpace, ResidencyChange } from "../../observability/activity/index.ts";
import type { TieredStore } from "../../store/index.ts";
import { EngineIngest, type EngineIngestOptions, type IngestChange } from "../index.ts";
import { EngineBatches, TokenTable, type TokenTableOptions } from "./engine-batches.ts";
import type { HostResidency } from "./residency-log.ts";
import type { ZmqPublisher } from "./zmq-publisher.ts";

export interface EngineRankOptions {
  readonly rank: number;
  readonly model: string;
  /**
   * Configured block size of the engine in tokens. Null: use the size in its events, and 16 until
   * the first event.
   */
  readonly blockTokens: number | null;
  readonly hashing: Hashing;
  readonly store: Pick<TieredStore, "table" | "mirror">;
  readonly residency: HostResidency;
  /** Publisher of engine events over ZMQ. Null: none are published. */
  readonly zmq: ZmqPublisher | null;
  /** Maximum remembered blocks of the engine. */
  readonly blocksMax: number;
  /** Returns the namespaces of the engine's model with that block size. */
  readonly namespaces: (blockTokens: number) => ReturnType<TokenTableOptions["namespaces"]>;
  /** Endpoints on which the engine publishes its own events. Null if it publishes none. */
  readonly engine: EngineEndpoints | null;
}

export interface EngineEndpoints
  extends Pick<
    EngineIngestOptions,
    "native" | "clock" | "random" | "endpoint" | "replayEndpoint"
  > {}

export type EngineRankState = NonNullable<EngineRank["state"]>;

/** Block size in tokens until the configuration or the engine provides one. */
const BLOCK_TOKENS = 16;

/** The objects that depend on the block size. */
interface Sized {
  readonly space: KeySpace;
  readonly book: TokenTable;
  readonly mirror: EngineMirror;
  readonly batches: EngineBatches | null;
}

/**
 * Passes one engine's own events to the residency log, to the mirror of its GPU contents, and to
 * the ZMQ publisher.
 */
export class EngineRank implements AsyncDisposable {
  readonly #options: EngineRankOptions;
  #sized: Sized;
  readonly #listening: Disposable;
  readonly #ingest: EngineIngest | null;
  #isHeard = false;

  constructor(options: EngineRankOptions) {
    const { residency, zmq } = options;
    this.#options = options;
    this.#sized = this.#ofSize(options.blockTokens ?? BLOCK_TOKENS);
    this.#listening = residency.onStore((changes) => {
      const { mirror, batches } = this.#sized;
      mirror.store(changes);
      if (batches !== null) zmq?.publish(batches.store(changes));
    });
    this.#ingest = this.#follow();
  }

  /**
   * State of following the engine. Null if the engine publishes no events. `isHeard`: its events
   * are received and none is missing. `blockTokens`: block size in its events; null before the
   * first.
   */
  get state() {
    const ingest = this.#ingest;
    if (ingest === null) return null;
    const { isKnown, engineBlockTokens: blockTokens, counts } = ingest;
    return { isHeard: this.#isHeard, isKnown, blockTokens, counts };
  }

  get zmq(): ZmqPublisher | null {
    return this.#options.zmq;
  }

  changed(changes: readonly IngestChange[]): void {
    const { residency, rank, zmq } = this.#options;
    const { space, book, mirror, batches } = this.#sized;
    const named = changes.flatMap((change) => book.learn(change));
    const plain = changes.map(({ change }) => change);
    residency.engineChanged(rank, space, plain);
    mirror.engine(changes);
    if (batches !== null) zmq?.publish(batches.engine(changes, named));
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#ingest?.[Symbol.asyncDispose]();
    this.#listening[Symbol.dispose]();
    this.#sized.mirror[Symbol.dispose]();
    await this.#options.zmq?.[Symbol.asyncDispose]();
  }

  #ofSize(blockTokens: number): Sized {
    const { hashing, model, blocksMax, store, zmq } = this.#options;
    const namespaces = () => this.#options.namespaces(blockTokens);
    const book = new TokenTable({ hashing, blockTokens, blocksMax, namespaces });
    const mirror = new EngineMirror(store, book, blocksMax);
    const batches = zmq === null ? null : new EngineBatches(book, blockTokens, blocksMax);
    return { space: { kind: "tokens", model, blockTokens }, book, mirror, batches };
  }

  /**
   * Switches to the engine's block size, if it differs from the expected one. No block of the
   * expected size was stored before.
   */
  #learned(blockTokens: number): void {
    if (blockTokens === this.#sized.space.blockTokens) return;
    this.changed([{ change: { kind: "cleared", tier: null }, tokens: null, isPlain: true }]);
    const { mirror, batches } = this.#sized;
    mirror[Symbol.dispose]();
    this.#sized = this.#ofSize(blockTokens);
    if (batches !== null) this.#sized.batches?.takeKept(batches.kept);
  }

  #follow(): EngineIngest | null {
    const { engine, rank, blockTokens, blocksMax: knownBlocksMax } = this.#options;
    if (engine === null) return null;
    return new EngineIngest(
      { ...engine, rank, blockTokens, knownBlocksMax, topic: "" },
      {
        changes: (changes) => this.changed(changes),
        known: (isKnown) => this.#options.residency.engineKnown(rank, isKnown),
        blockTokens: (size) => this.#learned(size),
        heard: (isHeard) => {
          this.#isHeard = isHeard;
        },
      },
    );
  }
}

/**
 * Records in this host's index that the engine's GPU has a block, for each block that this host
 * also stores. It does not matter whether the engine's event or the store's change comes first.
 */
export class EngineMirror implements Disposable {
  readonly #store: Pick<TieredStore, "table" | "mirror">;
  readonly #book: TokenTable;
  readonly #window: Set<NodeId>;
  /** Sequence hashes of the blocks on the engine's GPU. */
  readonly #onDevice: HashTable;
  /** Index nodes of those blocks that this host stores, by table entry. */
  readonly #nodes = new Map<number, readonly NodeId[]>();

  readonly #blocksMax: number;

  constructor(store: Pick<TieredStore, "table" | "mirror">, book: TokenTable, blocksMax: number) {
    this.#blocksMax = blocksMax;
    this.#onDevice = new HashTable(blocksMax);
    this.#store = store;
    this.#book = book;
    this.#window = store.mirror.openWindow();
  }

  /** Number of mirrored blocks. */
  get size(): number {
    return this.#window.size;
  }

  /** Applies an engine's changes. The token table must have learned them first. */
  engine(changes: readonly IngestChange[]): void {
    for (const { change } of changes) {
      if (change.tier !== "device" && change.tier !== null) continue;
      if (change.kind === "cleared") this.#clear();
      else if (change.kind === "removed") for (const hash of change.hashes) this.#remove(hash);
      else for (const hash of change.hashes) this.#add(hash);
    }
  }

  /** Applies the store's changes. */
  store(changes: readonly ResidencyChange[]): void {
    for (const change of changes) {
      if (change.kind !== "stored" || change.tier === "device") continue;
      for (const key of change.hashes) {
        const known = this.#book.findKey(key);
        if (known !== null && this.#onDevice.find(known.sequence) !== NO_ENTRY)
          this.#add(known.sequence);
      }
    }
  }

  [Symbol.dispose](): void {
    this.#clear();
  }

  #add(sequence: bigint): void {
    const { table, mirror } = this.#store;
    if (!this.#book.has(sequence)) return;
    let entry = this.#onDevice.find(sequence);
    if (entry === NO_ENTRY) {
      if (this.#onDevice.size >= this.#blocksMax) return;
      entry = this.#onDevice.add(sequence);
    }
    const nodes = [...(this.#nodes.get(entry) ?? [])];
    for (const key of this.#book.keysOf(sequence)) {
      const node = table.find(key, 0);
      if (node === NO_NODE || table.residencyOf(node) === 0 || this.#window.has(node)) continue;
      mirror.hold(this.#window, node);
      nodes.push(node);
    }
    if (nodes.length > 0) this.#nodes.set(entry, nodes);
  }

  #remove(sequence: bigint): void {
    const entry = this.#onDevice.find(sequence);
    if (entry === NO_ENTRY) return;
    for (const node of this.#nodes.get(entry) ?? []) {
      this.#store.mirror.letGo(this.#window, node);
    }
    this.#nodes.delete(entry);
    this.#onDevice.delete(entry);
  }

  #clear(): void {
    this.#onDevice.clear();
    this.#nodes.clear();
    this.#store.mirror.closeWindow(this.#window);
  }
}
