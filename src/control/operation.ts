/** Something an operator did to blocks that is no command: it came by a way of its own. */
export interface Operation {
  /** As a command's type. */
  readonly type: string;
  /** Blocks it named; null: it names none. */
  readonly blocks: number | null;
  /**
   * The first of them, eight or more where there are as many: digests, some with a layer. Of an
   * operation on something else its name.
   */
  readonly names: readonly string[];
  /** `rejected`: nothing was done, for `reason`. */
  readonly status: "ok" | "partial" | "rejected";
  readonly reason: string | null;
  /** What came of it, by words of its own. */
  readonly counts: Readonly<Record<string, number>>;
  readonly elapsedMs: number;
}
