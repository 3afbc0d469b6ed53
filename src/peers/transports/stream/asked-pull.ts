import type { Received } from "../../../native/index.ts";
import type { FrameHeader, ItemRefusal } from "../../messages.ts";
import type { LinkFault, OutgoingPull } from "../../transport.ts";
import { encodeRequest, type Part } from "../../wire/index.ts";
import { type AskedItem, AskedItems, CROWDED } from "../line/index.ts";
import type { Patience } from "../patience.ts";
import type { AskerLanes } from "./asker-lanes.ts";

/** What is known of a block while it comes. */
interface Coming {
  checksum: bigint | null;
  /** The lanes had no room for its transfer: what is sent of it goes nowhere. */
  hasNoRoom: boolean;
}

/**
 * One pull as its asker sees it. The first items are announced to the lanes before the request goes
 * out, so that blocks of exactly the expected length come without another round trip; for others
 * the header comes first and its place is announced then.
 */
export class AskedPull {
  readonly over: Promise<LinkFault | null>;
  readonly #id: number;
  readonly #lanes: AskerLanes;
  readonly #items: AskedItems;
  readonly #coming: readonly Coming[];
  readonly #announced: number;

  /** Sends the request. */
  constructor(id: number, lanes: AskerLanes, pull: OutgoingPull, patience: Patience) {
    const { clock, link } = lanes;
    this.#id = id;
    this.#lanes = lanes;
    this.#announced = Math.min(lanes.announceable, pull.items.length);
    const sayCancel = () => lanes.send({ kind: "cancel", id });
    this.#items = new AskedItems(pull, { clock, patience, writers: link, sayCancel });
    this.over = this.#items.over;
    this.#coming = pull.items.map(() => ({ checksum: null, hasNoRoom: false }));
    const { namespace, items } = pull;
    const body = encodeRequest({ op: "pull", namespace, items, deadlineMs: patience.leftMs });
    const first = this.#items.all.slice(0, this.#announced);
    const transfers = first.map((item) => this.#receive(item, item.bytesMax));
    const [transfer, announced] = [transfers[0] ?? 0, this.#announced];
    lanes.send({ kind: "pull", id, transfer, announced, body });
  }

  fail(fault: LinkFault): void {
    this.#items.fail(fault);
  }

  count(stallMs: number): void {
    this.#items.count(stallMs);
  }

  /** One item's answer. In words what is wrong with it; null: nothing. */
  takePart(part: Part, sent: boolean): string | null {
    if (this.#items.fault !== null) return null;
    const wrong = this.#items.take(part);
    if (wrong !== null) return wrong;
    if (part.kind === "refusal") return sent ? "it sent a block that it refuses" : null;
    const item = this.#items.all[part.index]!;
    const { header } = part;
    if (!sent) {
      this.#items.retire(item, () => this.#goOn(item, header.bytes));
      return null;
    }
    if (item.index >= this.#announced || header.bytes !== item.bytesMax) {
      return "it sent a block before there was a place for it";
    }
    this.#finishIfWhole(item, header);
    return null;
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

  #receive(item: AskedItem, bytes: number): number {
    const transfer = this.#lanes.takeTransfer();
    this.#lanes.countAnnounced(1);
    const received = this.#lanes.link
      .receive(transfer, item.offset, bytes)
      .catch((): Received => ({ ok: false, fault: "broken" }))
      .finally(() => this.#lanes.countAnnounced(-1));
    this.#items.write(item, transfer, received, (result) => this.#received(item, result));
    return transfer;
  }

  #received(item: AskedItem, received: Received): void {
    if (received.ok || received.fault === "full") {
      const coming = this.#coming[item.index]!;
      coming.hasNoRoom = !received.ok;
      coming.checksum = received.ok ? received.checksum : null;
      if (item.header !== null) this.#finishIfWhole(item, item.header);
    } else if (received.fault !== "cancelled") {
      this.#items.giveUp({ kind: "broken", why: `a lane failed: ${received.fault}` });
    }
    // Where the other side cancelled it, a message says so, too.
  }

  #goOn(item: AskedItem, bytes: number): void {
    this.#coming[item.index]!.hasNoRoom = false;
    const transfer = this.#receive(item, bytes);
    this.#lanes.send({ kind: "go", id: this.#id, index: item.index, transfer });
  }

  #finishIfWhole(item: AskedItem, header: FrameHeader): void {
    const { hasNoRoom, checksum } = this.#coming[item.index]!;
    if (hasNoRoom) this.#items.finish(item, CROWDED);
    else if (checksum !== null) this.#items.came(item, header, checksum);
  }
}
