import type { Clock } from "../../../core/index.ts";
import type { OpenLaneSession, Received } from "../../../native/index.ts";
import type { FrameHeader } from "../../messages.ts";
import type { ConnectionFault, OutgoingPull } from "../../transport.ts";
import { decodePart, type Part } from "../../wire/index.ts";
import type { Deadline } from "../connection-state.ts";
import {
  type ClientPayload,
  ClientPull,
  type ControlChannel,
  OVERLOADED,
  type RequestedItem,
  UNEXPECTED_REQUEST,
} from "../control-channel/index.ts";
import type { StreamMessage } from "./control.ts";

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
export class StreamPull extends ClientPull {
  readonly #id: number;
  readonly #lanes: StreamClient;
  readonly #coming: readonly Coming[];
  readonly #announced: number;

  /** Sends the request. */
  constructor(id: number, lanes: StreamClient, pull: OutgoingPull, deadline: Deadline) {
    const { clock, connection: writers, channel } = lanes;
    super({ id, pull, deadline, clock, writers, channel });
    this.#id = id;
    this.#lanes = lanes;
    const announced = Math.min(lanes.announceable, pull.items.length);
    this.#announced = announced;
    this.#coming = pull.items.map(() => ({ checksum: null, hasNoRoom: false }));
    const { body } = this;
    const transfers = this.all
      .slice(0, announced)
      .map((item) => this.#receive(item, item.bytesMax));
    channel.send({ kind: "pull", id, transfer: transfers[0] ?? 0, announced, body });
  }

  /** Handles the answer for one item. The reason it is invalid; null: valid. */
  takePart(part: Part, sent: boolean): string | null {
    if (this.fault !== null) return null;
    const wrong = this.take(part);
    if (wrong !== null) return wrong;
    if (part.kind === "refusal") return sent ? "payload for a refused block" : null;
    const item = this.all[part.index]!;
    const { header } = part;
    if (!sent) {
      this.retire(item, () => this.#goOn(item, header.bytes));
      return null;
    }
    if (item.index >= this.#announced || header.bytes !== item.bytesMax) {
      return "payload before its place was announced";
    }
    this.#finishIfWhole(item, header);
    return null;
  }

  #receive(item: RequestedItem, bytes: number): number {
    const transfer = this.#lanes.takeTransfer();
    this.#lanes.countAnnounced(1);
    const received = this.#lanes.connection
      .receive(transfer, item.offset, bytes)
      .catch((): Received => ({ ok: false, fault: "broken" }))
      .finally(() => this.#lanes.countAnnounced(-1));
    this.write(item, transfer, received, (result) => this.#received(item, result));
    return transfer;
  }

  #received(item: RequestedItem, received: Received): void {
    if (received.ok || received.fault === "full") {
      const coming = this.#coming[item.index]!;
      coming.hasNoRoom = !received.ok;
      coming.checksum = received.ok ? received.checksum : null;
      if (item.header !== null) this.#finishIfWhole(item, item.header);
    } else if (received.fault !== "cancelled") {
      this.giveUp({ kind: "broken", why: `a lane failed: ${received.fault}` });
    }
    // If the server cancelled it, a message also says so.
  }

  #goOn(item: RequestedItem, bytes: number): void {
    this.#coming[item.index]!.hasNoRoom = false;
    const transfer = this.#receive(item, bytes);
    this.#lanes.channel.send({ kind: "go", id: this.#id, index: item.index, transfer });
  }

  #finishIfWhole(item: RequestedItem, header: FrameHeader): void {
    const { hasNoRoom, checksum } = this.#coming[item.index]!;
    if (hasNoRoom) this.finish(item, OVERLOADED);
    else if (checksum !== null) this.came(item, header, checksum);
  }
}

/** The lanes (data connections) that receive the blocks of a connection's pulls. */
export class StreamClient implements ClientPayload<StreamMessage, StreamPull> {
  readonly connection: OpenLaneSession;
  readonly channel: ControlChannel<StreamMessage>;
  readonly clock: Clock;
  readonly ended: Promise<ConnectionFault>;
  readonly #announcedMax: number;
  #announced = 0;
  #nextTransfer = 0;

  /** `announcedMax`: maximum places announced before their headers. */
  constructor(
    connection: OpenLaneSession,
    channel: ControlChannel<StreamMessage>,
    clock: Clock,
    announcedMax: number,
  ) {
    this.connection = connection;
    this.channel = channel;
    this.clock = clock;
    this.#announcedMax = announcedMax;
    this.ended = connection.ended.then((fault) => ({
      kind: "broken",
      why: `the lanes ended: ${fault}`,
    }));
  }

  get used(): number {
    return this.#nextTransfer;
  }

  /** Number of places that may be announced now, before their headers. */
  get announceable(): number {
    return Math.max(0, this.#announcedMax - this.#announced);
  }

  /** A transfer number that was never used on these lanes. */
  takeTransfer(): number {
    return this.#nextTransfer++;
  }

  /** Counts announced places. */
  countAnnounced(by: 1 | -1): void {
    this.#announced += by;
  }

  begin(id: number, pull: OutgoingPull, deadline: Deadline): StreamPull {
    return new StreamPull(id, this, pull, deadline);
  }

  take(message: StreamMessage, pull: StreamPull | undefined): string | null {
    if (message.kind !== "part") return UNEXPECTED_REQUEST;
    if (pull === undefined) return null;
    const decoded = decodePart(message.body);
    return decoded.ok ? pull.takePart(decoded.part, message.sent) : decoded.why;
  }

  async close(): Promise<void> {
    await this.connection[Symbol.asyncDispose]();
  }
}
