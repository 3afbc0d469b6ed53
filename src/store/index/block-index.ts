/** Rows of blocks as columns; `count` of them are filled. All of one namespace and layer. */
export interface BlockRows {
  readonly count: number;
  readonly namespaceKey: Uint8Array;
  /** 16 bytes that name the MAC key of the namespace; null: none was put with a block of it. */
  readonly macKeyId: Uint8Array | null;
  readonly layer: number;
  /** 32 bytes a row. */
  readonly digests: Uint8Array;
  /** 32 bytes a row; all zero: no parent. */
  readonly parents: Uint8Array;
  readonly bytes: Uint32Array;
  /** XXH3-64 of the payload. */
  readonly checksums: BigUint64Array;
  /** Which of several files with one short name: 0 as a rule. */
  readonly variants: Uint8Array;
  /** Seconds since 1970 of the latest use, and how often it was used (stops at 65535). */
  readonly lastSeen: Uint32Array;
  readonly uses: Uint16Array;
}

/** One block that has come to lie on SSD. */
export interface BlockRow {
  readonly namespaceKey: Uint8Array;
  /** As in `BlockRows`; the index keeps the latest one of a namespace. */
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
  /** Of this run of the agent, from 1, one for each block; 0 for a block found by recovery. */
  readonly sequence: number;
}

export interface AliasRow {
  readonly namespaceKey: Uint8Array;
  readonly layer: number;
  readonly digest: Uint8Array;
  /** 8 bytes: an engine hash, little-endian; 32 bytes: a SHA-256 page key. */
  readonly alias: Uint8Array;
}

/** What the index knows of the run before this one. */
export interface PreviousRun {
  /** Null: an index that no run has used, or one made anew; recovery reads all headers. */
  readonly incarnation: bigint | null;
  /** Every block with a sequence up to this one had its row committed, or removed. */
  readonly flushedSequence: number;
  /** It was closed after everything had been flushed. */
  readonly clean: boolean;
}

export interface IndexState {
  /** Null while it works; else what is wrong, in words. */
  readonly failing: string | null;
  /** Changes not yet committed, and changes that were dropped because there were too many. */
  readonly pending: number;
  readonly dropped: number;
  readonly rows: number;
  /** Where the index that could not be used was set aside at this start, and why. */
  readonly setAside: { readonly path: string; readonly why: string } | null;
}

/**
 * The memory of what lies on SSD, for the next start. Promises:
 *
 * - No call blocks the event loop or throws for what the disk does: changes are collected and
 *   committed in the background, in order; while the index fails they wait, up to a bound, then are
 *   dropped and counted, and the index is tried again.
 * - Nothing but `load*` ever reads it: a failing index never stops reads of blocks.
 * - What `flush` answered true for is committed; with `durable`, it survives a loss of power.
 */
export interface BlockIndex extends AsyncDisposable {
  readonly previous: PreviousRun;
  readonly state: IndexState;

  /**
   * Every row as it was when the index was opened, by namespace and layer, oldest use first within
   * them; once, before `begin`. All were checked: rows that are not as they were written make an
   * index that is set aside. Throws HearthError INDEX_FAILED where reading stops halfway.
   */
  loadBlocks(): AsyncIterable<BlockRows>;
  loadAliases(): AsyncIterable<readonly AliasRow[]>;

  /**
   * Ends recovery, and commits what it changed: from here on the index is that of this run. To be
   * called before the first block of the run is written; until then a crash leaves the index as the
   * run before left it, so that the next start can recover again. False as from `flush`: then it
   * counts from the first commit that works.
   */
  begin(): Promise<boolean>;

  /** The write that was to have this sequence came to nothing: no row will come. */
  skip(sequence: number): void;

  /** Adds or replaces the row of a block (its key: namespace is part of the digest; and layer). */
  put(row: BlockRow): void;
  remove(digest: Uint8Array, layer: number): void;
  /** The block was used. */
  touch(digest: Uint8Array, layer: number, lastSeen: number, uses: number): void;
  /** After the `put` of its block, with whose row it goes; without one it is not entered. */
  putAlias(row: AliasRow): void;

  /** Commits everything up to now; false where that failed, or changes had been dropped. */
  flush(options?: { readonly durable?: boolean }): Promise<boolean>;

  /** Flushes, marks the run as ended cleanly, closes. False where it could not, within `ms`. */
  close(ms: number): Promise<boolean>;
}
