/**
 * End of a device copy. `leaked`: the copy could not be stopped and may access the slot until this
 * process exits.
 */
export type CopyEnd = "done" | "failed" | "leaked";

/** A slot that a device copies to or from. The slot is not reused before `end`. */
export interface CopySlot {
  /** Bytes from the arena's start. */
  readonly offset: number;
  /** Length of the block. */
  readonly bytes: number;
  /** Call once, when the device no longer accesses the slot. */
  end(how: CopyEnd): void;
}

/** The source of a device copy. The block is locked until `end`, even if its reader releases it. */
export interface CopySource extends CopySlot {
  /** Whether the bytes match the block's checksum. Call before `end`. */
  isWhole(): Promise<boolean>;
}

/** Device copies into a slot that is being written. */
export class SlotCopies {
  /** A copy failed: the slot does not contain what the writer intended. */
  failed = false;
  leaked = false;
  /** The writer has aborted the slot meanwhile. */
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

  /** Resolves when no copy is under way. */
  async over(): Promise<void> {
    while (this.#underWay > 0) {
      await new Promise<void>((resolve) => this.#waiting.push(resolve));
    }
  }
}
