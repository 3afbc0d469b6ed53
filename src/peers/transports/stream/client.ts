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

/** State of a block that is being received. */
interface Coming {
  checksum: bigint | null;
  /** True if no native transfer was free, so that the payload was discarded. */
  hasNoRoom: boolean;
}

/**
 * Client's side of one pull over data connections ("lanes"). The memory for the first blocks is
 * announced to the lanes before the request is sent, so that a block of exactly the expected length
 * arrives without another round trip. For other blocks the header arrives first, and their memory
 * is announced then.
 */
export class StreamPull extends ClientPull {
  readonly #id: number;
  readonly #lanes: StreamClient;
  readonly #coming: readonly Coming[];
  readonly #announced: number;

  /** Announces memory for the first blocks, and sends the pull request. */
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

  /**
   * Handles the header or the refusal of one block. `sent`: the server is already sending the
   * payload. Returns the reason if the part is invalid, otherwise null.
   */
  takePart(part: Part, sent: boolean): string | null {
    if (this.fault !== null) return null;
    const wrong = this.take(part);
    if (wrong !== null) return wrong;
    if (part.kind === "refusal") return sent ? "payload for a refused block" : null;
    const item = this.all[part.index];
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
      const coming = this.#coming[item.index];
      coming.hasNoRoom = !received.ok;
      coming.checksum = received.ok ? received.checksum : null;
      if (item.header !== null) this.#finishIfWhole(item, item.header);
    } else if (received.fault !== "cancelled") {
      this.giveUp({ kind: "broken", why: `a lane failed: ${received.fault}` });
    }
    // After `cancelled` there is nothing to do: if the server cancelled the transfer, it also sends
    // a message.
  }

  #goOn(item: RequestedItem, bytes: number): void {
    this.#coming[item.index].hasNoRoom = false;
    const transfer = this.#receive(item, bytes);
    this.#lanes.channel.send({ kind: "go", id: this.#id, index: item.index, transfer });
  }

  #finishIfWhole(item: RequestedItem, header: FrameHeader): void {
    const { hasNoRoom, checksum } = this.#coming[item.index];
    if (hasNoRoom) this.finish(item, OVERLOADED);
    else if (checksum !== null) this.came(item, header, checksum);
  }
}

/**
 * Client's payload part of a connection: data connections ("lanes") on which blocks are received.
 */
export class StreamClient implements ClientPayload<StreamMessage, StreamPull> {
  readonly connection: OpenLaneSession;
  readonly channel: ControlChannel<StreamMessage>;
  readonly clock: Clock;
  readonly ended: Promise<ConnectionFault>;
  readonly #announcedMax: number;
  #announced = 0;
  #nextTransfer = 0;

  /** `announcedMax`: maximum blocks whose memory is announced before their headers have arrived. */
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

  /** Number of further blocks whose memory may be announced before their headers have arrived. */
  get announceable(): number {
    return Math.max(0, this.#announcedMax - this.#announced);
  }

  /** Returns a transfer number that was not used before on this connection. */
  takeTransfer(): number {
    return this.#nextTransfer++;
  }

  /** Counts a block whose memory was announced (1), or whose transfer has ended (-1). */
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
