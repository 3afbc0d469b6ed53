import type { Clock } from "../../../core/index.ts";
import type { LaneLink } from "../../../native/index.ts";
import type { OutgoingPull } from "../../transport.ts";
import { decodePart } from "../../wire/index.ts";
import { ASKED_HERE, type AskedIds, type AskerPayload, type MessageLine } from "../line/index.ts";
import type { Patience } from "../patience.ts";
import { AskedPull } from "./asked-pull.ts";
import type { ControlMessage, StreamMessage } from "./control/index.ts";
import type { StreamLimits } from "./limits.ts";

export interface AskerLanesOptions {
  readonly link: LaneLink;
  readonly line: MessageLine<StreamMessage>;
  readonly clock: Clock;
  readonly limits: StreamLimits;
}

/** The lanes over which the blocks of a link's pulls come. */
export class AskerLanes implements AskerPayload<StreamMessage> {
  readonly link: LaneLink;
  readonly clock: Clock;
  readonly #options: AskerLanesOptions;
  readonly #pulls = new Map<number, AskedPull>();
  #announced = 0;
  #nextTransfer = 0;

  constructor(options: AskerLanesOptions) {
    this.link = options.link;
    this.clock = options.clock;
    this.#options = options;
  }

  get used(): number {
    return this.#nextTransfer;
  }

  /** So many places may be announced now, ahead of their headers. */
  get announceable(): number {
    return Math.max(0, this.#options.limits.announcedMax - this.#announced);
  }

  /** A number that no transfer of the lanes has had. */
  takeTransfer(): number {
    return this.#nextTransfer++;
  }

  /** A place more (or less) is announced to the other side. */
  countAnnounced(by: 1 | -1): void {
    this.#announced += by;
  }

  send(message: ControlMessage): void {
    this.#options.line.send(message);
  }

  begin(id: number, pull: OutgoingPull, patience: Patience): AskedPull {
    const asked = new AskedPull(id, this, pull, patience);
    this.#pulls.set(id, asked);
    void asked.over.then(() => this.#pulls.delete(id));
    return asked;
  }

  take(message: StreamMessage, link: AskedIds): string | null {
    if (message.kind !== "part") return ASKED_HERE;
    const { id, sent, body } = message;
    const pull = this.#pulls.get(id);
    if (pull === undefined) return link.mayName(id);
    const decoded = decodePart(body);
    return decoded.ok ? pull.takePart(decoded.part, sent) : decoded.why;
  }

  async close(): Promise<void> {
    await this.link[Symbol.asyncDispose]();
  }
}
