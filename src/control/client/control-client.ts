import type { PublishOutcome } from "../../bus/index.ts";
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

/** A command as it is sent: its own members, with the envelope's beside them. */
export type WireCommand = { readonly type: string } & Readonly<Record<string, unknown>>;

export interface SendOptions {
  /** How long an answer is waited for, all tries together. 30 s unless given. */
  readonly deadlineMs?: number;
  /** How long one is waited for who is not there at all. As long as the deadline unless given. */
  readonly absentMs?: number;
  readonly signal?: AbortSignal;
  /** Told of what a long command reports on its way. */
  readonly onProgress?: (receipt: Receipt) => void;
}

/**
 * `receipt`: the worker answered (its `status` may be `rejected`). `unanswered`: it was sent and no
 * answer came within the deadline: it may or may not have been carried out; sending it again with
 * the same id settles it. `unreachable`: it was never sent, or nobody listens for this worker.
 * `refused`: who was asked wants other credentials, or does not know such commands; `why` says it.
 */
export type SendResult =
  | { readonly kind: "receipt"; readonly receipt: Receipt }
  | {
      readonly kind: "unanswered" | "unreachable" | "refused";
      readonly tries: number;
      readonly why: string;
      /** Of HTTP, where it was refused over it. */
      readonly status?: number;
    };

export interface BroadcastResult {
  /** One for each worker that answered, in the order of their names. */
  readonly receipts: readonly Receipt[];
  /** Workers that were found just before and did not answer. */
  readonly silent: readonly string[];
  /** Why nothing could be sent at all; null where it was. */
  readonly why: string | null;
}

export interface FoundWorker {
  readonly id: string;
  readonly version: string;
  /** Decimal: 64 bits; null where it does not say. */
  readonly incarnation: string | null;
}

/**
 * Sends commands to workers and brings their receipts. Promises:
 *
 * - Every command gets an `id` unless it has one, and the client's `issuer`, so that a try after a
 *   lost answer changes nothing twice.
 * - A wait ends at its deadline, or with ABORTED when its signal fires. Nothing is sent after that.
 * - Answers may come late, twice and out of order: each command gets its own.
 * - Throws LIMIT where a command is larger than what carries it, ENGINE_CLOSED once closed.
 */
export interface ControlClient extends AsyncDisposable {
  send(worker: string, command: WireCommand, options?: SendOptions): Promise<SendResult>;
  /** To all workers; waits for those that answered a discovery just before, or the deadline. */
  broadcast(command: WireCommand, options?: SendOptions): Promise<BroadcastResult>;
  /**
   * Workers that answer discovery within `ms`, by name. Throws DEADLINE where nobody could be asked
   * in that time, ENGINE_REFUSED where who was asked wants other credentials.
   */
  workers(ms?: number, signal?: AbortSignal): Promise<readonly FoundWorker[]>;
  /** Sends it without waiting for anything: whoever needs to know asks with `send`. */
  publish(worker: string, command: WireCommand): PublishOutcome;
}

export const ENCODINGS = ["json", "msgpack"] as const;
/** How commands travel; workers answer the same way. */
export type Encoding = (typeof ENCODINGS)[number];

export interface Wire {
  readonly contentType: MediaType;
  /** A copy of its own. */
  encode(command: WireCommand): Uint8Array;
  /** Headers of a command for `worker`, or for all (`*`): its type, and its signature. */
  headers(worker: string, body: Uint8Array): Record<string, string>;
  /** Whether commands are signed: they need `not_after` then. */
  readonly isSigned: boolean;
}

/** `key`: signs every command; null: none is signed. */
export function wireOf(encoding: Encoding, key: NkeyUser | null = null): Wire {
  const contentType = encoding === "json" ? JSON_TYPE : MSGPACK_TYPE;
  const plain = { "Content-Type": contentType };
  return {
    contentType,
    isSigned: key !== null,
    // Encoders hand out views of a buffer that they go on using.
    encode: (command) => Uint8Array.from(encodeBody(command, contentType)),
    headers(worker, body) {
      if (key === null) return { ...plain };
      return { ...plain, [SIGNATURE_HEADER]: signCommand(key, worker, contentType, body) };
    },
  };
}

