import type { Clock, WorkerId } from "../../core/index.ts";
import type { TransportLog } from "../transport.ts";
import type { PeerIdentity, Trust } from "../trust.ts";

/** A link that lives, with the certificate that its peer showed. */
export interface HeldLink {
  readonly der: Uint8Array;
  readonly identity: PeerIdentity;
  /** Whom we called; null: it called us. */
  readonly dialled: WorkerId | null;
  /** Its certificate is not accepted any more: ends it. */
  refuse(why: string): void;
}

export interface HeldLinksOptions {
  readonly trust: Trust;
  readonly clock: Clock;
  readonly log: TransportLog;
  /** How often it is looked whether a certificate has ended, in milliseconds. */
  readonly lookMs: number;
}

/**
 * The links of a transport, held against what is believed now: one that would be refused if it were
 * made anew ends when that changes, and when its certificate ends. Those that are good go on.
 */
export class HeldLinks {
  readonly #options: HeldLinksOptions;
  readonly #links = new Set<HeldLink>();
  #timer: Disposable | null = null;

  constructor(options: HeldLinksOptions) {
    this.#options = options;
  }

  /** From now on, until disposed. */
  hold(link: HeldLink): Disposable {
    const { clock, lookMs } = this.#options;
    this.#links.add(link);
    this.#timer ??= clock.every(lookMs, () => this.#look());
    return { [Symbol.dispose]: () => this.#drop(link) };
  }

  #drop(link: HeldLink): void {
    this.#links.delete(link);
    if (this.#links.size > 0) return;
    this.#timer?.[Symbol.dispose]();
    this.#timer = null;
  }

  /** What is believed has changed: ends those that are not accepted any more. */
  judge(): void {
    for (const link of [...this.#links]) this.#judge(link);
  }

  /** Signatures are not verified again for nothing. */
  #look(): void {
    const nowMs = this.#options.clock.wallMs();
    for (const link of [...this.#links]) {
      if (link.identity.notAfterMs < nowMs) this.#judge(link);
    }
  }

  #judge(link: HeldLink): void {
    const { trust, log } = this.#options;
    const judged = trust.judge(link.der, link.dialled);
    if (judged.ok) return;
    const { why } = judged;
    log("warn", "a peer is not accepted any more", { peer: link.identity.worker, why });
    this.#drop(link);
    link.refuse(why);
  }
}
