import { type Clock, messageOf } from "../../../core/index.ts";
import type { RdmaLink, RdmaRead, RdmaWindow } from "../../../native/index.ts";
import type { FrameHeader, ItemRefusal } from "../../messages.ts";
import type { LinkFault, LinkFaultKind, OutgoingPull } from "../../transport.ts";
import { decodePart, encodeRequest, type Part } from "../../wire/index.ts";
import type { Patience } from "../connection-state.ts";
import {
  ASKED_HERE,
  type AskedIds,
  type AskedItem,
  AskedItems,
  type AskedPull,
  type AskerPayload,
  CROWDED,
  type MessageLine,
  type Writers,
} from "../control-channel/index.ts";
import type { RdmaControl, RdmaMessage } from "./control.ts";
import type { RdmaLimits } from "./rdma-transport.ts";

type Frame = Extract<Part, { kind: "frame" }>;

/**
 * One pull as its asker sees it. The holder says of each block where it may be read; it is read as
 * soon as its header was compared with what was asked for, and handed back when nothing of this
 * side reads it any more, however that ended.
 */
class RdmaPull implements AskedPull {
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

export interface AskerRailsOptions {
  /** Connected, in the order of the welcome's pairs. */
  readonly links: readonly RdmaLink[];
  readonly line: MessageLine<RdmaMessage>;
  readonly clock: Clock;
  readonly limits: RdmaLimits;
  /** The link has to end. */
  end(kind: LinkFaultKind, why: string): void;
}

interface Reading {
  readonly link: RdmaLink;
  readonly token: number;
  /** Since it was cancelled: it must end. */
  grace: Disposable | null;
}

/** The queue pairs over which the blocks of a link's pulls are read. */
export class AskerRails implements AskerPayload<RdmaMessage>, Writers {
  /** No number of the wire is used up by payload. */
  readonly used = 0;
  readonly clock: Clock;
  readonly #options: AskerRailsOptions;
  readonly #pulls = new Map<number, RdmaPull>();
  /** By the number of the writer. */
  readonly #reading = new Map<number, Reading>();
  #nextWriter = 0;

  constructor(options: AskerRailsOptions) {
    this.clock = options.clock;
    this.#options = options;
    for (const { ended } of options.links) {
      void ended.then((fault) => options.end("broken", `its queue pair ended: ${fault}`));
    }
  }

  send(message: RdmaControl): void {
    this.#options.line.send(message);
  }

  begin(id: number, pull: OutgoingPull, patience: Patience): RdmaPull {
    const asked = new RdmaPull(id, this, pull, patience);
    this.#pulls.set(id, asked);
    void asked.over.then(() => this.#pulls.delete(id));
    return asked;
  }

  take(message: RdmaMessage, link: AskedIds): string | null {
    if (message.kind !== "part" && message.kind !== "lent") return ASKED_HERE;
    const { id, body } = message;
    const decoded = decodePart(body);
    if (!decoded.ok) return decoded.why;
    const { part } = decoded;
    const pull = this.#pulls.get(id);
    if (message.kind === "part") return pull?.takePart(part) ?? link.mayName(id);
    if (part.kind !== "frame") return "it lent what it refuses";
    const { rail, window } = message;
    if (rail >= this.#options.links.length) return "it lent over a rail that there is not";
    if (pull !== undefined) return pull.takeLent(part, rail, window);
    // Lent while it was given up here: it goes back at once.
    this.send({ kind: "taken", id, index: part.index });
    return link.mayName(id);
  }

  /** Reads a block into the arena; `writer` knows it until `done` has resolved. */
  read(
    rail: number,
    window: RdmaWindow,
    offset: number,
    bytes: number,
  ): { readonly writer: number; readonly done: Promise<RdmaRead> } {
    const link = this.#options.links[rail]!;
    const writer = this.#nextWriter++;
    const { token, done } = link.read(window, offset, bytes);
    const reading: Reading = { link, token, grace: null };
    this.#reading.set(writer, reading);
    const over = done.finally(() => {
      this.#reading.delete(writer);
      reading.grace?.[Symbol.dispose]();
    });
    return { writer, done: over };
  }

  arrived(writer: number): number {
    const reading = this.#reading.get(writer);
    return reading === undefined ? 0 : reading.link.arrived(reading.token);
  }

  /** A read that the device does not end by itself is ended with its queue pair. */
  cancel(writer: number): void {
    const reading = this.#reading.get(writer);
    if (reading === undefined) return;
    reading.link.cancel(reading.token);
    const { limits, end } = this.#options;
    reading.grace ??= this.clock.after(limits.graceMs, () =>
      end("stalled", "a read that was given up did not end"),
    );
  }

  async close(): Promise<void> {
    await Promise.all(this.#options.links.map((link) => link[Symbol.asyncDispose]()));
  }
}
