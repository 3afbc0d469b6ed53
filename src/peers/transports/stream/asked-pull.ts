import type { Clock } from "../../../core/index.ts";
import type { LaneLink, Received } from "../../../native/index.ts";
import type { FrameHeader, ItemRefusal } from "../../messages.ts";
import type { ItemResult, Landed, LinkFault, OutgoingPull } from "../../transport.ts";
import { encodeRequest, OpenItems, type Part } from "../../wire/index.ts";
import type { Patience } from "../patience.ts";
import type { ControlMessage } from "./control/index.ts";

/** One side had more transfers than it can, or no time: whoever asks again may have more luck. */
const CROWDED: ItemRefusal = { kind: "busy", retryAfterMs: 50 };

/** What a pull needs of its link. */
export interface PullLine {
  readonly lanes: LaneLink;
  readonly clock: Clock;
  /** A number that no transfer of the lanes has had. */
  takeTransfer(): number;
  /** A place more (or less) is announced to the other side. */
  countAnnounced(by: 1 | -1): void;
  send(message: ControlMessage): void;
}

interface Asked extends Landed {
  readonly index: number;
  /** The transfer that may write to its place now. */
  transfer: number | null;
  /** What is done instead once nothing writes to its place any more. */
  next: (() => void) | null;
  header: FrameHeader | null;
  checksum: bigint | null;
  /** The lanes had no room for its transfer: what is sent of it goes nowhere. */
  hasNoRoom: boolean;
  /** Bytes its caller was told of. */
  told: number;
  isDone: boolean;
}

/**
 * One pull as its asker sees it. The first items are announced to the lanes before the request goes
 * out, so that blocks of exactly the expected length come without another round trip; for others
 * the header comes first and its place is announced then.
 *
 * States: asking → settled (all items answered, or a fault) → over (no transfer writes any more).
 */
export class AskedPull {
  readonly id: number;
  /** Resolves when it is over. */
  readonly over: Promise<LinkFault | null>;
  readonly #line: PullLine;
  readonly #pull: OutgoingPull;
  readonly #items: Asked[];
  readonly #open: OpenItems;
  readonly #announced: number;
  readonly #patience: Patience;
  readonly #onAbort: () => void;
  #resolve!: (fault: LinkFault | null) => void;
  #unanswered: number;
  /** Transfers that may still write. */
  #receiving = 0;
  #fault: LinkFault | null = null;
  /** What the other side said when it gave up; the fault once the rest has come. */
  #end: LinkFault | null = null;
  #movedMs: number;
  #isOver = false;

