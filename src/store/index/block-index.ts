/**
 * Rows of blocks as columns, of which `count` entries are filled. All rows have the same namespace
 * and layer.
 */
export interface BlockRows {
  readonly count: number;
  readonly namespaceKey: Uint8Array;
  /**
   * Identifier of the namespace's MAC key, 16 bytes. Null: no block of the namespace was stored
   * with one.
   */
  readonly macKeyId: Uint8Array | null;
  readonly layer: number;
  /** 32 bytes per row. */
  readonly digests: Uint8Array;
  /** 32 bytes per row. All zero: no parent. */
  readonly parents: Uint8Array;
  readonly bytes: Uint32Array;
  /** XXH3-64 of the payload. */
  readonly checksums: BigUint64Array;
  /** Distinguishes several files with the same short name. Usually 0. */
  readonly variants: Uint8Array;
  /** Time of the latest use, in seconds since 1970, and number of uses (saturates at 65,535). */
  readonly lastSeen: Uint32Array;
  readonly uses: Uint16Array;
}

/** One block on SSD. */
export interface BlockRow {
  readonly namespaceKey: Uint8Array;
  /** See `BlockRows`. The index keeps the latest value per namespace. */
  readonly macKeyId?: Uint8Array | null;
  readonly layer: number;
  readonly digest: Uint8Array;
  /** Null: no parent. */
  readonly parent: Uint8Array | null;
  readonly bytes: number;
  readonly checksum: bigint;
  readonly variant: number;
  readonly lastSeen: number;
  readonly uses: number;
  /**
   * Sequence number within this run of the agent, from 1, unique per block. 0: the block was found
   * by recovery.
   */
  readonly sequence: number;
}

export interface AliasRow {
  readonly namespaceKey: Uint8Array;
  readonly layer: number;
  readonly digest: Uint8Array;
  /** 8 bytes: an engine hash, little-endian. 32 bytes: a SHA-256 page key. */
  readonly alias: Uint8Array;
}

/** State of the previous run. */
export interface PreviousRun {
  /**
   * Null: the index is new, or no run has used it. Recovery then reads the headers of all blocks.
   */
  readonly incarnation: bigint | null;
  /** The rows of all blocks up to this sequence number were committed or removed. */
  readonly flushedSequence: number;
  /** Whether the run closed the index after all changes were committed. */
  readonly clean: boolean;
}

export interface IndexState {
  /** Reason why the index currently fails. Null: it works. */
  readonly failing: string | null;
  /** Changes not committed yet, and changes dropped because too many were pending. */
  readonly pending: number;
  readonly dropped: number;
  readonly rows: number;
  /** Path and reason of an unusable index that was set aside at this start. */
  readonly setAside: { readonly path: string; readonly why: string } | null;
}

/**
 * Persistent record of the blocks on SSD, for the next start. Guarantees:
 *
 * - No call blocks the event loop or throws because of the disk. Changes are collected and
 *   committed in the background, in order. While the index fails they wait up to a limit; beyond it
 *   they are dropped and counted. The index is retried.
 * - Only `load*` reads the index, so that a failing index never stops reads of blocks.
 * - Changes for which `flush` returned true are committed. With `durable` they survive a power
 *   failure.
 */
export interface BlockIndex extends AsyncDisposable {
  readonly previous: PreviousRun;
  readonly state: IndexState;

  /**
   * Every row as it was when the index was opened, by namespace and layer, oldest use first. Call
   * it once, before `begin`. All rows were verified: an index with a damaged row is set aside.
   * Throws INDEX_FAILED if reading fails midway.
   */
  loadBlocks(): AsyncIterable<BlockRows>;
  loadAliases(): AsyncIterable<readonly AliasRow[]>;

  /**
   * Ends recovery and commits its changes. From now on the index describes this run. Call it before
   * the first block of the run is written: until then a crash leaves the index as the previous run
   * left it, so that the next start can recover again. False as in `flush`; the run then begins
   * with the first commit that succeeds.
   */
  begin(): Promise<boolean>;

  /** Reports that the write with this sequence number failed, so that no row will come. */
  skip(sequence: number): void;

  /**
   * Adds or replaces the row of a block. The key is digest (which covers the namespace) and layer.
   */
  put(row: BlockRow): void;
  remove(digest: Uint8Array, layer: number): void;
  /** Records a use of the block. */
  touch(digest: Uint8Array, layer: number, lastSeen: number, uses: number): void;
  /**
   * Adds an alias. Call it after the `put` of its block. The alias is removed together with the row
   * of its block, and ignored if there is none.
   */
  putAlias(row: AliasRow): void;

  /** Commits all changes so far. False if the commit failed or if changes were dropped. */
  flush(options?: { readonly durable?: boolean }): Promise<boolean>;

  /** Flushes, marks the run as clean and closes. False if that failed or took longer than `ms`. */
  close(ms: number): Promise<boolean>;
}
