/**
 * How a copy by a device ended. `leaked`: it could not be stopped, and may touch the slot until
 * this process ends.
 */
export type CopyEnd = "done" | "failed" | "leaked";

/** A slot that a device copies from or to. It is nobody else's before `end`. */
export interface LentSlot {
  /** In the arena, in bytes. */
  readonly offset: number;
  /** Length of the block. */
  readonly bytes: number;
  /** Called once, when the device does not touch the slot any more. */
  end(how: CopyEnd): void;
}

/** One that is read: the block is locked until `end`, whatever becomes of its reader. */
export interface LentBlock extends LentSlot {
  /** Whether what lies there is the block, by its checksum. Asked before `end`. */
  isWhole(): Promise<boolean>;
}

/** Copies by devices into a slot that is being written. */
export class SlotCopies {
  /** One of them failed: what lies there is not what its writer takes it for. */
  failed = false;
  leaked = false;
  /** The writer gave the slot back meanwhile. */
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

  /** Resolves when none is under way. */
  async over(): Promise<void> {
    while (this.#underWay > 0) {
      await new Promise<void>((resolve) => this.#waiting.push(resolve));
    }
  }
}