  /** Sends the request. `announced`: so many places are announced ahead, if it has as many. */
  constructor(
    id: number,
    line: PullLine,
    pull: OutgoingPull,
    options: { readonly announced: number; readonly patience: Patience },
  ) {
    this.id = id;
    this.#line = line;
    this.#pull = pull;
    this.#open = new OpenItems(pull.namespace, pull.items);
    this.#unanswered = pull.items.length;
    this.#announced = Math.min(options.announced, pull.items.length);
    this.over = new Promise((resolve) => {
      this.#resolve = resolve;
    });
    this.#items = pull.items.map((item, index) => ({
      ...item,
      index,
      transfer: null,
      next: null,
      header: null,
      checksum: null,
      hasNoRoom: false,
      told: 0,
      isDone: false,
    }));
    const { patience } = options;
    this.#movedMs = line.clock.monotonicMs();
    this.#patience = patience;
    this.#onAbort = () => this.giveUp(patience.fault);
    patience.signal.addEventListener("abort", this.#onAbort, { once: true });
    const { namespace, items } = pull;
    const body = encodeRequest({ op: "pull", namespace, items, deadlineMs: patience.leftMs });
    const first = this.#items.slice(0, this.#announced);
    const transfers = first.map((item) => this.#receive(item, item.bytesMax));
    const [transfer, announced] = [transfers[0] ?? 0, this.#announced];
    line.send({ kind: "pull", id, transfer, announced, body });
  }

  /** Stops the sender and the transfers. */
  giveUp(fault: LinkFault): void {
    if (this.#fault !== null || this.#unanswered === 0) return;
    this.#line.send({ kind: "cancel", id: this.id });
    this.fail(fault);
  }

  /** The link is gone, or as good as gone. */
  fail(fault: LinkFault): void {
    if (this.#fault !== null || this.#unanswered === 0) return;
    this.#fault = fault;
    for (const { transfer } of this.#items) {
      if (transfer !== null) this.#line.lanes.cancel(transfer);
    }
    this.#settle();
  }

  /** Tells its caller of what has arrived meanwhile; gives up where nothing does. */
  count(stallMs: number): void {
    if (this.#fault !== null) return;
    for (const item of this.#items) {
      if (item.transfer !== null && item.next === null) {
        this.#tell(item, this.#line.lanes.arrived(item.transfer));
      }
    }
    if (this.#line.clock.monotonicMs() - this.#movedMs < stallMs) return;
    this.giveUp({ kind: "stalled", why: `nothing came for ${stallMs} ms` });
  }

  #moved(): void {
    this.#movedMs = this.#line.clock.monotonicMs();
  }

  /** One item's answer. In words what is wrong with it; null: nothing. */
  takePart(part: Part, sent: boolean): string | null {
    if (this.#fault !== null) return null;
    const wrong = this.#open.take(part);
    if (wrong !== null) return wrong;
    this.#moved();
    const item = this.#items[part.index]!;
    if (part.kind === "refusal") {
      this.#refuse(item, part.refusal);
      return sent ? "it sent a block that it refuses" : null;
    }
    const { header } = part;
    item.header = header;
    if (!sent) {
      this.#retire(item, () => this.#goOn(item, header.bytes));
      return null;
    }
    if (item.index >= this.#announced || header.bytes !== item.bytesMax) {
      return "it sent a block before there was a place for it";
    }
    this.#finishIfWhole(item);
    return null;
  }

  /** A block whose header came does not come. */
  takeLost(index: number): string | null {
    const item = this.#items[index];
    if (item === undefined || item.header === null) return "it lost what it never had";
    if (this.#fault === null && !item.isDone) this.#refuse(item, CROWDED);
    return null;
  }

  /** The other side has too much to do to begin. */
  takeBusy(refusal: ItemRefusal): void {
    if (this.#fault !== null) return;
    this.#moved();
    for (const item of this.#items) if (this.#open.has(item.index)) this.#refuse(item, refusal);
  }

  /** No more headers will come; what was said to come still does. */
  takeEnd(fault: LinkFault): void {
    this.#end ??= fault;
    this.#failAtEnd();
  }

  #failAtEnd(): void {
    if (this.#end === null || this.#unanswered > this.#open.size) return;
    this.fail(this.#end);
  }

  #receive(item: Asked, bytes: number): number {
    const transfer = this.#line.takeTransfer();
    item.transfer = transfer;
    this.#receiving++;
    this.#line.countAnnounced(1);
    this.#line.lanes
      .receive(transfer, item.offset, bytes)
      .catch((): Received => ({ ok: false, fault: "broken" }))
      .then((received) => this.#received(item, received));
    return transfer;
  }

  #received(item: Asked, received: Received): void {
    item.transfer = null;
    this.#receiving--;
    this.#line.countAnnounced(-1);
    const { next } = item;
    item.next = null;
    if (this.#fault !== null) {
      this.#settle();
    } else if (next !== null) {
      next();
    } else if (received.ok || received.fault === "full") {
      item.hasNoRoom = !received.ok;
      item.checksum = received.ok ? received.checksum : null;
      this.#finishIfWhole(item);
    } else if (received.fault !== "cancelled") {
      this.giveUp({ kind: "broken", why: `a lane failed: ${received.fault}` });
    }
    // Where the other side cancelled it, a message says so, too.
  }

  /** Does `next` as soon as nothing writes to the item's place. */
  #retire(item: Asked, next: () => void): void {
    if (item.transfer === null) {
      next();
      return;
    }
    item.next = next;
    this.#line.lanes.cancel(item.transfer);
  }

  #goOn(item: Asked, bytes: number): void {
    item.hasNoRoom = false;
    const transfer = this.#receive(item, bytes);
    this.#line.send({ kind: "go", id: this.id, index: item.index, transfer });
  }

  #refuse(item: Asked, refusal: ItemRefusal): void {
    this.#retire(item, () => this.#finish(item, refusal));
  }

  #finishIfWhole(item: Asked): void {
    const { header, checksum } = item;
    if (header === null) return;
    if (item.hasNoRoom) {
      this.#finish(item, CROWDED);
    } else if (checksum !== null) {
      this.#tell(item, header.bytes);
      this.#finish(item, { kind: "came", header, checksum });
    }
  }

  #tell(item: Asked, arrived: number): void {
    if (arrived <= item.told) return;
    const more = arrived - item.told;
    item.told = arrived;
    this.#moved();
    this.#pull.onBytes(item.index, more);
  }

  #finish(item: Asked, result: ItemResult): void {
    if (item.isDone) return;
    item.isDone = true;
    this.#unanswered--;
    this.#pull.onItem(item.index, result);
    this.#failAtEnd();
    this.#settle();
  }

  #settle(): void {
    const isSettled = this.#fault !== null || this.#unanswered === 0;
    if (!isSettled || this.#receiving > 0 || this.#isOver) return;
    this.#isOver = true;
    this.#patience.signal.removeEventListener("abort", this.#onAbort);
    this.#resolve(this.#fault);
  }
}
