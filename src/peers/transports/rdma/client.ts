import { type Clock, messageOf } from "../../../core/index.ts";
import type { RdmaQueuePair, RdmaRead, RdmaWindow } from "../../../native/index.ts";
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
  type Writers,
} from "../control-channel/index.ts";
import type { RdmaMessage } from "./control.ts";

type Frame = Extract<Part, { kind: "frame" }>;

/**
 * Client's side of one pull over RDMA. For each block, the server sends the header and the address
 * at which the client can read the payload. The client compares the header with its request, reads
 * the payload, and reports to the server when it does not read it any more, even if the read
 * failed.
 */
export class RdmaPull extends ClientPull {
  readonly #id: number;
  readonly #rails: RdmaClient;

  /** Sends the pull request. */
  constructor(id: number, rails: RdmaClient, pull: OutgoingPull, deadline: Deadline) {
    const { clock, channel } = rails;
    super({ id, pull, deadline, clock, writers: rails, channel });
    this.#id = id;
    this.#rails = rails;
    channel.send({ kind: "pull", id, body: this.body });
  }

  /** Handles the refusal of a block. Returns the reason if it is invalid, otherwise null. */
  takePart(part: Part): string | null {
    if (part.kind === "frame") return "frame without a readable block";
    return this.fault === null ? this.take(part) : null;
  }

  /**
   * Handles the header of a block whose payload can now be read. Returns the reason if it is
   * invalid, otherwise null.
   */
  takeLent(part: Frame, rail: number, window: RdmaWindow): string | null {
    const { index, header } = part;
    if (this.fault !== null) {
      this.#giveBack(index);
      return null;
    }
    const wrong = this.take(part);
    if (wrong !== null) return wrong;
    this.#read(this.all[index], header, rail, window);
    return null;
  }

  #read(item: RequestedItem, header: FrameHeader, rail: number, window: RdmaWindow): void {
    try {
      const { writer, done } = this.#rails.read(rail, window, item.offset, header.bytes);
      const over = done.finally(() => this.#giveBack(item.index));
      this.write(item, writer, over, (read) => this.#wasRead(item, header, read));
    } catch (thrown) {
      this.giveUp({
        kind: "broken",
        why: `starting an RDMA read failed: ${messageOf(thrown)}`,
      });
    }
  }

  #wasRead(item: RequestedItem, header: FrameHeader, read: RdmaRead): void {
    if (read.ok) this.came(item, header, read.checksum);
    else if (read.fault === "full") this.finish(item, OVERLOADED);
    else this.giveUp({ kind: "broken", why: `RDMA read failed: ${read.fault}` });
  }

  #giveBack(index: number): void {
    this.#rails.channel.send({ kind: "taken", id: this.#id, index });
  }
}

interface Reading {
  readonly connection: RdmaQueuePair;
  readonly token: number;
  /**
   * Timer that ends the queue pair if a cancelled read does not end. Null if the read was not
   * cancelled.
   */
  grace: Disposable | null;
}

/**
 * Client's payload part of a connection: queue pairs through which blocks are read from the
 * server's memory.
 */
export class RdmaClient implements ClientPayload<RdmaMessage, RdmaPull>, Writers {
  /** Always 0: RDMA payload uses no transfer numbers. */
  readonly used = 0;
  readonly channel: ControlChannel<RdmaMessage>;
  readonly clock: Clock;
  readonly ended: Promise<ConnectionFault>;
  readonly #connections: readonly RdmaQueuePair[];
  readonly #graceMs: number;
  /** Running reads by writer number. */
  readonly #reading = new Map<number, Reading>();
  #nextWriter = 0;
  readonly #onEnd: (fault: ConnectionFault) => void;

  /**
   * `connections`: connected queue pairs, in the order of the pairs in the server's welcome.
   * `graceMs`: milliseconds for a cancelled read to end.
   */
  constructor(
    connections: readonly RdmaQueuePair[],
    channel: ControlChannel<RdmaMessage>,
    clock: Clock,
    graceMs: number,
  ) {
    this.#connections = connections;
    this.channel = channel;
    this.clock = clock;
    this.#graceMs = graceMs;
    const { promise, resolve } = Promise.withResolvers<ConnectionFault>();
    this.ended = promise;
    this.#onEnd = resolve;
    for (const { ended } of connections) {
      void ended.then((fault) => resolve({ kind: "broken", why: `queue pair failed: ${fault}` }));
    }
  }

  begin(id: number, pull: OutgoingPull, deadline: Deadline): RdmaPull {
    return new RdmaPull(id, this, pull, deadline);
  }

  take(message: RdmaMessage, pull: RdmaPull | undefined): string | null {
    if (message.kind !== "part" && message.kind !== "lent") return UNEXPECTED_REQUEST;
    const { id, body } = message;
    const decoded = decodePart(body);
    if (!decoded.ok) return decoded.why;
    const { part } = decoded;
    if (message.kind === "part") return pull?.takePart(part) ?? null;
    if (part.kind !== "frame") return "readable block with a refusal";
    const { rail, window } = message;
    if (rail >= this.#connections.length) return "block on an unknown rail";
    if (pull !== undefined) return pull.takeLent(part, rail, window);
    // The pull was cancelled before this message arrived: report at once that the block is not
    // read.
    this.channel.send({ kind: "taken", id, index: part.index });
    return null;
  }

  /**
   * Starts to read a block into the arena. `writer` identifies the read until `done` has resolved.
   */
  read(
    rail: number,
    window: RdmaWindow,
    offset: number,
    bytes: number,
  ): { readonly writer: number; readonly done: Promise<RdmaRead> } {
    const connection = this.#connections[rail];
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

  /** Cancels a read. If it does not end within `graceMs`, ends the queue pair as well. */
  cancel(writer: number): void {
    const reading = this.#reading.get(writer);
    if (reading === undefined) return;
    reading.connection.cancel(reading.token);
    reading.grace ??= this.clock.after(this.#graceMs, () =>
      this.#onEnd({ kind: "stalled", why: "a cancelled RDMA read did not end" }),
    );
  }

  async close(): Promise<void> {
    await Promise.all(this.#connections.map((connection) => connection[Symbol.asyncDispose]()));
  }
}
