/**
 * How a device copy ended. `leaked`: the copy could not be stopped, and the device may access the
 * slot until this process exits.
 */
export type CopyEnd = "done" | "failed" | "leaked";

/** A slot that a device copies to or from. The slot is not reused before `end` is called. */
export interface CopySlot {
  /** Byte offset of the slot in the arena. */
  readonly offset: number;
  /** Length of the block in bytes. */
  readonly bytes: number;
  /**
   * Reports how the copy ended. Call once, when the device no longer accesses the slot or the copy
   * is `leaked`.
   */
  end(how: CopyEnd): void;
}

/** The source of a device copy. The block is locked until `end`, even if its reader releases it. */
export interface CopySource extends CopySlot {
  /** Checks whether the bytes match the block's checksum. Call before `end`. */
  isWhole(): Promise<boolean>;
}

/** State of the device copies into one slot that is being written. */
export class SlotCopies {
  /** True if a copy did not end with `done`: the content of the slot is unusable. */
  failed = false;
  leaked = false;
  /** True if the writer aborted the slot during a copy. The slot is released when the copy ends. */
  aborted = false;
  #underWay = 0;
  #waiting: (() => void)[] = [];

  get underWay(): boolean {
    return this.#underWay > 0;
  }

  begin(): void {
    this.#underWay++;
  }

  end(how: CopyEnd): void {
    this.#underWay--;
    if (how !== "done") this.failed = true;
    if (how === "leaked") this.leaked = true;
    if (this.#underWay === 0) for (const tell of this.#waiting.splice(0)) tell();
  }

  /** Resolves when no copy is in progress. */
  async over(): Promise<void> {
    while (this.#underWay > 0) {
      await new Promise<void>((resolve) => this.#waiting.push(resolve));
    }
  }
}
