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
