import { loopTurns, TokenBuckets, type TurnSource } from "../core/index.ts";
import type { ControlLimits } from "./control-plane.ts";
import type { RefusalWord } from "./refusals.ts";

/** Commands of one subject that came and are not answered yet, and bytes of their bodies. */
const WAITING_MAX = 4_096;
const WAITING_BYTES_MAX = 32 * 2 ** 20;
/** The same of all subjects together. */
const ALL_WAITING_MAX = 8_192;
const ALL_WAITING_BYTES_MAX = 64 * 2 ** 20;
/** Subjects of issuers with an intake of their own; further ones use the one that all share. */
const SUBJECTS_MAX = 64;
/** Issuers that may use up their rates on the subject that all share. */
const SHARED_ISSUERS = 16;

/** The commands of one subject: it has slices of its own, and room that it cannot exceed. */
export interface Intake {
  readonly source: TurnSource;
  /** The issuer that the subject names; empty: all share it. */
  readonly issuer: string;
  waiting: number;
  waitingBytes: number;
}

export interface IntakeRefusal {
  readonly word: Extract<RefusalWord, "busy" | "rate_limited">;
  readonly words: string;
}

/** What comes on each subject, so that a flood on one leaves the others their room and time. */
export class Intakes {
  readonly #limits: () => ControlLimits;
  readonly #rates = new TokenBuckets();
  readonly #byIssuer = new Map<string, Intake>();
  waiting = 0;
  #waitingBytes = 0;

  constructor(limits: () => ControlLimits) {
    this.#limits = limits;
  }

  /** `issuer`: that the subject names; null: all share it. */
  of(issuer: string | null): Intake {
    const key = issuer ?? "";
    const known = this.#byIssuer.get(key);
    if (known !== undefined) return known;
    if (this.#byIssuer.size >= SUBJECTS_MAX && key !== "") {
      this.#dropIdle();
      if (this.#byIssuer.size >= SUBJECTS_MAX) return this.of(null);
    }
    const intake = { source: loopTurns.source(), issuer: key, waiting: 0, waitingBytes: 0 };
    this.#byIssuer.set(key, intake);
    return intake;
  }

  /** Why one more is not even read; null if it may come, and then a token of the rate is gone. */
  refusal({ issuer, waiting, waitingBytes }: Intake, bytes: number): IntakeRefusal | null {
    const isFull = waiting >= WAITING_MAX || waitingBytes + bytes > WAITING_BYTES_MAX;
    const areFull =
      this.waiting >= ALL_WAITING_MAX || this.#waitingBytes + bytes > ALL_WAITING_BYTES_MAX;
    if (isFull || areFull) return { word: "busy", words: `${this.waiting} commands wait here` };
    const { commandsPerSecond, commandsBurst } = this.#limits();
    const issuers = issuer === "" ? SHARED_ISSUERS : 1;
    const [perSecond, burst] = [commandsPerSecond * issuers, commandsBurst * issuers];
    if (this.#rates.take(issuer, loopTurns.nowMs(), perSecond, burst)) return null;
    return { word: "rate_limited", words: `${perSecond} commands a second on one subject` };
  }

  /** Counts a command that waits; the result ends that. */
  enter(intake: Intake, bytes: number): Disposable {
    const count = (sign: number) => {
      intake.waiting += sign;
      intake.waitingBytes += sign * bytes;
      this.waiting += sign;
      this.#waitingBytes += sign * bytes;
    };
    count(1);
    return { [Symbol.dispose]: () => count(-1) };
  }

  #dropIdle(): void {
    for (const [issuer, { waiting }] of this.#byIssuer) {
      if (waiting === 0) this.#byIssuer.delete(issuer);
    }
  }
}
