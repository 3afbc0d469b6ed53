import type { Clock, NkeyPublic, NkeyUser, TokenBuckets } from "../core/index.ts";
import type { Grant } from "../store/index.ts";
import { type Command, mayDo, type Refusal, type Role, roleFix, type Sender } from "./command.ts";
import { isPlausible, issuerAccount } from "./command-memory.ts";
import type { ControlLimits } from "./control-plane.ts";
import { type MediaType, mediaTypeOf } from "./decode-command.ts";

/**
 * An issuer whose commands need proof that they come from it, and the role that a proven command
 * has.
 */
export interface BoundIssuer {
  readonly name: string;
  readonly role: Role;
  /**
   * Public key of the issuer's signatures. Null: the proof is that the command arrives on the
   * issuer's own NATS subject.
   */
  readonly key: NkeyPublic | null;
}

/** A command together with the transport data needed to prove its issuer. */
export interface Claim {
  readonly command: Command;
  readonly issuer: string;
  readonly sender: Sender;
  readonly body: Uint8Array;
  readonly contentType: string | null;
  /** Value of the signature header. */
  readonly signature: string | null;
}

export interface ProofOptions {
  readonly clock: Clock;
  readonly workerId: string;
  readonly issuers: () => readonly BoundIssuer[];
  /** Returns true if this issuer has proved its name before. */
  readonly wasProven: (issuer: string) => boolean;
}

export type Proof =
  | { readonly ok: true; readonly sender: Sender; readonly isSigned: boolean }
  | { readonly ok: false; readonly refusal: Refusal };

/**
 * Authenticates the issuer of a command. A sender that the transport identifies keeps its account;
 * ids and epochs of an account are separate from those of all others. Other senders may not use the
 * name of an issuer that must prove it.
 */
export function proveIssuer(claim: Claim, options: ProofOptions): Proof {
  const { sender, issuer, signature } = claim;
  if (sender.subjectIssuer !== undefined && sender.subjectIssuer !== issuer) {
    return unproven(
      `the subject belongs to ${sender.subjectIssuer}, but the command names ${issuer}`,
    );
  }
  const bound = options.issuers().find(({ name }) => name === issuer);
  if (signature !== null) return proveSignature(claim, signature, bound, options);
  if (bound?.key === null && sender.subjectIssuer === issuer) {
    return { ok: true, sender: proven(sender, bound), isSigned: false };
  }
  if (sender.account !== undefined) return { ok: true, sender, isSigned: false };
  if (bound !== undefined) {
    const how = bound.key === null ? `publish on its own subject` : "sign with its key";
    return unproven(`${issuer} must prove its name (control.issuers): ${how}`);
  }
  if (options.wasProven(issuer)) {
    const fix = `list it in control.issuers, or run hearth ctl unfence ${issuer}`;
    return unproven(`${issuer} has proved its name before: ${fix}`);
  }
  return { ok: true, sender, isSigned: false };
}

function proveSignature(
  { command, sender, body, contentType }: Claim,
  signature: string,
  bound: BoundIssuer | undefined,
  { clock, workerId }: ProofOptions,
): Proof {
  const { id, issuer, notAfterS } = command;
  // A signed command must contain these members itself. Values that the transport would add are not
  // covered by the signature.
  if (id === null || issuer === null || notAfterS === null) {
    return unproven("a signed command requires id, issuer and not_after");
  }
  if (bound === undefined || bound.key === null) {
    return unproven(`control.issuers has no key for ${issuer}`);
  }
  const aheadS = notAfterS - clock.wallMs() / 1_000;
  if (aheadS > SIGNED_SECONDS_MAX + CLOCK_SKEW_SECONDS) {
    const limit = `the maximum is ${SIGNED_SECONDS_MAX}: compare the clocks`;
    return unproven(`not_after is ${Math.round(aheadS)} s ahead, ${limit}`);
  }
  const worker = sender.broadcast ? ALL_WORKERS : workerId;
  const bytes = signedBytes(worker, mediaTypeOf(contentType), body);
  if (bound.key.verify(bytes, signature)) {
    return { ok: true, sender: proven(sender, bound), isSigned: true };
  }
  return unproven(`the signature does not match ${issuer}, this command and ${worker}`);
}

/**
 * Returns the sender with the proven issuer's account. Its role is the higher one of the
 * transport's role and the issuer's role.
 */
function proven(sender: Sender, { name, role }: BoundIssuer): Sender {
  const account = issuerAccount(name);
  if (mayDo(sender.role, role)) return { ...sender, account };
  return { ...sender, role, roleKey: "control.issuers", account };
}

