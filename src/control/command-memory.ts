import { type Clock, type Json, parseJson } from "../core/index.ts";
import type { CommandRow, IssuerRow, RetentionLedger } from "../store/index/index.ts";
import { within } from "./audit-log.ts";
import type { Command, Refusal, Sender } from "./command.ts";
import { type Receipt, receiptJson, trimmedReceipt } from "./receipt.ts";

/** A remembered command, as an entry of a list ordered by age. */
interface Kept {
  readonly issuer: string;
  readonly id: string;
  /** The receipt, or its JSON text as read from the ledger. */
  receipt: Receipt | string;
  /** Digest of the command's content. Null if unknown, or if the ledger's text contains it. */
  readonly digest: string | null;
  bytes: number;
  /** True if the receipt still lists all its blocks. */
  isWhole: boolean;
  older: Kept | null;
  newer: Kept | null;
}

const COMMANDS_MAX = 65_536;
/** Maximum bytes of all remembered receipts. Beyond it, the oldest receipts are removed. */
const BYTES_MAX = 96 * 2 ** 20;
/** Maximum bytes of untrimmed receipts. Beyond it, the oldest are trimmed to their first blocks. */
const WHOLE_BYTES_MAX = 16 * 2 ** 20;
/**
 * Estimated bytes of a receipt without its blocks, of each block in it, and of each holder of a
 * block.
 */
const RECEIPT_BYTES = 512;
const BLOCK_BYTES = 96;
const HOLDER_BYTES = 64;
/** Maximum blocks of a receipt that are stored in the ledger, or kept in memory after trimming. */
const BLOCKS_KEPT = 8;
const TEXT_BYTES_MAX = 2_048;
/** Estimated bytes of an entry that is stored as text, in addition to the text. */
const TEXT_BYTES = 128;

/**
 * Receipts of the last 65,536 commands that had an id. A repeated command gets its earlier receipt.
 * Bounded in bytes: old receipts are trimmed to their counts and first blocks; if that is not
 * enough, fewer commands are remembered. Every call takes constant time.
 */
export class CommandMemory {
  readonly #kept = new Map<string, Kept>();
  /** The latest command with each id. */
  readonly #ofId = new Map<string, Kept>();
  /**
   * The oldest entry. The list exists because finding the first key of a `Map` is slow after many
   * deletions.
   */
  #oldest: Kept | null = null;
  #newest: Kept | null = null;
  #bytes = 0;
  /** The oldest untrimmed receipt. All newer ones are untrimmed, too. */
  #oldestWhole: Kept | null = null;
  #wholeBytes = 0;

  constructor(rows: readonly CommandRow[]) {
    for (const { issuer, id, receipt } of rows) {
      this.#put(issuer, id, receipt, null, TEXT_BYTES + receipt.length);
      this.#forgetOldest();
    }
  }

  get bytes(): number {
    return this.#bytes;
  }

