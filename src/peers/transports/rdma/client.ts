import { type Clock, messageOf } from "../../../core/index.ts";
import type { RdmaQueuePair, RdmaRead, RdmaWindow } from "../../../native/index.ts";
import type { FrameHeader, ItemRefusal } from "../../messages.ts";
import type { ConnectionFault, ConnectionFaultKind, OutgoingPull } from "../../transport.ts";
import { decodePart, encodeRequest, type Part } from "../../wire/index.ts";
import type { Deadline } from "../connection-state.ts";
import {
  type ClientPayload,
  type ClientPull,
  type ControlChannel,
  OVERLOADED,
  type RequestedItem,
  RequestedItems,
  type RequestIds,
  UNEXPECTED_REQUEST,
  type Writers,
} from "../control-channel/index.ts";
import type { RdmaControl, RdmaMessage } from "./control.ts";
import type { RdmaLimits } from "./rdma-transport.ts";

type Frame = Extract<Part, { kind: "frame" }>;

/**
 * One pull on the client's side. The server says for each block where it can be read. The client
 * reads it after comparing its header with the request, and returns it when nothing here reads it
 * any more, whatever the result.
 */
class RdmaPull implements ClientPull {
  readonly over: Promise<ConnectionFault | null>;
  readonly #id: number;
  readonly #rails: RdmaClient;
  readonly #items: RequestedItems;

  /** Sends the request. */
  constructor(id: number, rails: RdmaClient, pull: OutgoingPull, deadline: Deadline) {
    const { clock } = rails;
    this.#id = id;
    this.#rails = rails;
    const sayCancel = () => rails.send({ kind: "cancel", id });
    this.#items = new RequestedItems(pull, { clock, deadline, writers: rails, sayCancel });
    this.over = this.#items.over;
    const { namespace, items } = pull;
    const body = encodeRequest({ op: "pull", namespace, items, deadlineMs: deadline.leftMs });
    rails.send({ kind: "pull", id, body });
  }

  fail(fault: ConnectionFault): void {
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

  takeEnd(fault: ConnectionFault): void {
    this.#items.takeEnd(fault);
  }

  /** Handles an answer without a block. The reason it is invalid; null: valid. */
  takePart(part: Part): string | null {
    if (part.kind === "frame") return "frame without a readable block";
    return this.#items.fault === null ? this.#items.take(part) : null;
  }

  /** Handles a block that can be read. The reason it is invalid; null: valid. */
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

  #read(item: RequestedItem, header: FrameHeader, rail: number, window: RdmaWindow): void {
    try {
      const { writer, done } = this.#rails.read(rail, window, item.offset, header.bytes);
      const over = done.finally(() => this.#giveBack(item.index));
      this.#items.write(item, writer, over, (read) => this.#wasRead(item, header, read));
    } catch (thrown) {
      this.#items.giveUp({
        kind: "broken",
        why: `starting an RDMA read failed: ${messageOf(thrown)}`,
      });
    }
  }

  #wasRead(item: RequestedItem, header: FrameHeader, read: RdmaRead): void {
    if (read.ok) this.#items.came(item, header, read.checksum);
    else if (read.fault === "full") this.#items.finish(item, OVERLOADED);
    else this.#items.giveUp({ kind: "broken", why: `RDMA read failed: ${read.fault}` });
  }

  #giveBack(index: number): void {
    this.#rails.send({ kind: "taken", id: this.#id, index });
  }
}

export interface RdmaClientOptions {
  /** Connected, in the order of the welcome's pairs. */
  readonly connections: readonly RdmaQueuePair[];
  readonly channel: ControlChannel<RdmaMessage>;
  readonly clock: Clock;
  readonly limits: RdmaLimits;
  /** Ends the connection. */
  end(kind: ConnectionFaultKind, why: string): void;
}

interface Reading {
  readonly connection: RdmaQueuePair;
  readonly token: number;
  /** Timeout after a cancellation; null: not cancelled. */
  grace: Disposable | null;
}

/** The queue pairs that read the blocks of a connection's pulls. */
export class RdmaClient implements ClientPayload<RdmaMessage>, Writers {
  /** RDMA payload uses no transfer numbers. */
  readonly used = 0;
  readonly clock: Clock;
  readonly #options: RdmaClientOptions;
  readonly #pulls = new Map<number, RdmaPull>();
  /** By number of the writer. */
  readonly #reading = new Map<number, Reading>();
  #nextWriter = 0;

  constructor(options: RdmaClientOptions) {
    this.clock = options.clock;
    this.#options = options;
    for (const { ended } of options.connections) {
      void ended.then((fault) => options.end("broken", `queue pair failed: ${fault}`));
    }
  }

  send(message: RdmaControl): void {
    this.#options.channel.send(message);
  }

  begin(id: number, pull: OutgoingPull, deadline: Deadline): RdmaPull {
    const own = new RdmaPull(id, this, pull, deadline);
    this.#pulls.set(id, own);
    void own.over.then(() => this.#pulls.delete(id));
    return own;
  }

  take(message: RdmaMessage, connection: RequestIds): string | null {
    if (message.kind !== "part" && message.kind !== "lent") return UNEXPECTED_REQUEST;
    const { id, body } = message;
    const decoded = decodePart(body);
    if (!decoded.ok) return decoded.why;
    const { part } = decoded;
    const pull = this.#pulls.get(id);
    if (message.kind === "part") return pull?.takePart(part) ?? connection.mayName(id);
    if (part.kind !== "frame") return "readable block with a refusal";
    const { rail, window } = message;
    if (rail >= this.#options.connections.length) return "block on an unknown rail";
    if (pull !== undefined) return pull.takeLent(part, rail, window);
    // The pull was cancelled meanwhile: return the block at once.
    this.send({ kind: "taken", id, index: part.index });
    return connection.mayName(id);
  }

  /** Reads a block into the arena; `writer` is its number until `done` has resolved. */
  read(
    rail: number,
    window: RdmaWindow,
    offset: number,
    bytes: number,
  ): { readonly writer: number; readonly done: Promise<RdmaRead> } {
    const connection = this.#options.connections[rail]!;
    const writer = this.#nextWriter++;
    const { token, done } = connection.read(window, offset, bytes);
    const reading: Reading = { connection, token, grace: null };
    this.#reading.set(writer, reading);
    const over = done.finally(() => {
      this.#reading.delete(writer);
      reading.grace?.[Symbol.dispose]();
    });
    return { writer, done: over };
  }

  arrived(writer: number): number {
    const reading = this.#reading.get(writer);
    return reading === undefined ? 0 : reading.connection.arrived(reading.token);
  }

  /** A read that does not end after cancellation is ended together with its queue pair. */
  cancel(writer: number): void {
    const reading = this.#reading.get(writer);
    if (reading === undefined) return;
    reading.connection.cancel(reading.token);
    const { limits, end } = this.#options;
    reading.grace ??= this.clock.after(limits.graceMs, () =>
      end("stalled", "a cancelled RDMA read did not end"),
    );
  }

  async close(): Promise<void> {
    await Promise.all(
      this.#options.connections.map((connection) => connection[Symbol.asyncDispose]()),
    );
  }
}
