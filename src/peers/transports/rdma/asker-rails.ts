import type { Clock } from "../../../core/index.ts";
import type { RdmaLink, RdmaRead, RdmaWindow } from "../../../native/index.ts";
import type { LinkFaultKind, OutgoingPull } from "../../transport.ts";
import { decodePart } from "../../wire/index.ts";
import {
  ASKED_HERE,
  type AskedIds,
  type AskerPayload,
  type MessageLine,
  type Writers,
} from "../line/index.ts";
import type { Patience } from "../patience.ts";
import { RdmaPull } from "./asked-pull.ts";
import type { RdmaControl, RdmaMessage } from "./control/index.ts";
import type { RdmaLimits } from "./limits.ts";

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