/**
 * Whether a refusal says nothing of tries before it: the worker has not looked whether it knows the
 * command.
 */
export function isUnread({ status, reason = "" }: Receipt): boolean {
  return status === "rejected" && /^(?:busy|rate_limited)\b/.test(reason);
}

/** Whether the worker does not take such a command from a broadcast. */
export function isNoBroadcast({ status, reason = "" }: Receipt): boolean {
  return status === "rejected" && /^broadcast_refused\b/.test(reason);
}

const ID_WORDS = 4;

/** 32 bits for each word, in hex. */
export function randomHex(random: Random, words: number): string {
  let hex = "";
  for (let word = 0; word < words; word++) hex += random.u32().toString(16).padStart(8, "0");
  return hex;
}

/** 128 random bits in hex, for the `id` of a command. */
export function newCommandId(random: Random = systemRandom): string {
  return randomHex(random, ID_WORDS);
}

/** What is put beside a command's own members. */
interface Identity {
  readonly random: Random;
  readonly issuer: string | null;
  /** Commands get `not_after`, as signed ones need it; null: they get none. */
  readonly clock: Clock | null;
}

/** The command with an id of 128 random bits, an issuer and an end, unless it has its own. */
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

/** A while behind the deadline, so that clocks may differ; no later than agents take. */
function endOf(clock: Clock, deadlineMs: number): { readonly not_after: number } {
  const seconds = Math.min(SIGNED_SECONDS_MAX, deadlineMs / 1_000 + CLOCK_SKEW_SECONDS);
  return { not_after: Math.ceil(clock.wallMs() / 1_000 + seconds) };
}

const TRY_FIRST_MS = 1_000;
const TRY_MS_MAX = 10_000;
const ABSENT_FIRST_MS = 100;
const ABSENT_MS_MAX = 2_000;
const JITTER = 0.25;

/** How long a worker that just said how far it is may be silent before it is asked again. */
export const PROGRESS_MS = 10_000;

function grown(firstMs: number, maxMs: number, tries: number, random: Random): number {
  const ms = Math.min(firstMs * 2 ** (tries - 1), maxMs);
  return ms * (1 - JITTER) + randomBelow(random, Math.ceil(2 * JITTER * ms));
}

/** How long the answer to try number `tries` (from 1) is waited for; ±25 %. */
export function tryMs(tries: number, random: Random): number {
  return grown(TRY_FIRST_MS, TRY_MS_MAX, tries, random);
}

/** How long to wait after try number `tries` that met nobody; ±25 %. */
export function absentMs(tries: number, random: Random): number {
  return grown(ABSENT_FIRST_MS, ABSENT_MS_MAX, tries, random);
}

/** What a wait ends with when its signal fires: the fault it fired with, else ABORTED. */
export function abortFault(signal: AbortSignal): HearthError {
  const reason: unknown = signal.reason;
  if (reason instanceof HearthError) return reason;
  return new HearthError("ABORTED", "the wait for an answer was given up", { cause: reason });
}

/** What `wait` gives, or the fault as soon as the signal fires. */
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

/** Where a worker listens. Throws USAGE for a name that would be several subjects, or none. */
export function commandSubject(worker: string): string {
  // Spaces end a subject, stars and angles stand for many, and this one worker is everybody.
  if (/^[^\s*>\0]+$/.test(worker) && worker !== "broadcast") return workerSubject(worker);
  throw new HearthError("USAGE", `"${worker}" is no worker's name`);
}

/** Throws USAGE for a name that cannot be the last token of a subject. */
export function mustBeIssuer(issuer: string | null): string {
  if (issuer !== null && ISSUER_NAME.test(issuer)) return issuer;
  throw new HearthError("USAGE", "an issuer that proves its name needs one", {
    fix: "give 1 to 64 letters, digits, - and _, the first a letter or digit",
  });
}
