import type { IssuerRow } from "../store/index/index.ts";
import type { Refusal, Sender } from "./command.ts";

/** Cannot occur in the name of an account or issuer. */
const BETWEEN = "\x01";
/** Cannot start the name of a token, because of the blank. */
const PROVEN = "issuer ";

/**
 * The scope of a command's id, epoch and number: its issuer, plus the sender's account if the
 * transport knows it. A sender therefore cannot use the ids of another account or fence it by
 * claiming its name.
 */
export function scopeOf({ account }: Pick<Sender, "account">, issuer: string): string {
  return account === undefined ? issuer : `${account}${BETWEEN}${issuer}`;
}

/** Account of an issuer that has proved its name, by whichever proof. */
export function issuerAccount(issuer: string): string {
  return `${PROVEN}${issuer}`;
}

/** Whether the scope has an account, which no other sender can use. */
function isOfAccount(scope: string): boolean {
  return scope.includes(BETWEEN);
}

/** Whether the scope belongs to an issuer that has proved its name. */
export function isProven(scope: string): boolean {
  return scope.startsWith(PROVEN) && isOfAccount(scope);
}

/** The issuer of a scope, without the account. */
function issuerOf(scope: string): string {
  return scope.slice(scope.lastIndexOf(BETWEEN) + 1);
}

interface Reached {
  readonly epoch: bigint;
  /** Lowest number that the next command may have. */
  readonly seqMin: bigint;
}

/** Maximum scopes with an account, and without one. */
const SCOPES_MAX = 4_096;
/** Number of rows of unproven scopes after which the rows of proven issuers are written again. */
const REFRESH_ROWS = 1_024;
const NOTHING: Reached = { epoch: 0n, seqMin: 0n };

/**
 * The latest epoch and number of each scope. `epoch` rejects a router that another one has
 * replaced; `seq` rejects late commands. A ledger row stores the lowest acceptable `seq`. At most
 * 4,096 scopes with an account and 4,096 without are kept, and the least recently heard are
 * evicted, so that claimed names cannot evict authenticated ones.
 */
export class Fences {
  /** Least recently heard first. */
  readonly #claimed = new Map<string, Reached>();
  readonly #accounts = new Map<string, Reached>();
  #rowsSinceRefresh = 0;

  constructor(rows: readonly IssuerRow[]) {
    for (const { issuer, epoch, seq } of rows) this.#set(issuer, { epoch, seqMin: seq });
  }

  /**
   * Returns the refusal of a command, or null. A command without epoch and number is never fenced.
   */
  check(scope: string, epoch: bigint | null, seq: bigint | null): Refusal | null {
    const reached = this.#get(scope) ?? NOTHING;
    if (epoch !== null && epoch < reached.epoch) {
      return { code: "fenced", message: `epoch ${epoch} is below ${reached.epoch}` };
    }
    const isNewEpoch = epoch !== null && epoch > reached.epoch;
    if (seq === null || isNewEpoch || seq >= reached.seqMin) return null;
    return { code: "stale", message: `seq ${seq} is not above ${reached.seqMin - 1n}` };
  }

  /**
   * Records an accepted command; for a proven issuer also if it has no epoch and number. Returns a
   * function that undoes the record if the command fails; it has no effect after a later command.
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

  /** Whether this issuer has proved its name to this agent before. */
  wasProven(issuer: string): boolean {
    return this.#accounts.has(scopeOf({ account: issuerAccount(issuer) }, issuer));
  }

  /**
   * Records a command like `advance` if it changes anything. Returns the rows to write to the
   * ledger: its own, and periodically those of proven issuers, which rows of claimed names would
   * otherwise evict there.
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

  /**
   * Removes all scopes of an issuer, including the record that it proved its name. Returns the
   * scopes.
   */
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

/** Highest counter. Larger numbers are times. */
const COUNTER_MAX = 2n ** 40n;
const AHEAD_MS = 86_400_000;
/**
 * A day of 2001 in milliseconds. With a lower minimum, a time in one unit could pass for a time in
 * another.
 */
const TIME_MIN_MS = 10n ** 12n;
const UNITS_A_MS = [1n, 10n ** 3n, 10n ** 6n];

/**
 * Whether an epoch or number leaves room for later ones: a counter up to 2^40, or a time since 1970
 * in milliseconds, microseconds or nanoseconds, at most one day ahead of this clock.
 */
export function isPlausible(number: bigint, nowMs: number): boolean {
  if (number <= COUNTER_MAX) return true;
  const latestMs = BigInt(Math.floor(nowMs + AHEAD_MS));
  return UNITS_A_MS.some((unit) => number >= TIME_MIN_MS * unit && number <= latestMs * unit);
}

/** Position of a command among those of its issuer. */
export interface LanePosition {
  /**
   * Lanes of this command. Later commands in these lanes wait until it has changed pins and leases.
   */
  readonly lanes: readonly string[];
  /** Other lanes whose earlier commands this one waits for. */
  readonly behind: readonly string[] | "all";
}

type Lanes = Map<string, Promise<void>>;

/**
 * Orders the changes of pins and leases by commands of one issuer where the order matters. A
 * command waits until the earlier ones have made their changes, not until the changes are durable.
 */
export class IssuerOrder {
  /** For each issuer, the last pending command of each lane. */
  readonly #issuers = new Map<string, Lanes>();

  /** Number of issuers with pending commands. */
  get waiting(): number {
    return this.#issuers.size;
  }

  /**
   * Takes the next position. `before` resolves when it is this command's turn, and is null if that
   * is now. `done` releases the commands behind it and may be called more than once.
   */
  next(
    issuer: string,
    { lanes: own, behind }: LanePosition,
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

function lastOf(
  lanes: Lanes,
  own: readonly string[],
  behind: LanePosition["behind"],
): Promise<void>[] {
  if (behind === "all") return [...lanes.values()];
  return [...own, ...behind].flatMap((lane) => lanes.get(lane) ?? []);
}

const IDS_MAX = 2 ** 18;
const BUCKET_SECONDS = 60;

/**
 * Ids of accepted signed commands, each kept until its `not_after`. A recorded command therefore
 * cannot be replayed even after its receipt is forgotten. Only commands with a valid signature are
 * added, so that other senders cannot fill the set.
 */
export class SignedIds {
  /** By the minute of `not_after`, which is signed and so the same in every repetition. */
  readonly #buckets = new Map<number, Set<string>>();
  #size = 0;

  has(scope: string, id: string, notAfterS: number): boolean {
    return this.#buckets.get(bucketOf(notAfterS))?.has(`${scope}\0${id}`) ?? false;
  }

  /** Returns false if the set is full. `nowS`: seconds since 1970. */
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

  /** The command was not carried out and may be sent again. */
  remove(scope: string, id: string, notAfterS: number): void {
    if (this.#buckets.get(bucketOf(notAfterS))?.delete(`${scope}\0${id}`)) this.#size--;
  }

  /** Keeps ids one minute longer than needed, because the wall clock may be set back a little. */
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
