import { abortFault, type PublishOutcome } from "../../bus/index.ts";
import {
  type Clock,
  HearthError,
  type NkeyUser,
  type Random,
  randomBelow,
  systemRandom,
} from "../../core/index.ts";
import {
  CLOCK_SKEW_SECONDS,
  encodeBody,
  ISSUER_NAME,
  JSON_TYPE,
  type MediaType,
  MSGPACK_TYPE,
  type Receipt,
  SIGNATURE_HEADER,
  SIGNED_SECONDS_MAX,
  signCommand,
  workerSubject,
} from "../index.ts";

/** A command as sent: the members of its type and those of the envelope. */
export type WireCommand = { readonly type: string } & Readonly<Record<string, unknown>>;

export interface SendOptions {
  /** Maximum ms to wait for the receipt, over all attempts. Default: 30 s. */
  readonly deadlineMs?: number;
  /** Maximum ms to wait for a worker that is not connected at all. Default: `deadlineMs`. */
  readonly absentMs?: number;
  readonly signal?: AbortSignal;
  /** Called with the progress reports of a long command. */
  readonly onProgress?: (receipt: Receipt) => void;
}

/**
 * Result of sending a command. `receipt`: the worker replied; its `status` may be `rejected`.
 * `unanswered`: the command was sent, but no receipt came before the deadline. It may have been
 * carried out; sending it again with the same id is safe. `unreachable`: the command was never
 * sent, or no worker with this name is connected. `refused`: the other side requires other
 * credentials or does not support the command; `why` is its message.
 */
export type SendResult =
  | { readonly kind: "receipt"; readonly receipt: Receipt }
  | {
      readonly kind: "unanswered" | "unreachable" | "refused";
      readonly tries: number;
      readonly why: string;
      /** HTTP status. Present if the refusal came over HTTP. */
      readonly status?: number;
    };

export interface BroadcastResult {
  /** Receipts, one per worker that replied, sorted by worker name. */
  readonly receipts: readonly Receipt[];
  /** Workers that replied to the discovery right before the broadcast, but not to the command. */
  readonly silent: readonly string[];
  /** Why the command could not be sent. Null if it was sent. */
  readonly why: string | null;
}

export interface FoundWorker {
  readonly id: string;
  readonly version: string;
  /**
   * Id of the worker's run, in decimal text because it has 64 bits. Null if the worker does not
   * report it.
   */
  readonly incarnation: string | null;
}

/**
 * Sends commands to workers and returns their receipts. Guarantees:
 *
 * - Every command has an `id` and the client's `issuer`, so that a retry after a lost answer
 *   changes nothing twice.
 * - A wait ends at its deadline, or with ABORTED when its signal fires. Nothing is sent afterwards.
 * - Answers may be late, duplicated and out of order: each command gets its own.
 * - Throws LIMIT if a command exceeds the transport's maximum size, and ENGINE_CLOSED after it was
 *   closed.
 */
export interface ControlClient extends AsyncDisposable {
  send(worker: string, command: WireCommand, options?: SendOptions): Promise<SendResult>;
  /**
   * Sends the command to all workers. Waits until every worker that replied to a discovery right
   * before has replied to the command, or until the deadline.
   */
  broadcast(command: WireCommand, options?: SendOptions): Promise<BroadcastResult>;
  /**
   * Returns the workers that reply to a discovery within `ms`, sorted by name. Throws DEADLINE if
   * there was no connection in that time, and ENGINE_REFUSED if the other side requires other
   * credentials.
   */
  workers(ms?: number, signal?: AbortSignal): Promise<readonly FoundWorker[]>;
  /** Sends the command without waiting for a receipt. */
  publish(worker: string, command: WireCommand): PublishOutcome;
}

export const ENCODINGS = ["json", "msgpack"] as const;
/** Encoding of commands. Workers encode receipts in the same way. */
export type Encoding = (typeof ENCODINGS)[number];

export interface Wire {
  readonly contentType: MediaType;
  /** Encodes a command. Returns bytes that the caller owns. */
  encode(command: WireCommand): Uint8Array;
  /**
   * Returns the headers of a command for `worker`, or for all workers (`*`): its content type and
   * signature.
   */
  headers(worker: string, body: Uint8Array): Record<string, string>;
  /** True if commands are signed, so that each needs `not_after`. */
  readonly isSigned: boolean;
}

/** Creates the encoder of commands. `key` signs every command; null: commands are not signed. */
export function wireOf(encoding: Encoding, key: NkeyUser | null = null): Wire {
  const contentType = encoding === "json" ? JSON_TYPE : MSGPACK_TYPE;
  const plain = { "Content-Type": contentType };
  return {
    contentType,
    isSigned: key !== null,
    // Copy the result, because encoders return views of a buffer that they reuse.
    encode: (command) => Uint8Array.from(encodeBody(command, contentType)),
    headers(worker, body) {
      if (key === null) return { ...plain };
      return { ...plain, [SIGNATURE_HEADER]: signCommand(key, worker, contentType, body) };
    },
  };
}

