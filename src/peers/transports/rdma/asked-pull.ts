import { messageOf } from "../../../core/index.ts";
import type { RdmaRead, RdmaWindow } from "../../../native/index.ts";
import type { FrameHeader, ItemRefusal } from "../../messages.ts";
import type { LinkFault, OutgoingPull } from "../../transport.ts";
import { encodeRequest, type Part } from "../../wire/index.ts";
import { type AskedItem, AskedItems, type AskedPull, CROWDED } from "../line/index.ts";
import type { Patience } from "../patience.ts";
import type { AskerRails } from "./asker-rails.ts";

type Frame = Extract<Part, { kind: "frame" }>;

/**
 * One pull as its asker sees it. The holder says of each block where it may be read; it is read as
 * soon as its header was compared with what was asked for, and handed back when nothing of this
 * side reads it any more, however that ended.
 */
export class RdmaPull implements AskedPull {
  readonly over: Promise<LinkFault | null>;
  readonly #id: number;
  readonly #rails: AskerRails;
  readonly #items: AskedItems;

  /** Sends the request. */
  constructor(id: number, rails: AskerRails, pull: OutgoingPull, patience: Patience) {
    const { clock } = rails;
    this.#id = id;
    this.#rails = rails;
    const sayCancel = () => rails.send({ kind: "cancel", id });
    this.#items = new AskedItems(pull, { clock, patience, writers: rails, sayCancel });
    this.over = this.#items.over;
    const { namespace, items } = pull;
    const body = encodeRequest({ op: "pull", namespace, items, deadlineMs: patience.leftMs });
    rails.send({ kind: "pull", id, body });
  }

  fail(fault: LinkFault): void {
    this.#items.fail(fault);
  }

  count(stallMs: number): void {
    this.#items.count(stallMs);
  }

  takeLost(index: number): string | null {
    return this.#items.takeLost(index);
  }

  takeBusy(refusal: ItemRefusal): void {
    this.#items.takeBusy(refusal);
  }

  takeEnd(fault: LinkFault): void {
    this.#items.takeEnd(fault);
  }

  /** An answer without a block. In words what is wrong with it; null: nothing. */
  takePart(part: Part): string | null {
    if (part.kind === "frame") return "it sent a header and lent no block";
    return this.#items.fault === null ? this.#items.take(part) : null;
  }

  /** A block that may be read. In words what is wrong with it; null: nothing. */
  takeLent(part: Frame, rail: number, window: RdmaWindow): string | null {
    const { index, header } = part;
    if (this.#items.fault !== null) {
      this.#giveBack(index);
      return null;
    }
    const wrong = this.#items.take(part);
    if (wrong !== null) return wrong;
    this.#read(this.#items.all[index]!, header, rail, window);
    return null;
  }

  #read(item: AskedItem, header: FrameHeader, rail: number, window: RdmaWindow): void {
    try {
      const { writer, done } = this.#rails.read(rail, window, item.offset, header.bytes);
      const over = done.finally(() => this.#giveBack(item.index));
      this.#items.write(item, writer, over, (read) => this.#wasRead(item, header, read));
    } catch (thrown) {
      this.#items.giveUp({ kind: "broken", why: `a read did not begin: ${messageOf(thrown)}` });
    }
  }

  #wasRead(item: AskedItem, header: FrameHeader, read: RdmaRead): void {
    if (read.ok) this.#items.came(item, header, read.checksum);
    else if (read.fault === "full") this.#items.finish(item, CROWDED);
    else this.#items.giveUp({ kind: "broken", why: `a read failed: ${read.fault}` });
  }

  #giveBack(index: number): void {
    this.#rails.send({ kind: "taken", id: this.#id, index });
  }
}
