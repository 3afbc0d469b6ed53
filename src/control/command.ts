import { type BlockName, MSGPACK_LIMITS } from "../core/index.ts";

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
 * Limits of one command. In JSON, the limit on values is applied to the number of commas, including
 * those in strings. Clients split longer lists of blocks into several commands.
 */
export const COMMAND_LIMITS = {
  ...MSGPACK_LIMITS.command,
  blocksMax: MSGPACK_LIMITS.command.itemsMax,
  /** Maximum UTF-8 bytes of an id, issuer, owner, lease or source name. */
  nameBytesMax: 128,
  sourcesMax: 64,
} as const;

/**
 * Members that any command may have. `id` with `issuer`: a repeated command changes nothing and
 * gets the same receipt. `epoch`: if this issuer has already used a higher epoch, the command is
 * refused, because another router has taken over. `seq`: within one epoch, a command is refused as
 * `stale` if its number is not above the last one. `notAfterS`: time in seconds since 1970, from
 * which on the command is refused. `owner`: owner of the pins; by default the issuer.
 */
export interface Envelope {
  readonly id: string | null;
  readonly issuer: string | null;
  readonly epoch: bigint | null;
  readonly seq: bigint | null;
  readonly notAfterS: number | null;
  readonly owner: string | null;
}

/** A validated command. Durations are in milliseconds. */
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
        /** Pins and soft pins. A command has either `pin` or `retain`. */
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
    /** Removes every block without a pin, lease or slot reference. */
    | { readonly type: "Flush" }
  );

/** Returns the names of the blocks in the command. */
export function namesOf(command: Command): readonly BlockName[] {
  if (command.type === "Prune") return [command.after];
  return "blocks" in command ? command.blocks : [];
}

/** Returns the number of blocks that the command names. */
export function blocksOf(command: Command): number {
  return namesOf(command).length;
}

/** A list entry that is not a valid block name. The other blocks of the command are processed. */
export interface UnnamedBlock {
  /** Index of the entry in the list. */
  readonly at: number;
  readonly given: number | bigint | string;
  readonly reason: string;
}

/** Roles of senders, ascending. Each role includes the permissions of those before it. */
export const ROLES = ["read", "operate", "purge"] as const;
export type Role = (typeof ROLES)[number];

/** Returns true if `role` includes the permissions of `needed`. */
export function mayDo(role: Role, needed: Role): boolean {
  return ROLES.indexOf(role) >= ROLES.indexOf(needed);
}

/**
 * Configuration keys that assign roles. Each has a text for refusals, which explains how to assign
 * a higher role.
 */
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

/**
 * Returns a text for refusals: how a sender whose role comes from configuration key `key` obtains
 * the role `needed`.
 */
export function roleFix(key: RoleKey, needed: Role): string {
  return ROLE_KEYS[key].replaceAll("ROLE", needed);
}

/** Sender of a command, as far as the transport can identify it. */
export interface Sender {
  readonly via: "nats" | "http" | "local";
  /** Address, subject or token name of the sender, for the audit log. */
  readonly from: string;
  /** Issuer of those commands that name none. */
  readonly name: string;
  readonly role: Role;
  /** Configuration key that assigned the sender's role. Absent if none did. */
  readonly roleKey?: RoleKey;
  /**
   * Identity authenticated by the transport, for example the token that was presented. All commands
   * of an account share one rate limit, whatever issuers they claim. Without an account, each
   * issuer has its own limit.
   */
  readonly account?: string | undefined;
  /**
   * Issuer named by the NATS subject `kv-control-w.ISSUER`. Absent for other transports and
   * subjects.
   */
  readonly subjectIssuer?: string;
  /**
   * True if the command arrived on the broadcast subject. Then only the commands that the
   * configuration allows are carried out.
   */
  readonly broadcast: boolean;
}

/** NATS subject of commands to all workers. */
export const BROADCAST_SUBJECT = "kv-control-broadcast";
/** Name under which every agent appears in NATS service discovery. */
export const SERVICE_NAME = "hearth-agent";
/**
 * Header that contains the subject for the receipt. JetStream replaces a stored command's own reply
 * subject.
 */
