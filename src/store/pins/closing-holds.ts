import { type NodeId, yieldToLoop } from "../../core/index.ts";
import type { BlockTable } from "../blocks/index.ts";
import type { Hold } from "./hold.ts";
import type { HoldBook } from "./hold-book.ts";
import { type EndedHold, HOLD_BLOCKS_A_CALL, type HoldInfo } from "./holds.ts";

interface Closing {
  readonly hold: Hold;
  readonly info: HoldInfo;
  readonly nodes: NodeId[];
  /** The generation of each. */
  readonly born: number[];
  readonly then: (ended: EndedHold) => void;
}

/**
 * Ends holds: they are out of force at once and let go of their blocks, the first 2,048 at once and
 * as many in each turn of the event loop after that, however many end at the same time.
 */
export class ClosingHolds {
  readonly #table: BlockTable;
  readonly #book: HoldBook;
  readonly #queue: Closing[] = [];
  #running: Promise<void> | null = null;

  constructor(table: BlockTable, book: HoldBook) {
    this.#table = table;
    this.#book = book;
  }

  /** Calls `then` when it has let go of all: before this returns where that is one slice. */
  end(hold: Hold, then: (ended: EndedHold) => void): HoldInfo {
    const info = this.#book.infoOf(hold);
    this.#book.close(hold);
    const closing = { hold, info, nodes: [], born: [], then };
    if (!this.#release(closing)) {
      this.#queue.push(closing);
      this.#running ??= this.#run();
    }
    return info;
  }

  /** Lets go of some more at once; false where nothing is left of holds that ended. */
  step(): boolean {
    const first = this.#queue[0];
    if (first === undefined) return false;
    if (this.#release(first)) this.#queue.shift();
    return true;
  }

  /** Resolves when all have let go of their blocks. */
  async over(): Promise<void> {
    await this.#running;
  }

  async #run(): Promise<void> {
    do await yieldToLoop();
    while (this.step());
    this.#running = null;
  }

  /** True where that was the rest. */
  #release({ hold, info, nodes, born, then }: Closing): boolean {
    const table = this.#table;
    let left = HOLD_BLOCKS_A_CALL;
    for (const part of hold.nodes.parts) {
      for (const node of part.nodes) {
        if (left-- === 0) return false;
        nodes.push(node);
        born.push(table.generationOf(node));
        this.#book.leave(hold, node);
      }
    }
    this.#book.drop(hold);
    then({ info, nodes: nodes.filter((node, at) => table.isLive(node, born[at]!)) });
    return true;
  }
}
