import type { IssuerRow } from "../index/index.ts";
import type { Refusal } from "./refusals.ts";

interface Reached {
  readonly epoch: bigint;
  /** Of the next command, at least. */
  readonly seqMin: bigint;
}

const ISSUERS_MAX = 4_096;
const U64_MAX = 0xffff_ffff_ffff_ffffn;
const NOTHING: Reached = { epoch: 0n, seqMin: 0n };

/**
 * How far each issuer has come: `epoch` keeps out a router that another one has replaced, `seq`
 * what comes late. Of more than 4,096 issuers those heard longest ago are forgotten. The rows carry
 * as `seq` the lowest that is still taken.
 */
export class Fences {
  /** Those heard longest ago first. */
  readonly #reached = new Map<string, Reached>();

  constructor(rows: readonly IssuerRow[]) {
    for (const { issuer, epoch, seq } of rows) this.#set(issuer, { epoch, seqMin: seq });
  }

  /** Why a command is refused; null where it is not. What it does not have fences nothing. */
  check(issuer: string, epoch: bigint | null, seq: bigint | null): Refusal | null {
    const reached = this.#reached.get(issuer) ?? NOTHING;
    if (epoch !== null && epoch < reached.epoch) {
      return { word: "fenced", words: `epoch ${epoch}, ${reached.epoch} has been seen` };
    }
    const isNewEpoch = epoch !== null && epoch > reached.epoch;
    if (seq === null || isNewEpoch || seq >= reached.seqMin) return null;
    return { word: "stale", words: `seq ${seq} after ${reached.seqMin - 1n}` };
  }

  /**
   * Notes a command that passed. Returns how to take it back where nothing became of it, which does
   * nothing once a later one has come.
   */
  advance(issuer: string, epoch: bigint | null, seq: bigint | null): () => void {
    if (epoch === null && seq === null) return () => undefined;
    const before = this.#reached.get(issuer) ?? NOTHING;
    const isNewEpoch = epoch !== null && epoch > before.epoch;
    const seqMin = seq === null ? (isNewEpoch ? 0n : before.seqMin) : nextSeq(seq);
    const after = { epoch: isNewEpoch ? epoch : before.epoch, seqMin };
    this.#set(issuer, after);
    return () => {
      if (this.#reached.get(issuer) === after) this.#set(issuer, before);
    };
  }

  /** As the ledger keeps it; null where the issuer never gave an epoch or number. */
  row(issuer: string): IssuerRow | null {
    const reached = this.#reached.get(issuer);
    return reached === undefined ? null : { issuer, epoch: reached.epoch, seq: reached.seqMin };
  }

  #set(issuer: string, reached: Reached): void {
    this.#reached.delete(issuer);
    this.#reached.set(issuer, reached);
    if (this.#reached.size <= ISSUERS_MAX) return;
    this.#reached.delete(this.#reached.keys().next().value!);
  }
}

/** The last number of an epoch may come twice: there is none behind it. */
function nextSeq(seq: bigint): bigint {
  return seq === U64_MAX ? seq : seq + 1n;
}