export const REPLY_HEADER = "Hearth-Reply";
/** Header that contains the signature of a command, on NATS and HTTP. */
export const SIGNATURE_HEADER = "Hearth-Signature";

/** Valid names of issuers that can prove their name. Such a name is the last token of a subject. */
export const ISSUER_NAME = /^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$/;

/** Returns the NATS subject on which a worker receives commands. */
export function workerSubject(worker: string): string {
  return `kv-control-${worker}`;
}

/**
 * Returns the subject for commands of one issuer. The NATS server's permissions must allow only
 * `issuer` to publish on it.
 */
export function issuerSubject(subject: string, issuer: string): string {
  return `${subject}.${issuer}`;
}

/** An operator's action on blocks that did not arrive as a command, for the audit log. */
export interface Operation {
  /** Name of the action; the audit log stores it in place of a command's type. */
  readonly type: string;
  /** Number of blocks that the action named. Null if it named none. */
  readonly blocks: number | null;
  /**
   * The names of the first blocks (at least eight, or all if there are fewer): digests, some with a
   * layer. For actions on other objects, the object's name.
   */
  readonly names: readonly string[];
  /** `rejected`: the action changed nothing, because of `reason`. */
  readonly status: "ok" | "partial" | "rejected";
  readonly reason: string | null;
  /** Results by name. Each action defines its own names. */
  readonly counts: Readonly<Record<string, number>>;
  readonly elapsedMs: number;
}

/**
 * Reasons for refusing a whole command, by the stable codes at the start of the receipt's `reason`.
 * `retry`: true if the same command may be accepted a moment later.
 */
export const REFUSALS = {
  malformed: {
    retry: false,
    meaning:
      "the body is not valid JSON or MessagePack, or a member is missing or has the wrong type",
  },
  unknown_type: { retry: false, meaning: "`type` is not a known command" },
  too_large: { retry: false, meaning: "the command exceeds the maximum bytes, blocks or sources" },
  too_deep: { retry: false, meaning: "lists or objects are nested too deeply" },
  forbidden: { retry: false, meaning: "the sender's role does not include this command" },
  unproven: {
    retry: false,
    meaning: "the issuer must prove its name, and neither the signature nor the subject proves it",
  },
  replayed: {
    retry: false,
    meaning: "a signed command with this `id` was accepted before, and its receipt was forgotten",
  },
  implausible: {
    retry: false,
    meaning: "`epoch` or `seq` is neither a counter up to 2^40 nor a time",
  },
  broadcast_refused: {
    retry: false,
    meaning: "the configuration does not allow this command by broadcast",
  },
  expired: { retry: false, meaning: "the command arrived after its `not_after`" },
  rate_limited: {
    retry: true,
    meaning: "this issuer or token exceeds its rate of commands per second",
  },
  id_reused: {
    retry: false,
    meaning: "the same issuer used this `id` for a different command",
  },
  stale: {
    retry: false,
    meaning: "`seq` is not above the `seq` of an earlier command of the same issuer and epoch",
  },
  fenced: {
    retry: false,
    meaning: "this issuer has used a higher `epoch`: another instance has taken over",
  },
  busy: {
    retry: true,
    meaning: "the limit of concurrent commands is reached, or the agent is stopping",
  },
  internal: {
    retry: true,
    meaning: "an internal error, see the log; the command may be partly carried out",
  },
} as const satisfies Record<string, { readonly retry: boolean; readonly meaning: string }>;

export type RefusalCode = keyof typeof REFUSALS;

/** Why a command is refused. `code` is stable; `message` is one line without secrets. */
export interface Refusal {
  readonly code: RefusalCode;
  readonly message: string;
}

/** Returns true if the command of this receipt was refused for a temporary reason. */
export function isRefusedForNow({ status, reason = "" }: { status: string; reason?: string }) {
  const code = reason.slice(0, reason.indexOf(":"));
  return status === "rejected" && code in REFUSALS && REFUSALS[code as RefusalCode].retry;
}

/** Returns the refusal as text for a receipt's `reason`. */
export function reasonOf({ code, message }: Refusal): string {
  return `${code}: ${message}`;
}
