import type { IssuerRow } from "../store/index/index.ts";
import type { Refusal } from "./refusals.ts";
import { isOfAccount, isProven, issuerAccount, issuerOf, scopeOf } from "./scope.ts";

interface Reached {
  readonly epoch: bigint;
  /** Of the next command, at least. */
  readonly seqMin: bigint;
}

/** Of those with an account, and of those without. */
const SCOPES_MAX = 4_096;
/** Rows of others after which those of proven issuers are written again. */
const REFRESH_ROWS = 1_024;
const NOTHING: Reached = { epoch: 0n, seqMin: 0n };

/**
 * How far each scope has come: `epoch` keeps out a router that another one has replaced, `seq` what
 * comes late. The rows carry as `seq` the lowest that is still taken. Beyond 4,096 scopes with an
 * account, and 4,096 without, those heard longest ago are forgotten: names that are only claimed
 * push out none that is known.
 */
export class Fences {
  /** Those heard longest ago first. */
  readonly #claimed = new Map<string, Reached>();
  readonly #accounts = new Map<string, Reached>();
  #rowsSinceRefresh = 0;

  constructor(rows: readonly IssuerRow[]) {
    for (const { issuer, epoch, seq } of rows) this.#set(issuer, { epoch, seqMin: seq });
  }

  /** Why a command is refused; null if it is not. Without epoch and number nothing is fenced. */
  check(scope: string, epoch: bigint | null, seq: bigint | null): Refusal | null {
    const reached = this.#get(scope) ?? NOTHING;
    if (epoch !== null && epoch < reached.epoch) {
      return { word: "fenced", words: `epoch ${epoch}, ${reached.epoch} has been seen` };
    }
    const isNewEpoch = epoch !== null && epoch > reached.epoch;
    if (seq === null || isNewEpoch || seq >= reached.seqMin) return null;
    return { word: "stale", words: `seq ${seq} after ${reached.seqMin - 1n}` };
  }

  /**
   * Notes a command that passed; a proven issuer also without epoch and number. Returns how to take
   * it back if the command failed, which does nothing once a later one has come.
   */
  advance(scope: string, epoch: bigint | null, seq: bigint | null): () => void {
    const found = this.#get(scope);
    const isBinding = found === undefined && isProven(scope);
    if (epoch === null && seq === null && !isBinding) return () => undefined;
    const before = found ?? NOTHING;
    const isNewEpoch = epoch !== null && epoch > before.epoch;
    const seqMin = seq === null ? (isNewEpoch ? 0n : before.seqMin) : seq + 1n;
    const after = { epoch: isNewEpoch ? epoch : before.epoch, seqMin };
    this.#set(scope, after);
    return () => {
      if (this.#get(scope) === after) this.#set(scope, before);
    };
  }

  /** Whether this issuer has ever proved its name here. */
  wasProven(issuer: string): boolean {
    return this.#accounts.has(scopeOf({ account: issuerAccount(issuer) }, issuer));
  }

  /**
   * Notes a command as `advance` does if it brings anything new. Returns the rows that the ledger
   * is to take: its own, and now and then those of proven issuers, which names that are only
   * claimed would else push out there.
   */
  rowsAfter(scope: string, epoch: bigint | null, seq: bigint | null): IssuerRow[] {
    const isNews =
      epoch !== null || seq !== null || (isProven(scope) && !this.#accounts.has(scope));
    if (!isNews || this.check(scope, epoch, seq) !== null) return [];
    this.advance(scope, epoch, seq);
    const scopes = [scope];
    if (++this.#rowsSinceRefresh >= REFRESH_ROWS) {
      this.#rowsSinceRefresh = 0;
      scopes.push(...[...this.#accounts.keys()].filter(isProven));
    }
    return scopes.map((of) => rowOf(of, this.#get(of)!));
  }

  /** Forgets all scopes of an issuer, and that it proved its name. Returns them. */
  forget(issuer: string): string[] {
    const all = [...this.#claimed.keys(), ...this.#accounts.keys()];
    const scopes = all.filter((scope) => issuerOf(scope) === issuer);
    for (const scope of scopes) this.#mapOf(scope).delete(scope);
    return scopes;
  }

  #get(scope: string): Reached | undefined {
    return this.#mapOf(scope).get(scope);
  }

  #mapOf(scope: string): Map<string, Reached> {
    return isOfAccount(scope) ? this.#accounts : this.#claimed;
  }

  #set(scope: string, reached: Reached): void {
    const map = this.#mapOf(scope);
    map.delete(scope);
    map.set(scope, reached);
    if (map.size <= SCOPES_MAX) return;
    map.delete(map.keys().next().value!);
  }
}

function rowOf(issuer: string, { epoch, seqMin }: Reached): IssuerRow {
  return { issuer, epoch, seq: seqMin };
}

/** Counters go up to here; beyond it a number is a time. */
const COUNTER_MAX = 2n ** 40n;
const AHEAD_MS = 86_400_000;
/** A day of 2001, in milliseconds: with less a time in one unit could be one in another. */
const TIME_MIN_MS = 10n ** 12n;
const UNITS_A_MS = [1n, 10n ** 3n, 10n ** 6n];

/**
 * Whether an epoch or a number leaves room for later ones: a counter up to 2^40, or a time since
 * 1970 in milliseconds, microseconds or nanoseconds, at most a day ahead of this clock.
 */
export function isPlausible(number: bigint, nowMs: number): boolean {
  if (number <= COUNTER_MAX) return true;
  const latestMs = BigInt(Math.floor(nowMs + AHEAD_MS));
  return UNITS_A_MS.some((unit) => number >= TIME_MIN_MS * unit && number <= latestMs * unit);
}
