import type { Clock } from "../../../core/index.ts";
import type { OpenLaneSession, Received } from "../../../native/index.ts";
import type { FrameHeader, ItemRefusal } from "../../messages.ts";
import type { ConnectionFault, OutgoingPull } from "../../transport.ts";
import { decodePart, encodeRequest, type Part } from "../../wire/index.ts";
import type { Deadline } from "../connection-state.ts";
import {
  type ClientPayload,
  type ControlChannel,
  OVERLOADED,
  type RequestedItem,
  RequestedItems,
  type RequestIds,
  UNEXPECTED_REQUEST,
} from "../control-channel/index.ts";
import type { ControlMessage, StreamMessage } from "./control.ts";
import type { StreamLimits } from "./stream-transport.ts";

/** A block being received. */
interface Coming {
  checksum: bigint | null;
  /** The lanes had no free transfer: the payload is discarded. */
  hasNoRoom: boolean;
}

/**
 * One pull on the client's side. Places of the first items are announced to the lanes before the
 * request is sent, so that blocks of exactly the expected length arrive without another round trip;
 * for other blocks the header arrives first, and the place is announced then.
 */
class ClientPull {
  readonly over: Promise<ConnectionFault | null>;
  readonly #id: number;
  readonly #lanes: StreamClient;
  readonly #items: RequestedItems;
  readonly #coming: readonly Coming[];
  readonly #announced: number;

  /** Sends the request. */
  constructor(id: number, lanes: StreamClient, pull: OutgoingPull, deadline: Deadline) {
    const { clock, connection } = lanes;
    this.#id = id;
    this.#lanes = lanes;
    this.#announced = Math.min(lanes.announceable, pull.items.length);
    const sayCancel = () => lanes.send({ kind: "cancel", id });
    this.#items = new RequestedItems(pull, { clock, deadline, writers: connection, sayCancel });
    this.over = this.#items.over;
    this.#coming = pull.items.map(() => ({ checksum: null, hasNoRoom: false }));
    const { namespace, items } = pull;
    const body = encodeRequest({ op: "pull", namespace, items, deadlineMs: deadline.leftMs });
    const first = this.#items.all.slice(0, this.#announced);
    const transfers = first.map((item) => this.#receive(item, item.bytesMax));
    const [transfer, announced] = [transfers[0] ?? 0, this.#announced];
    lanes.send({ kind: "pull", id, transfer, announced, body });
  }

  fail(fault: ConnectionFault): void {
    this.#items.fail(fault);
  }

  count(stallMs: number): void {
    this.#items.count(stallMs);
  }

  /** Handles the answer for one item. The reason it is invalid; null: valid. */
  takePart(part: Part, sent: boolean): string | null {
    if (this.#items.fault !== null) return null;
    const wrong = this.#items.take(part);
    if (wrong !== null) return wrong;
    if (part.kind === "refusal") return sent ? "payload for a refused block" : null;
    const item = this.#items.all[part.index]!;
    const { header } = part;
    if (!sent) {
      this.#items.retire(item, () => this.#goOn(item, header.bytes));
      return null;
    }
    if (item.index >= this.#announced || header.bytes !== item.bytesMax) {
      return "payload before its place was announced";
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

  takeEnd(fault: ConnectionFault): void {
    this.#items.takeEnd(fault);
  }

  #receive(item: RequestedItem, bytes: number): number {
    const transfer = this.#lanes.takeTransfer();
    this.#lanes.countAnnounced(1);
    const received = this.#lanes.connection
      .receive(transfer, item.offset, bytes)
      .catch((): Received => ({ ok: false, fault: "broken" }))
      .finally(() => this.#lanes.countAnnounced(-1));
    this.#items.write(item, transfer, received, (result) => this.#received(item, result));
    return transfer;
  }

  #received(item: RequestedItem, received: Received): void {
    if (received.ok || received.fault === "full") {
      const coming = this.#coming[item.index]!;
      coming.hasNoRoom = !received.ok;
      coming.checksum = received.ok ? received.checksum : null;
      if (item.header !== null) this.#finishIfWhole(item, item.header);
    } else if (received.fault !== "cancelled") {
      this.#items.giveUp({ kind: "broken", why: `a lane failed: ${received.fault}` });
    }
    // If the server cancelled it, a message also says so.
  }

  #goOn(item: RequestedItem, bytes: number): void {
    this.#coming[item.index]!.hasNoRoom = false;
    const transfer = this.#receive(item, bytes);
    this.#lanes.send({ kind: "go", id: this.#id, index: item.index, transfer });
  }

  #finishIfWhole(item: RequestedItem, header: FrameHeader): void {
    const { hasNoRoom, checksum } = this.#coming[item.index]!;
    if (hasNoRoom) this.#items.finish(item, OVERLOADED);
    else if (checksum !== null) this.#items.came(item, header, checksum);
  }
}

export interface StreamClientOptions {
  readonly connection: OpenLaneSession;
  readonly channel: ControlChannel<StreamMessage>;
  readonly clock: Clock;
  readonly limits: StreamLimits;
}

/** The lanes (data connections) that receive the blocks of a connection's pulls. */
export class StreamClient implements ClientPayload<StreamMessage> {
  readonly connection: OpenLaneSession;
  readonly clock: Clock;
  readonly #options: StreamClientOptions;
  readonly #pulls = new Map<number, ClientPull>();
  #announced = 0;
  #nextTransfer = 0;

  constructor(options: StreamClientOptions) {
    this.connection = options.connection;
    this.clock = options.clock;
    this.#options = options;
  }

  get used(): number {
    return this.#nextTransfer;
  }

  /** Number of places that may be announced now, before their headers. */
  get announceable(): number {
    return Math.max(0, this.#options.limits.announcedMax - this.#announced);
  }

  /** A transfer number that was never used on these lanes. */
  takeTransfer(): number {
    return this.#nextTransfer++;
  }

  /** Counts announced places. */
  countAnnounced(by: 1 | -1): void {
    this.#announced += by;
  }

  send(message: ControlMessage): void {
    this.#options.channel.send(message);
  }

  begin(id: number, pull: OutgoingPull, deadline: Deadline): ClientPull {
    const own = new ClientPull(id, this, pull, deadline);
    this.#pulls.set(id, own);
    void own.over.then(() => this.#pulls.delete(id));
    return own;
  }

  take(message: StreamMessage, connection: RequestIds): string | null {
    if (message.kind !== "part") return UNEXPECTED_REQUEST;
    const { id, sent, body } = message;
    const pull = this.#pulls.get(id);
    if (pull === undefined) return connection.mayName(id);
    const decoded = decodePart(body);
    return decoded.ok ? pull.takePart(decoded.part, sent) : decoded.why;
  }

  async close(): Promise<void> {
    await this.connection[Symbol.asyncDispose]();
  }
}
