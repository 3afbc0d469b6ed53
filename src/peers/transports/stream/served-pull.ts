import { messageOf } from "../../../core/index.ts";
import { type LaneLink, NativeError } from "../../../native/index.ts";
import type { ServedBlock } from "../../transport.ts";
import {
  type MessageLine,
  type PullRequest,
  type RunningPull,
  type Sender,
  ServedItems,
  type ServedItemsOptions,
} from "../line/index.ts";
import type { StreamMessage } from "./control/index.ts";

export interface ServedPullOptions extends ServedItemsOptions {
  /** The first `announced` items are awaited as transfers from here on. */
  readonly transfer: number;
  readonly announced: number;
  readonly request: PullRequest;
  readonly line: MessageLine<StreamMessage>;
  /** Rejects, or never comes, where the link ends before. */
  readonly lanes: Promise<LaneLink>;
  /** The asker says what cannot be: its link has to end. */
  onWrong(why: string): void;
}

/** A block that is lent: under which transfer it is sent; null: it waits for the asker's place. */
interface Lent {
  readonly block: ServedBlock;
  transfer: number | null;
}

/**
 * One pull whose blocks leave over lanes. Each comes back when its last byte is out, or as soon as
 * nothing reads it after the pull was given up.
 */
export class ServedPull implements RunningPull, Sender {
  readonly #options: ServedPullOptions;
  readonly #items: ServedItems;
  readonly #lent = new Map<number, Lent>();
  #lanes: LaneLink | null = null;

  constructor(options: ServedPullOptions) {
    this.#options = options;
    this.#items = new ServedItems(options, this);
  }

  run(): Promise<void> {
    const ready = this.#options.lanes.then(
      (lanes) => {
        this.#lanes = lanes;
        return true;
      },
      () => false,
    );
    return this.#items.run(ready);
  }

  cancel(): void {
    this.#items.cancel();
  }

  giveUp(indexes: readonly number[]): void {
    for (const index of indexes) {
      const transfer = this.#lent.get(index)?.transfer ?? null;
      if (transfer === null) this.#lose(index);
      else this.#lanes?.cancel(transfer);
    }
  }

  /** There is a place for a block whose header was sent. False: it never waited for one. */
  go(index: number, transfer: number): boolean {
    const lent = this.#lent.get(index);
    if (lent === undefined) return this.#items.isAnswered(index);
    if (lent.transfer !== null) return false;
    this.#carry(index, lent, transfer);
    return true;
  }

  refuse(_index: number, body: Uint8Array): void {
    const { id, line } = this.#options;
    line.send({ kind: "part", id, sent: false, body });
  }

  send(index: number, block: ServedBlock, isAsked: boolean): void {
    const { id, line, request, announced, transfer } = this.#options;
    const { header } = block;
    const body = this.#items.frame(index, header);
    const lent: Lent = { block, transfer: null };
    this.#lent.set(index, lent);
    const isExact = header.bytes === request.items[index]!.bytesMax;
    const sent = isAsked && isExact && index < announced;
    line.send({ kind: "part", id, sent, body });
    if (sent) this.#carry(index, lent, transfer + index);
  }

  #carry(index: number, lent: Lent, transfer: number): void {
    lent.transfer = transfer;
    const { offset, header } = lent.block;
    this.#lanes!.send(transfer, offset, header.bytes)
      .then((sent) => sent.ok)
      .catch((thrown) => this.#unsent(thrown))
      .then((ok) => {
        if (!ok) return this.#lose(index);
        this.#lent.delete(index);
        this.#items.release(index);
      });
  }

  #lose(index: number): void {
    this.#lent.delete(index);
    this.#items.lose(index);
  }

  #unsent(thrown: unknown): false {
    const { log, onWrong } = this.#options;
    if (thrown instanceof NativeError && thrown.status === "exists") {
      onWrong("it used the number of a transfer that is under way");
    } else log("error", "a block could not be sent", { why: messageOf(thrown) });
    return false;
  }
}