/**
 * Returns true if the worker refused the command before it looked up the id. Such a refusal does
 * not show whether an earlier attempt was carried out.
 */
export function isUnread({ status, reason = "" }: Receipt): boolean {
  return status === "rejected" && /^(?:busy|rate_limited)\b/.test(reason);
}

/** Returns true if the worker refused the command because it does not accept it by broadcast. */
export function isNoBroadcast({ status, reason = "" }: Receipt): boolean {
  return status === "rejected" && /^broadcast_refused\b/.test(reason);
}

const ID_WORDS = 4;

/** Returns random hex text, 32 bits per word. */
export function randomHex(random: Random, words: number): string {
  let hex = "";
  for (let word = 0; word < words; word++) hex += random.u32().toString(16).padStart(8, "0");
  return hex;
}

/** Returns a new command `id`: 128 random bits in hex. */
export function newCommandId(random: Random = systemRandom): string {
  return randomHex(random, ID_WORDS);
}

/** Values of the members that the client adds to every command. */
interface Identity {
  readonly random: Random;
  readonly issuer: string | null;
  /** Clock for `not_after`, which signed commands need. Null: no `not_after` is added. */
  readonly clock: Clock | null;
}

/**
 * Returns the command with a random 128-bit id, the issuer and, if needed, `not_after`. Members
 * that the command already has are kept.
 */
export function identified(
  command: WireCommand,
  { random, issuer, clock }: Identity,
  deadlineMs: number,
): WireCommand {
  const id = command.id === undefined ? { id: newCommandId(random) } : {};
  const by = issuer === null || command.issuer !== undefined ? {} : { issuer };
  const hasEnd = clock === null || command.not_after !== undefined;
  return { ...command, ...id, ...by, ...(hasEnd ? {} : endOf(clock, deadlineMs)) };
}

/**
 * Returns `not_after`: the deadline plus the tolerated clock difference, but at most the longest
 * validity that agents accept.
 */
function endOf(clock: Clock, deadlineMs: number): { readonly not_after: number } {
  const seconds = Math.min(SIGNED_SECONDS_MAX, deadlineMs / 1_000 + CLOCK_SKEW_SECONDS);
  return { not_after: Math.ceil(clock.wallMs() / 1_000 + seconds) };
}

const TRY_FIRST_MS = 1_000;
const TRY_MS_MAX = 10_000;
const ABSENT_FIRST_MS = 100;
const ABSENT_MS_MAX = 2_000;
const JITTER = 0.25;

/**
 * Maximum ms without a message from the worker after a progress report. Then the command is sent
 * again.
 */
export const PROGRESS_MS = 10_000;

function grown(firstMs: number, maxMs: number, tries: number, random: Random): number {
  const ms = Math.min(firstMs * 2 ** (tries - 1), maxMs);
  return ms * (1 - JITTER) + randomBelow(random, Math.ceil(2 * JITTER * ms));
}

/**
 * Returns the ms to wait for a reply to attempt number `tries` (from 1), varied randomly by ±25 %.
 */
export function tryMs(tries: number, random: Random): number {
  return grown(TRY_FIRST_MS, TRY_MS_MAX, tries, random);
}

/**
 * Returns the ms to wait after attempt number `tries` if the worker is not connected, varied
 * randomly by ±25 %.
 */
export function absentMs(tries: number, random: Random): number {
  return grown(ABSENT_FIRST_MS, ABSENT_MS_MAX, tries, random);
}

/** Returns a promise that settles like `wait`, or rejects as soon as the signal fires. */
export function unlessAborted<T>(wait: Promise<T>, signal: AbortSignal | undefined): Promise<T> {
  if (signal === undefined) return wait;
  return new Promise((resolve, reject) => {
    const onAbort = () => reject(abortFault(signal));
    if (signal.aborted) return onAbort();
    signal.addEventListener("abort", onAbort, { once: true });
    const done = () => signal.removeEventListener("abort", onAbort);
    wait.then(resolve, reject).finally(done);
  });
}

/**
 * Returns the NATS subject of commands to the worker. Throws USAGE if the name is not a single
 * subject token without wildcards.
 */
export function commandSubject(worker: string): string {
  // A space would end the subject, and `*` and `>` are wildcards. The name `broadcast` would
  // address every worker.
  if (/^[^\s*>\0]+$/.test(worker) && worker !== "broadcast") return workerSubject(worker);
  throw new HearthError("USAGE", `"${worker}" is not a valid worker name`);
}

/** Returns the issuer's name. Throws USAGE if it cannot be the last token of a subject. */
export function mustBeIssuer(issuer: string | null): string {
  if (issuer !== null && ISSUER_NAME.test(issuer)) return issuer;
  throw new HearthError("USAGE", "an issuer that proves its name must have a valid one", {
    fix: "use 1 to 64 letters, digits, - and _, beginning with a letter or digit",
  });
}
