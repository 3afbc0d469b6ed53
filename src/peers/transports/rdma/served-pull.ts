import type { Clock } from "../../../core/index.ts";
import type { Lent, RdmaLink, RdmaWindow } from "../../../native/index.ts";
import type { ServedBlock, TransportLog } from "../../transport.ts";
import { encodeRefusal } from "../../wire/index.ts";
import {
  type MessageLine,
  type RunningPull,
  type Sender,
  ServedItems,
  type ServedItemsOptions,
} from "../line/index.ts";
import type { RdmaMessage } from "./control/index.ts";
import type { RdmaLimits } from "./limits.ts";

export interface RdmaServedPullOptions extends ServedItemsOptions {
  readonly line: MessageLine<RdmaMessage>;
  /** Connected. */
  readonly links: readonly RdmaLink[];
  readonly clock: Clock;
  readonly limits: RdmaLimits;
  readonly log: TransportLog;
}

/** A block whose span is lent to the asker, or about to be. */
interface Loan {
  readonly link: RdmaLink;
  readonly token: number;
  /** Its header and window were said. */
  isSaid: boolean;
  isReturning: boolean;
  /** When it is taken back whoever reads it. */
  limit: Disposable | null;
}

/** Said with a block that is not lent, since its header is none that was asked for. */
const NO_WINDOW: RdmaWindow = { address: 0n, key: 0 };

/**
 * One pull whose blocks are read by the asker's device. Each is lent alone, read-only, and comes
 * back when nobody can read it any more: after the asker said so, or its time is over.
 */
export class RdmaServedPull implements RunningPull, Sender {
  readonly #options: RdmaServedPullOptions;
  readonly #items: ServedItems;
  readonly #loans = new Map<number, Loan>();
  #nextRail = 0;

  constructor(options: RdmaServedPullOptions) {
    this.#options = options;
    this.#items = new ServedItems(options, this);
  }

  run(): Promise<void> {
    return this.#items.run(Promise.resolve(true));
  }

  cancel(): void {
    this.#items.cancel();
  }

  refuse(_index: number, body: Uint8Array): void {
    const { id, line } = this.#options;
    line.send({ kind: "part", id, body });
  }

  send(index: number, block: ServedBlock, isAsked: boolean): void {
    const { id, line, links } = this.#options;
    const { header, offset } = block;
    const body = this.#items.frame(index, header);
    if (!isAsked) {
      line.send({ kind: "lent", id, rail: 0, window: NO_WINDOW, body });
      this.#items.release(index);
      return;
    }
    const rail = this.#nextRail++ % links.length;
    const link = links[rail]!;
    const { token, lent } = link.lend(offset, header.bytes);
    const loan: Loan = { link, token, isSaid: false, isReturning: false, limit: null };
    this.#loans.set(index, loan);
    void lent.then((outcome) => this.#wasLent(index, loan, outcome, { rail, body }));
  }

  #wasLent(
    index: number,
    loan: Loan,
    outcome: Lent,
    said: { readonly rail: number; readonly body: Uint8Array },
  ): void {
    const { id, line, clock, limits } = this.#options;
    if (this.#loans.get(index) !== loan) return;
    if (!outcome.ok) {
      this.#loans.delete(index);
      this.#putOff(index, outcome.fault);
      return;
    }
    if (this.#items.isGivenUp) {
      this.#putOff(index, null);
      void this.#takeBack(index, loan);
      return;
    }
    loan.isSaid = true;
    loan.limit = clock.after(limits.lentMs, () => this.#revoke(index, loan));
    line.send({ kind: "lent", id, window: outcome.window, ...said });
  }

  /** It is not lent: whoever asks again may have more luck. */
  #putOff(index: number, fault: string | null): void {
    const { limits, log, peer } = this.#options;
    if (fault === "unregistered") {
      log("error", "a block could not be lent to a device", { peer: peer.worker, why: fault });
    }
    const { retryAfterMs } = limits;
    this.refuse(index, encodeRefusal(index, { kind: "busy", retryAfterMs }));
    if (fault !== null) this.#items.release(index);
  }

  /** The asker does not read it any more. False: it was never lent to it. */
  taken(index: number): boolean {
    const loan = this.#loans.get(index);
    if (loan === undefined) return this.#items.isAnswered(index);
    if (!loan.isSaid) return false;
    void this.#takeBack(index, loan);
    return true;
  }

  /** The asker may be reading: it has a moment to stop, and to say so. */
  giveUp(indexes: readonly number[]): void {
    const { clock, limits } = this.#options;
    for (const index of indexes) {
      const loan = this.#loans.get(index);
      if (loan === undefined || !loan.isSaid || loan.isReturning) continue;
      loan.limit?.[Symbol.dispose]();
      loan.limit = clock.after(limits.graceMs, () => this.#revoke(index, loan));
    }
  }

  /** Takes it from whoever still reads it: his read fails, and his queue pair with it. */
  #revoke(index: number, loan: Loan): void {
    const { id, line } = this.#options;
    line.send({ kind: "lost", id, index });
    void this.#takeBack(index, loan);
  }

  async #takeBack(index: number, loan: Loan): Promise<void> {
    if (loan.isReturning) return;
    loan.isReturning = true;
    loan.limit?.[Symbol.dispose]();
    await loan.link.takeBack(loan.token);
    this.#letGo(index, loan);
  }

  #letGo(index: number, loan: Loan): void {
    if (this.#loans.get(index) !== loan) return;
    this.#loans.delete(index);
    this.#items.release(index);
  }

  /** The queue pairs are gone: nobody reads anything any more. */
  linkEnded(): void {
    for (const [index, loan] of [...this.#loans]) {
      loan.limit?.[Symbol.dispose]();
      this.#letGo(index, loan);
    }
  }
}
