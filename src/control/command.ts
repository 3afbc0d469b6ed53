import type { BlockName } from "../core/index.ts";

export const COMMAND_TYPES = [
  "Warm",
  "Prune",
  "Cache",
  "Think",
  "Pause",
  "RenewLease",
  "RevokeLease",
  "Flush",
] as const;
export type CommandType = (typeof COMMAND_TYPES)[number];

/**
 * What one command may be. Bytes of its body, blocks, how deep its lists lie in each other. A body
 * is parsed, and its blocks are looked up, in one turn of the event loop each: with 1,024 blocks
 * either takes about a millisecond. Clients send longer lists as several commands.
 */
export const COMMAND_LIMITS = {
  bytesMax: 96 * 1024,
  blocksMax: 1_024,
  /** Members and items of all lists together; in JSON the commas are counted, in strings too. */
  valuesMax: 2_048,
  depthMax: 16,
  /** UTF-8 bytes of an id, an issuer, an owner, a lease, the name of a source. */
  nameBytesMax: 128,
  sourcesMax: 64,
} as const;

/**
 * What may stand beside a command's own members. `id` with `issuer`: a repetition changes nothing
 * and gets the same receipt. `epoch`: a command of a lower one than this issuer has shown is
 * refused (another router has taken over). `seq`: within one epoch, a command with a lower or equal
 * number than the last one is refused as `stale`. `notAfterS`: seconds since 1970, then it is
 * refused. `owner`: whose pins; the issuer unless given.
 */
export interface Envelope {
  readonly id: string | null;
  readonly issuer: string | null;
  readonly epoch: bigint | null;
  readonly seq: bigint | null;
  readonly notAfterS: number | null;
  readonly owner: string | null;
}

/** A command as it was understood: validated. Durations in milliseconds. */
export type Command = Envelope &
  (
    | {
        readonly type: "Warm";
        readonly blocks: readonly BlockName[];
        readonly target: "ram" | "gpu";
        readonly sources: readonly string[];
      }
    | { readonly type: "Prune"; readonly after: BlockName }
    | {
        readonly type: "Cache";
        readonly blocks: readonly BlockName[];
        /** `pin` and `retain` exclude each other. */
        readonly action:
          | { readonly kind: "pin"; readonly ttlMs: number | null }
          | { readonly kind: "unpin" }
          | { readonly kind: "retain"; readonly priority: number; readonly idleMs: number | null };
      }
    | { readonly type: "Think"; readonly blocks: readonly BlockName[]; readonly transient: boolean }
    | {
        readonly type: "Pause";
        readonly blocks: readonly BlockName[];
        readonly ttlMs: number | null;
        readonly leaseId: string;
      }
    | { readonly type: "RenewLease"; readonly leaseId: string; readonly ttlMs: number }
    | { readonly type: "RevokeLease"; readonly leaseId: string }
    /** Removes everything that nothing holds. */
    | { readonly type: "Flush" }
  );

/** How many blocks it names. */
export function blocksOf(command: Command): number {
  if (command.type === "Prune") return 1;
  return "blocks" in command ? command.blocks.length : 0;
}

/** A block that was given by something that names none; it does not keep the others from theirs. */
export interface UnnamedBlock {
  /** Its place in the list. */
  readonly at: number;
  readonly given: number | bigint | string;
  readonly reason: string;
}

/** What a caller may do; each contains those before it. */
export const ROLES = ["read", "operate", "purge"] as const;
export type Role = (typeof ROLES)[number];

/** Whether `role` includes what needs `needed`. */
export function mayDo(role: Role, needed: Role): boolean {
  return ROLES.indexOf(role) >= ROLES.indexOf(needed);
}

/** The keys of the configuration that give a sender its role; a refusal names its own. */
export const ROLE_KEYS = {
  "nats.role": 'set nats.role = "ROLE", or list the issuer in control.issuers',
  "control.issuers": "give this issuer the role ROLE in control.issuers",
  "engine.command_role": 'set engine.command_role = "ROLE"',
  "api.socket_role": 'set api.socket_role = "ROLE", or ask as root or as the agent\'s user',
  "api.tokens_file": "use a token whose role in api.tokens_file is ROLE",
  "api.tls_client_role": 'use a token whose role is ROLE, or set api.tls_client_role = "ROLE"',
  "api.loopback_role": 'ask over api.socket, or set api.loopback_role = "ROLE"',
} as const satisfies Record<string, string>;
export type RoleKey = keyof typeof ROLE_KEYS;

/** How a sender whose role `key` gave gets the role that it needs. */
export function roleFix(key: RoleKey, needed: Role): string {
  return ROLE_KEYS[key].replaceAll("ROLE", needed);
}

