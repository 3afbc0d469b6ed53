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

/** A command as sent: its own members and those of the envelope. */
export type WireCommand = { readonly type: string } & Readonly<Record<string, unknown>>;

export interface SendOptions {
  /** Maximum wait for an answer, over all attempts. Default: 30 s. */
  readonly deadlineMs?: number;
  /** Maximum wait for a worker that is not connected at all. Default: `deadlineMs`. */
  readonly absentMs?: number;
  readonly signal?: AbortSignal;
  /** Receives the progress of a long command. */
  readonly onProgress?: (receipt: Receipt) => void;
}

/**
 * `receipt`: the worker answered; `status` may be `rejected`. `unanswered`: the command was sent
 * and no answer came before the deadline. It may have been carried out; sending it again with the
 * same id is safe. `unreachable`: the command was never sent, or no worker listens under this name.
 * `refused`: the other side requires other credentials, or does not support the command; `why` is
 * its message.
 */
export type SendResult =
  | { readonly kind: "receipt"; readonly receipt: Receipt }
  | {
      readonly kind: "unanswered" | "unreachable" | "refused";
      readonly tries: number;
      readonly why: string;
      /** HTTP status, if the refusal came over HTTP. */
      readonly status?: number;
    };

export interface BroadcastResult {
  /** One receipt for each worker that answered, sorted by name. */
  readonly receipts: readonly Receipt[];
  /** Workers that answered discovery just before but not the command. */
  readonly silent: readonly string[];
  /** Why nothing could be sent; null if the command was sent. */
  readonly why: string | null;
}

export interface FoundWorker {
  readonly id: string;
  readonly version: string;
  /** Decimal text, because the value has 64 bits; null if the worker does not report it. */
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
   * Sends to all workers. Waits for those that answered a discovery just before, or until the
   * deadline.
   */
  broadcast(command: WireCommand, options?: SendOptions): Promise<BroadcastResult>;
  /**
   * Returns the workers that answer discovery within `ms`, sorted by name. Throws DEADLINE if there
   * was no connection in that time, and ENGINE_REFUSED if the other side requires other
   * credentials.
   */
  workers(ms?: number, signal?: AbortSignal): Promise<readonly FoundWorker[]>;
  /** Sends the command without waiting for a receipt. */
  publish(worker: string, command: WireCommand): PublishOutcome;
}

export const ENCODINGS = ["json", "msgpack"] as const;
/** Encoding of commands; workers answer in the same one. */
export type Encoding = (typeof ENCODINGS)[number];

export interface Wire {
  readonly contentType: MediaType;
  /** Returns a copy that the caller owns. */
  encode(command: WireCommand): Uint8Array;
  /** Headers of a command for `worker`, or for all (`*`): its content type and signature. */
  headers(worker: string, body: Uint8Array): Record<string, string>;
  /** Whether commands are signed, and so need `not_after`. */
  readonly isSigned: boolean;
}

/** `key`: signs every command. Null: commands are not signed. */
export function wireOf(encoding: Encoding, key: NkeyUser | null = null): Wire {
  const contentType = encoding === "json" ? JSON_TYPE : MSGPACK_TYPE;
  const plain = { "Content-Type": contentType };
  return {
    contentType,
    isSigned: key !== null,
    // Encoders return views of a buffer that they reuse.
    encode: (command) => Uint8Array.from(encodeBody(command, contentType)),
    headers(worker, body) {
      if (key === null) return { ...plain };
      return { ...plain, [SIGNATURE_HEADER]: signCommand(key, worker, contentType, body) };
    },
  };
}

/**
 * Whether a refusal says nothing about earlier attempts: the worker refused before it looked up the
 * id.
 */
export function isUnread({ status, reason = "" }: Receipt): boolean {
  return status === "rejected" && /^(?:busy|rate_limited)\b/.test(reason);
}

/** Whether the worker does not accept this command by broadcast. */
export function isNoBroadcast({ status, reason = "" }: Receipt): boolean {
  return status === "rejected" && /^broadcast_refused\b/.test(reason);
}

const ID_WORDS = 4;

/** Random hex text, 32 bits per word. */
export function randomHex(random: Random, words: number): string {
  let hex = "";
  for (let word = 0; word < words; word++) hex += random.u32().toString(16).padStart(8, "0");
  return hex;
}

/** A command `id`: 128 random bits in hex. */
export function newCommandId(random: Random = systemRandom): string {
  return randomHex(random, ID_WORDS);
}

/** Members added to every command. */
interface Identity {
  readonly random: Random;
  readonly issuer: string | null;
  /** Clock for `not_after`, which signed commands need; null: no `not_after` is added. */
  readonly clock: Clock | null;
}

/**
 * Returns the command with a random 128-bit id, an issuer and a `not_after`, unless it has its own.
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

/** The deadline plus the tolerated clock difference, at most the validity that agents accept. */
function endOf(clock: Clock, deadlineMs: number): { readonly not_after: number } {
  const seconds = Math.min(SIGNED_SECONDS_MAX, deadlineMs / 1_000 + CLOCK_SKEW_SECONDS);
  return { not_after: Math.ceil(clock.wallMs() / 1_000 + seconds) };
}

const TRY_FIRST_MS = 1_000;
const TRY_MS_MAX = 10_000;
const ABSENT_FIRST_MS = 100;
const ABSENT_MS_MAX = 2_000;
const JITTER = 0.25;

/** Maximum silence after a progress report before the command is sent again. */
export const PROGRESS_MS = 10_000;

function grown(firstMs: number, maxMs: number, tries: number, random: Random): number {
  const ms = Math.min(firstMs * 2 ** (tries - 1), maxMs);
  return ms * (1 - JITTER) + randomBelow(random, Math.ceil(2 * JITTER * ms));
}

/** Wait for the answer to attempt number `tries` (from 1), ±25 %. */
export function tryMs(tries: number, random: Random): number {
  return grown(TRY_FIRST_MS, TRY_MS_MAX, tries, random);
}

/** Wait after attempt number `tries` if the worker is not connected, ±25 %. */
export function absentMs(tries: number, random: Random): number {
  return grown(ABSENT_FIRST_MS, ABSENT_MS_MAX, tries, random);
}

/** Resolves like `wait`, or rejects as soon as the signal fires. */
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
 * Returns the worker's command subject. Throws USAGE if the name is not a single literal subject
 * token.
 */
export function commandSubject(worker: string): string {
  // Spaces end a subject, `*` and `>` are wildcards, and the worker `broadcast` would be every
  // worker.
  if (/^[^\s*>\0]+$/.test(worker) && worker !== "broadcast") return workerSubject(worker);
  throw new HearthError("USAGE", `"${worker}" is not a valid worker name`);
}

/** Throws USAGE if the name cannot be the last token of a subject. */
export function mustBeIssuer(issuer: string | null): string {
  if (issuer !== null && ISSUER_NAME.test(issuer)) return issuer;
  throw new HearthError("USAGE", "an issuer that proves its name must have a valid one", {
    fix: "use 1 to 64 letters, digits, - and _, beginning with a letter or digit",
  });
}
