import type { IssuerRow } from "../store/index/index.ts";
import type { Refusal, Sender } from "./command.ts";

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

/** No name of an account or issuer has it. */
const BETWEEN = "\x01";
/** No name of a token begins so: it has a blank. */
const PROVEN = "issuer ";

/**
 * Whose ids, epochs and numbers a command's are: those of its issuer, and of the account that sent
 * it if the transport knows one. So no sender can take the ids of another account, or fence it, by
 * claiming its name.
 */
export function scopeOf({ account }: Pick<Sender, "account">, issuer: string): string {
  return account === undefined ? issuer : `${account}${BETWEEN}${issuer}`;
}

/** The account of an issuer that has proved its name, whatever its proof. */
export function issuerAccount(issuer: string): string {
  return `${PROVEN}${issuer}`;
}

/** Whether the scope is that of an account, which no other sender can take. */
function isOfAccount(scope: string): boolean {
  return scope.includes(BETWEEN);
}

/** Whether the scope is that of an issuer that has proved its name. */
export function isProven(scope: string): boolean {
  return scope.startsWith(PROVEN) && isOfAccount(scope);
}

/** Without its account. */
function issuerOf(scope: string): string {
  return scope.slice(scope.lastIndexOf(BETWEEN) + 1);
}

/** Where a command stands among those of its issuer. */
export interface Place {
  /** Lanes in which it stands: those behind it there wait until it has changed its holds. */
  readonly lanes: readonly string[];
  /** Other lanes of which it waits for those before it. */
  readonly behind: readonly string[] | "all";
}

type Lanes = Map<string, Promise<void>>;

/**
 * Lets the commands of one issuer change holds in the order in which they came, where that makes a
 * difference. Each waits until those before it have changed what they change, not until that is
 * durable.
 */
export class IssuerOrder {
  /** By issuer the last in each lane that has not changed its holds yet. */
  readonly #issuers = new Map<string, Lanes>();

  /** Issuers of which a command has not changed its holds yet. */
  get waiting(): number {
    return this.#issuers.size;
  }

  /**
   * Takes the next place. `before` resolves when it is this command's turn, and is null where it is
   * at once; `done` lets those behind it go, and may be called more than once.
   */
  next(
    issuer: string,
    { lanes: own, behind }: Place,
  ): { readonly before: Promise<unknown> | null; readonly done: () => void } {
    const lanes = this.#issuers.get(issuer);
    const waitsFor = lanes === undefined ? [] : lastOf(lanes, own, behind);
    const before = waitsFor.length === 0 ? null : Promise.all(waitsFor);
    if (own.length === 0) return { before, done: () => undefined };
    return { before, done: this.#stand(issuer, own) };
  }

  #stand(issuer: string, own: readonly string[]): () => void {
    const { promise, resolve } = Promise.withResolvers<void>();
    let lanes = this.#issuers.get(issuer);
    if (lanes === undefined) {
      lanes = new Map();
      this.#issuers.set(issuer, lanes);
    }
    for (const lane of own) lanes.set(lane, promise);
    return () => {
      for (const lane of own) if (lanes.get(lane) === promise) lanes.delete(lane);
      if (lanes.size === 0 && this.#issuers.get(issuer) === lanes) this.#issuers.delete(issuer);
      resolve();
    };
  }
}

function lastOf(lanes: Lanes, own: readonly string[], behind: Place["behind"]): Promise<void>[] {
  if (behind === "all") return [...lanes.values()];
  return [...own, ...behind].flatMap((lane) => lanes.get(lane) ?? []);
}

const IDS_MAX = 2 ** 18;
const BUCKET_SECONDS = 60;

/**
 * Ids of signed commands that were taken, each until its `not_after`: whoever recorded one cannot
 * have it carried out again, also after the receipt is forgotten. Only commands whose signature was
 * right get in, so that nobody else can fill it.
 */
export class SignedIds {
  /** By the minute of `not_after`: a repetition has the same one, which is signed. */
  readonly #buckets = new Map<number, Set<string>>();
  #size = 0;

  has(scope: string, id: string, notAfterS: number): boolean {
    return this.#buckets.get(bucketOf(notAfterS))?.has(`${scope}\0${id}`) ?? false;
  }

  /** False if there is no room. `nowS`: seconds since 1970. */
  add(scope: string, id: string, notAfterS: number, nowS: number): boolean {
    this.#forgetBefore(nowS);
    if (this.#size >= IDS_MAX) return false;
    const bucket = bucketOf(notAfterS);
    const ids = this.#buckets.get(bucket) ?? new Set();
    this.#buckets.set(bucket, ids);
    this.#size -= ids.size;
    ids.add(`${scope}\0${id}`);
    this.#size += ids.size;
    return true;
  }

  /** The command was not carried out: it may come again. */
  remove(scope: string, id: string, notAfterS: number): void {
    if (this.#buckets.get(bucketOf(notAfterS))?.delete(`${scope}\0${id}`)) this.#size--;
  }

  /** A minute later than needed: the wall clock may be set back a little. */
  #forgetBefore(nowS: number): void {
    const oldest = bucketOf(nowS) - 1;
    for (const [bucket, ids] of this.#buckets) {
      if (bucket >= oldest) continue;
      this.#size -= ids.size;
      this.#buckets.delete(bucket);
    }
  }
}

function bucketOf(seconds: number): number {
  return Math.floor(seconds / BUCKET_SECONDS);
}