/** Who sends it, as far as the transport knows. */
export interface Sender {
  readonly via: "nats" | "http" | "local";
  /** An address, a subject, a token's name: for the audit log. */
  readonly from: string;
  /** Issuer of commands that name none. */
  readonly name: string;
  readonly role: Role;
  /** What gave it this role; left out if no key did. */
  readonly roleKey?: RoleKey;
  /**
   * Who it is for certain, if the transport knows, as by the token that was shown. All it sends has
   * one rate, whatever issuers it claims; of others each issuer has its own.
   */
  readonly account?: string | undefined;
  /** The issuer that the subject names, `kv-control-w.ISSUER`; left out for other ways here. */
  readonly subjectIssuer?: string;
  /** It came on the broadcast subject: only what the configuration allows is carried out. */
  readonly broadcast: boolean;
}

/** Where commands for all workers are published. */
export const BROADCAST_SUBJECT = "kv-control-broadcast";
/** How discovery calls every agent. */
export const SERVICE_NAME = "hearth-agent";
/** Says where the receipt goes of a command that a stream kept, which used up the reply subject. */
export const REPLY_HEADER = "Hearth-Reply";
/** Holds the signature of a command, over NATS and over HTTP. */
export const SIGNATURE_HEADER = "Hearth-Signature";

/** An issuer that can prove its name: it is the last token of a subject. */
export const ISSUER_NAME = /^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$/;

/** Where one worker takes commands. */
export function workerSubject(worker: string): string {
  return `kv-control-${worker}`;
}

/** The subject on which only `issuer` may publish, if the server enforces it. */
export function issuerSubject(subject: string, issuer: string): string {
  return `${subject}.${issuer}`;
}

/** Something an operator did to blocks that is no command: it came by a way of its own. */
export interface Operation {
  /** As a command's type. */
  readonly type: string;
  /** Blocks it named; null: it names none. */
  readonly blocks: number | null;
  /**
   * The first of them, eight or more where there are as many: digests, some with a layer. Of an
   * operation on something else its name.
   */
  readonly names: readonly string[];
  /** `rejected`: nothing was done, for `reason`. */
  readonly status: "ok" | "partial" | "rejected";
  readonly reason: string | null;
  /** What came of it, by words of its own. */
  readonly counts: Readonly<Record<string, number>>;
  readonly elapsedMs: number;
}

/**
 * Why a command as a whole is refused: the stable words with which `reason` of its receipt begins.
 * `retry`: whether the same command may be taken a moment later.
 */
export const REFUSALS = {
  malformed: {
    retry: false,
    meaning: "the body is no JSON or MessagePack, or a member is missing or of another kind",
  },
  unknown_type: { retry: false, meaning: "`type` is none of the commands" },
  too_large: { retry: false, meaning: "more bytes, blocks or sources than one command may have" },
  too_deep: { retry: false, meaning: "lists or objects lie too deep in each other" },
  forbidden: { retry: false, meaning: "the sender's role does not include this command" },
  unproven: {
    retry: false,
    meaning: "the issuer has to prove its name, and the signature or the subject does not",
  },
  replayed: {
    retry: false,
    meaning: "a signed command of this `id` was taken before, and its receipt is not kept",
  },
  implausible: {
    retry: false,
    meaning: "its `epoch` or `seq` is neither a counter up to 2^40 nor a time",
  },
  broadcast_refused: {
    retry: false,
    meaning: "the configuration does not let this command come by broadcast",
  },
  expired: { retry: false, meaning: "it came after its `not_after`" },
  rate_limited: {
    retry: true,
    meaning: "this issuer, or this token, sends more commands a second than it may",
  },
  id_reused: {
    retry: false,
    meaning: "another command with this `id` came from the same issuer before",
  },
  stale: {
    retry: false,
    meaning: "its `seq` is not above that of a command of the same issuer and epoch before it",
  },
  fenced: { retry: false, meaning: "this issuer has shown a higher `epoch`: another took over" },
  busy: { retry: true, meaning: "as many commands are at work as may be, or the agent stops" },
  internal: { retry: true, meaning: "an error of ours, in the log; it may be carried out in part" },
} as const satisfies Record<string, { readonly retry: boolean; readonly meaning: string }>;

export type RefusalWord = keyof typeof REFUSALS;

/** `words` are for people: one line, no secrets. */
export interface Refusal {
  readonly word: RefusalWord;
  readonly words: string;
}

/** Whether the command of a receipt was refused for something that may be over a moment later. */
export function isRefusedForNow({ status, reason = "" }: { status: string; reason?: string }) {
  const word = reason.slice(0, reason.indexOf(":"));
  return status === "rejected" && word in REFUSALS && REFUSALS[word as RefusalWord].retry;
}

/** As it stands in a receipt. */
export function reasonOf({ word, words }: Refusal): string {
  return `${word}: ${words}`;
}