  get(issuer: string, id: string): Receipt | null {
    return receiptOf(this.#kept.get(keyOf(issuer, id)));
  }

  /** Returns the digest of the remembered command's content. Null if unknown. */
  digest(issuer: string, id: string): string | null {
    const kept = this.#kept.get(keyOf(issuer, id));
    if (kept === undefined) return null;
    return typeof kept.receipt === "string" ? digestIn(kept.receipt) : kept.digest;
  }

  /**
   * Returns the receipt of the latest command with this id, whatever its issuer. Null if there is
   * none.
   */
  find(id: string): Receipt | null {
    return receiptOf(this.#ofId.get(id));
  }

  put(issuer: string, id: string, receipt: Receipt, digest: string | null = null): void {
    const kept = this.#put(issuer, id, receipt, digest, bytesOf(receipt));
    kept.isWhole = true;
    this.#oldestWhole ??= kept;
    this.#wholeBytes += kept.bytes;
    while (this.#wholeBytes > WHOLE_BYTES_MAX) this.#trimOldest();
    this.#forgetOldest();
  }

  #put(
    issuer: string,
    id: string,
    receipt: Receipt | string,
    digest: string | null,
    receiptBytes: number,
  ): Kept {
    const key = keyOf(issuer, id);
    const before = this.#kept.get(key);
    if (before !== undefined) this.#remove(before);
    // The key counts twice, because two maps contain it.
    const bytes = receiptBytes + 2 * key.length;
    const place = { isWhole: false, older: this.#newest, newer: null };
    const kept: Kept = { issuer, id, receipt, digest, bytes, ...place };
    if (this.#newest !== null) this.#newest.newer = kept;
    this.#newest = kept;
    this.#oldest ??= kept;
    this.#kept.set(key, kept);
    this.#ofId.set(id, kept);
    this.#bytes += bytes;
    return kept;
  }

  #forgetOldest(): void {
    while (this.#kept.size > COMMANDS_MAX || this.#bytes > BYTES_MAX) this.#remove(this.#oldest!);
  }

  #remove(kept: Kept): void {
    const { issuer, id, older, newer, bytes } = kept;
    if (kept.isWhole) this.#wholeBytes -= bytes;
    if (this.#oldestWhole === kept) this.#oldestWhole = newer;
    if (older === null) this.#oldest = newer;
    else older.newer = newer;
    if (newer === null) this.#newest = older;
    else newer.older = older;
    this.#kept.delete(keyOf(issuer, id));
    if (this.#ofId.get(id) === kept) this.#ofId.delete(id);
    this.#bytes -= bytes;
  }

  #trimOldest(): void {
    const kept = this.#oldestWhole!;
    const receipt = trimmedReceipt(kept.receipt as Receipt, BLOCKS_KEPT);
    const saved = bytesOf(kept.receipt as Receipt) - bytesOf(receipt);
    this.#oldestWhole = kept.newer;
    this.#wholeBytes -= kept.bytes;
    kept.isWhole = false;
    kept.receipt = receipt;
    kept.bytes -= saved;
    this.#bytes -= saved;
  }
}

/**
 * Encodes a receipt for the ledger: at most a few KiB, for any number of blocks. Its first member
 * is the digest of the command's content.
 */
export function receiptText(receipt: Receipt, digest: string | null = null): string {
  const whole = receiptJson(trimmedReceipt(receipt, BLOCKS_KEPT));
  const text = whole.length <= TEXT_BYTES_MAX ? whole : receiptJson(trimmedReceipt(receipt, 0));
  return digest === null ? text : `{"digest":"${digest}",${text.slice(1)}`;
}

function digestIn(text: string): string | null {
  return /^\{"digest":"([0-9a-f]+)",/.exec(text)?.[1] ?? null;
}

/**
 * Decodes a receipt from the ledger. The status `running` means that the process ended between the
 * command's change of pins or leases and its end.
 */
function restored(text: string): Receipt {
  const { digest: _, ...members } = parseJson(text) as { [key: string]: Json };
  const receipt = members as unknown as Receipt;
  if (receipt.status !== "running") return receipt;
  const reason = "interrupted: the agent stopped while the command was executing";
  return { ...receipt, status: "partial", reason };
}

/** Returns the key of an issuer's command. The separator cannot occur in either part. */
function keyOf(issuer: string, id: string): string {
  return `${issuer}\0${id}`;
}

function receiptOf(kept: Kept | undefined): Receipt | null {
  if (kept === undefined) return null;
  return typeof kept.receipt === "string" ? restored(kept.receipt) : kept.receipt;
}

function bytesOf({ blocks, held = [] }: Receipt): number {
  let bytes = RECEIPT_BYTES + (blocks.length + held.length) * BLOCK_BYTES;
  for (const { by } of blocks) if (by !== undefined) bytes += by.length * HOLDER_BYTES;
  for (const { by } of held) if (by !== undefined) bytes += by.length * HOLDER_BYTES;
  return bytes;
}

/** A command that is executing. */
export interface Running {
  /** Scope of the command's id, which is issuer and account; see `scopeOf`. */
  readonly issuer: string;
  readonly id: string | null;
  /** Digest of the command's content. Null if the command has no id. */
  readonly digest: string | null;
  readonly blocks: number;
  /** The final receipt. Never rejects. */
  readonly receipt: Promise<Receipt>;
  /** Returns a receipt with status `running` that describes the progress so far. */
  now(): Receipt;
}

const RUNNING_MAX = 1_024;
/**
 * Maximum executing commands of one issuer. It is below the total limit, so that one issuer leaves
 * room for others.
 */
const RUNNING_OF_ISSUER_MAX = 768;
const RUNNING_BLOCKS_MAX = 4 * 2 ** 20;
/** Maximum repeated commands that wait for the receipt of a command in execution. */
const WAITERS_MAX = 8_192;

/** The commands in execution. Commands beyond the limits are refused. */
export class RunningCommands {
  readonly #all = new Set<Running>();
  readonly #named = new Map<string, Running>();
  readonly #ofIssuer = new Map<string, number>();
  #blocks = 0;
  #waiters = 0;

  get size(): number {
    return this.#all.size;
  }

  /**
   * Returns the refusal of a command with this number of blocks if a limit is reached, else null.
   */
  refusal(issuer: string, blocks: number): Refusal | null {
    const busy = (message: string): Refusal => ({ code: "busy", message });
    const own = this.#ofIssuer.get(issuer) ?? 0;
    if (this.#all.size >= RUNNING_MAX) return busy(`${RUNNING_MAX} commands are executing`);
    if (own >= RUNNING_OF_ISSUER_MAX) return busy(`${own} commands of this issuer are executing`);
    // If no other command is executing, one is admitted whatever its number of blocks.
    if (this.#blocks > 0 && this.#blocks + blocks > RUNNING_BLOCKS_MAX) {
      return busy(`commands on ${this.#blocks} blocks are executing`);
    }
    return null;
  }

  add(running: Running): void {
    const { issuer, id, blocks } = running;
    this.#all.add(running);
    this.#blocks += blocks;
    this.#ofIssuer.set(issuer, (this.#ofIssuer.get(issuer) ?? 0) + 1);
    if (id === null) return;
    this.#named.set(keyOf(issuer, id), running);
  }

  remove(running: Running): void {
    const { issuer, id, blocks } = running;
    this.#all.delete(running);
    this.#blocks -= blocks;
    const left = this.#ofIssuer.get(issuer)! - 1;
    if (left === 0) this.#ofIssuer.delete(issuer);
    else this.#ofIssuer.set(issuer, left);
    if (id === null) return;
    this.#named.delete(keyOf(issuer, id));
  }

  get(issuer: string, id: string): Running | null {
    return this.#named.get(keyOf(issuer, id)) ?? null;
  }

  /**
   * Returns the latest executing command with this id, whatever its issuer. Null if there is none.
   */
  find(id: string): Running | null {
    return [...this.#named.values()].findLast((running) => running.id === id) ?? null;
  }

  /**
   * Returns the receipt promise of a command in execution, for a repetition of it. Null if too many
   * repetitions are waiting.
   */
  wait(running: Running): Promise<Receipt> | null {
    if (this.#waiters >= WAITERS_MAX) return null;
    this.#waiters++;
    return running.receipt.finally(() => this.#waiters--);
  }

  /** Resolves when no command is in execution. */
  async idle(): Promise<void> {
    while (this.#all.size > 0) await Promise.all([...this.#all].map(({ receipt }) => receipt));
  }
}

/** The parts of a carried-out command that are stored. */
interface CarriedCommand {
  readonly command: Command;
  /**
   * Scope within which the command's id, epoch and number count: issuer and account; see `scopeOf`.
   */
  readonly scope: string;
  /** Digest of the command's content. Null if the command has no id. */
  readonly digest: string | null;
}

/** Maximum ms that a receipt waits for the ledger's commit. */
const COMMIT_MS = 5_000;

/**
 * The commands that were carried out. Kept in memory, and in the ledger so that the next process
 * knows them.
 */
export class CarriedCommands {
  readonly memory: CommandMemory;
  readonly #ledger: RetentionLedger | null;
  readonly #clock: Clock;
  /**
   * Epochs and numbers as written to the ledger, which is done only for commands that changed
   * something.
   */
  readonly #written: Fences;

  constructor(ledger: RetentionLedger | null, clock: Clock) {
    this.#ledger = ledger;
    this.#clock = clock;
    this.memory = new CommandMemory(ledger?.contents.commands ?? []);
    this.#written = new Fences(ledger?.contents.issuers ?? []);
  }

  /**
   * Stores the receipt in memory and in the ledger. Returns the receipt to send, which is not
   * `durable` if the ledger did not commit in time.
   */
  async remember(carried: CarriedCommand, receipt: Receipt): Promise<Receipt> {
    let told = receipt;
    if (this.note(carried, () => receipt)) {
      const committed = this.#ledger!.commit({ durable: false });
      const isWritten = (await within(this.#clock, COMMIT_MS, committed)) === true;
      if (!isWritten && receipt.durable) told = { ...receipt, durable: false };
    }
    this.keep(carried, told);
    return told;
  }

  keep({ command, scope, digest }: CarriedCommand, receipt: Receipt): void {
    if (command.id !== null) this.memory.put(scope, command.id, receipt, digest);
  }

  /**
   * Writes the command's id, epoch and number to the ledger, which a restarted agent needs. Returns
   * false if the command has none of them.
   */
  note({ command, scope, digest }: CarriedCommand, receipt: () => Receipt): boolean {
    const ledger = this.#ledger;
    if (ledger === null) return false;
    const { id, epoch, seq } = command;
    const rows = this.#written.rowsAfter(scope, epoch, seq);
    for (const row of rows) ledger.putIssuer(row);
    if (id !== null) {
      ledger.putCommand({ issuer: scope, id, receipt: receiptText(receipt(), digest) });
    }
    return isProven(scope) || epoch !== null || seq !== null || id !== null;
  }

  /** Removes an issuer's epoch and number from the ledger. */
  unfence(issuer: string): void {
    for (const scope of this.#written.forget(issuer)) this.#ledger?.removeIssuer(scope);
    void this.#ledger?.commit();
  }
}

/** Separates account and issuer in a scope. Cannot occur in either name. */
const BETWEEN = "\x01";
/**
 * Prefix of the account of a proven issuer. Because of the space, it cannot start the name of a
 * token.
 */
const PROVEN = "issuer ";

/**
 * Returns the scope of a command's id, epoch and number: its issuer, plus the sender's account if
 * the transport knows it. Because of the account, a sender that claims another sender's name can
 * neither use the other's ids nor make its commands stale.
 */
export function scopeOf({ account }: Pick<Sender, "account">, issuer: string): string {
  return account === undefined ? issuer : `${account}${BETWEEN}${issuer}`;
}

/**
 * Returns the account of an issuer that has proved its name. It is the same for each kind of proof.
 */
export function issuerAccount(issuer: string): string {
  return `${PROVEN}${issuer}`;
}

/** Returns true if the scope has an account, which other senders cannot use. */
function isOfAccount(scope: string): boolean {
  return scope.includes(BETWEEN);
}

/** Returns true if the scope belongs to an issuer that has proved its name. */
export function isProven(scope: string): boolean {
  return scope.startsWith(PROVEN) && isOfAccount(scope);
}

/** Returns the issuer of a scope, without the account. */
function issuerOf(scope: string): string {
  return scope.slice(scope.lastIndexOf(BETWEEN) + 1);
}

interface Reached {
  readonly epoch: bigint;
  /** Lowest acceptable `seq` of the scope's next command. */
  readonly seqMin: bigint;
}

/** Maximum scopes with an account; the same limit applies to scopes without one. */
const SCOPES_MAX = 4_096;
/**
 * Number of ledger rows written for other scopes, after which the rows of proven issuers are
 * written again.
 */
const REFRESH_ROWS = 1_024;
const NOTHING: Reached = { epoch: 0n, seqMin: 0n };

/**
 * The latest epoch and number of each scope. `epoch` rejects a router that another one has
 * replaced; `seq` rejects late commands. A ledger row stores the lowest acceptable `seq`. Keeps at
 * most 4,096 scopes with an account and 4,096 without, and evicts those that sent no command for
 * the longest time. The limits are separate so that claimed names cannot evict authenticated ones.
 */
export class Fences {
  /** Scopes without an account, the one with the oldest last command first. */
  readonly #claimed = new Map<string, Reached>();
  readonly #accounts = new Map<string, Reached>();
  #rowsSinceRefresh = 0;

  constructor(rows: readonly IssuerRow[]) {
    for (const { issuer, epoch, seq } of rows) this.#set(issuer, { epoch, seqMin: seq });
  }

  /**
   * Returns the refusal of a command whose epoch or number is too low, or null. A command without
   * epoch and number is always accepted.
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
   * Records the epoch and number of an accepted command, and for a proven issuer also that it
   * proved its name. Returns a function that undoes this if the command fails. The function does
   * nothing if a later command was recorded.
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

  /** Returns true if this issuer has proved its name to this agent before. */
  wasProven(issuer: string): boolean {
    return this.#accounts.has(scopeOf({ account: issuerAccount(issuer) }, issuer));
  }

  /**
   * Records a command like `advance`, unless that changes nothing. Returns the rows to write to the
   * ledger: the scope's own row, and periodically those of all proven issuers. The ledger evicts
   * its oldest rows, so the rows of claimed names would otherwise displace those of proven issuers.
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
   * removed scopes.
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

/** Highest epoch or number that counts as a counter. Larger ones count as times. */
const COUNTER_MAX = 2n ** 40n;
const AHEAD_MS = 86_400_000;
/**
 * Lowest time in milliseconds (a day of 2001). With a lower minimum, a time in one unit could be
 * taken for a time in another.
 */
const TIME_MIN_MS = 10n ** 12n;
const UNITS_A_MS = [1n, 10n ** 3n, 10n ** 6n];

/**
 * Returns true if an epoch or number leaves room for later ones: it is a counter up to 2^40, or a
 * time since 1970 in milliseconds, microseconds or nanoseconds that is at most one day ahead of
 * this clock.
 */
export function isPlausible(number: bigint, nowMs: number): boolean {
  if (number <= COUNTER_MAX) return true;
  const latestMs = BigInt(Math.floor(nowMs + AHEAD_MS));
  return UNITS_A_MS.some((unit) => number >= TIME_MIN_MS * unit && number <= latestMs * unit);
}

/**
 * Order of a command relative to other commands of its issuer. A lane is a sequence of commands
 * that change pins and leases one after the other.
 */
export interface LanePosition {
  /**
   * Lanes that this command belongs to. Later commands in these lanes wait until it has changed
   * pins and leases.
   */
  readonly lanes: readonly string[];
  /** Other lanes whose earlier commands must change pins and leases before this command does. */
  readonly behind: readonly string[] | "all";
}

type Lanes = Map<string, Promise<void>>;

/**
 * Orders the commands of one issuer that change pins and leases, where their order matters. A
 * command waits until the earlier ones have made their changes in memory, not until the changes are
 * durable.
 */
export class IssuerOrder {
  /** Per issuer, the last pending command of each lane. */
  readonly #issuers = new Map<string, Lanes>();

  /** Number of issuers with pending commands. */
  get waiting(): number {
    return this.#issuers.size;
  }

  /**
   * Adds a command in arrival order. `before` resolves when it is this command's turn; it is null
   * if that is now. `done` lets the commands that wait for this one continue; it may be called more
   * than once.
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
 * Ids of accepted signed commands, each kept until the command's `not_after`. Therefore a command
 * that an attacker has recorded cannot be executed again, even when its receipt has been forgotten.
 * Contains only commands with a valid signature, so that other senders cannot fill the set.
 */
export class SignedIds {
  /**
   * Ids by the minute of their `not_after`. That time is signed, so it is the same in every
   * repetition.
   */
  readonly #buckets = new Map<number, Set<string>>();
  #size = 0;

  has(scope: string, id: string, notAfterS: number): boolean {
    return this.#buckets.get(bucketOf(notAfterS))?.has(`${scope}\0${id}`) ?? false;
  }

  /** Adds an id. Returns false if the set is full. `nowS` is in seconds since 1970. */
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

  /** Removes the id of a command that was not carried out, so that it may be sent again. */
  remove(scope: string, id: string, notAfterS: number): void {
    if (this.#buckets.get(bucketOf(notAfterS))?.delete(`${scope}\0${id}`)) this.#size--;
  }

  /**
   * Removes expired ids one minute later than necessary, because the wall clock may be set back a
   * little.
   */
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