function unproven(message: string): Proof {
  return { ok: false, refusal: { code: "unproven", message } };
}

const FORMAT = "hearth-command-v1";
/** Stands in place of a worker's id in a command to all workers. */
export const ALL_WORKERS = "*";
/**
 * Maximum seconds from now to a signed command's `not_after`, and the tolerated difference in
 * seconds between two clocks.
 */
export const SIGNED_SECONDS_MAX = 600;
export const CLOCK_SKEW_SECONDS = 60;

const encoder = new TextEncoder();

/**
 * Returns the bytes that a signature covers: a line with the format's name, the id of the addressed
 * worker (or `*`) and the media type of the body, followed by the body as sent, which contains the
 * command's envelope members.
 */
export function signedBytes(worker: string, type: MediaType, body: Uint8Array): Uint8Array {
  const head = encoder.encode(`${FORMAT}\n${worker}\n${type}\n`);
  const bytes = new Uint8Array(head.length + body.length);
  bytes.set(head);
  bytes.set(body, head.length);
  return bytes;
}

/**
 * Signs a command and returns the value of the header `Hearth-Signature`: base64url without
 * padding.
 */
export function signCommand(
  key: NkeyUser,
  worker: string,
  contentType: string,
  body: Uint8Array,
): string {
  return key.sign(signedBytes(worker, mediaTypeOf(contentType), body));
}

export interface Gate {
  readonly clock: Clock;
  readonly limits: ControlLimits;
  readonly buckets: TokenBuckets;
}

/** Returns the lowest role that may send the command. */
function roleFor(command: Command): Role {
  switch (command.type) {
    case "Prune":
    case "RevokeLease":
    case "Flush":
      return "purge";
    case "Think":
      return command.transient ? "operate" : "purge";
    case "Warm":
    case "Cache":
    case "Pause":
    case "RenewLease":
      return "operate";
    default:
      return command satisfies never;
  }
}

/**
 * Checks role and rate limit of a command. Returns the refusal, or null if the command is admitted;
 * admission takes one token of the rate limit. If the transport knows the sender's account, the
 * limit applies to the account, so that claiming other issuers does not help. Otherwise it applies
 * to the issuer, as over NATS, where the broker does not disclose the publisher.
 */
export function refusalAtGate(
  command: Command,
  sender: Sender,
  issuer: string,
  gate: Gate,
): Refusal | null {
  const { clock, limits } = gate;
  const role = roleFor(command);
  if (!mayDo(sender.role, role)) {
    return {
      code: "forbidden",
      message: `${command.type} needs the role ${role}${fixOf(sender, role)}`,
    };
  }
  if (sender.broadcast && !limits.broadcast.includes(command.type)) {
    return { code: "broadcast_refused", message: `${command.type} is not allowed by broadcast` };
  }
  const { notAfterS } = command;
  if (notAfterS !== null && clock.wallMs() / 1_000 > notAfterS) {
    return { code: "expired", message: `not_after ${notAfterS} has passed` };
  }
  for (const name of ["epoch", "seq"] as const) {
    const number = command[name];
    if (number === null || isPlausible(number, clock.wallMs())) continue;
    const message = `${name} ${number} leaves no room for later ones: use a counter or a time`;
    return { code: "implausible", message };
  }
  const { account } = sender;
  const whose = account === undefined ? "issuer" : "token";
  return refusalByRate(`${whose} ${account ?? issuer}`, whose, gate);
}

function fixOf({ role, roleKey }: Sender, needed: Role): string {
  if (roleKey === undefined) return "";
  return `, and ${roleKey} gives ${role}: ${roleFix(roleKey, needed)}`;
}

/**
 * Returns whether an admitted command of this sender may delete blocks, and if not, how an operator
 * can allow it.
 */
export function grantOf(sender: Sender): Grant {
  return { mayPurge: mayDo(sender.role, "purge"), fix: fixOf(sender, "purge") };
}

/**
 * Applies the rate limit to a body that is not a valid command. Such a body names no issuer, but
 * its account may be known.
 */
export function refusalOfUnreadable({ account }: Sender, gate: Gate): Refusal | null {
  return account === undefined ? null : refusalByRate(`token ${account}`, "token", gate);
}

function refusalByRate(bucket: string, whose: string, gate: Gate): Refusal | null {
  const { clock, buckets } = gate;
  const { commandsPerSecond, commandsBurst } = gate.limits;
  if (buckets.take(bucket, clock.monotonicMs(), commandsPerSecond, commandsBurst)) return null;
  return {
    code: "rate_limited",
    message: `${commandsPerSecond} commands a second for one ${whose}`,
  };
}
