import type { Clock, TokenBuckets } from "../core/index.ts";
import type { Grant } from "../store/index.ts";
import type { Refusal } from "./command.ts";
import { type Command, mayDo, type Role, roleFix, type Sender } from "./command.ts";
import type { ControlLimits } from "./control-plane.ts";
import { isPlausible } from "./issuers.ts";

export interface Gate {
  readonly clock: Clock;
  readonly limits: ControlLimits;
  readonly buckets: TokenBuckets;
}

/** The lowest role that may send the command. */
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
 * Authorizes a command. Returns the refusal, or null if the command is admitted; admission takes
 * one token of the rate limit. The limit applies to the account if the transport knows it, so that
 * claiming other issuers does not help, and otherwise to the issuer, as over NATS, where the broker
 * does not disclose the publisher.
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

/** Whether an admitted command of this sender may delete blocks, and how to allow it. */
export function grantOf(sender: Sender): Grant {
  return { mayPurge: mayDo(sender.role, "purge"), fix: fixOf(sender, "purge") };
}

/**
 * Applies the rate limit to a body that is not a command: it names no issuer, but the account may
 * be known.
 */
export function refusalOfUnreadable({ account }: Sender, gate: Gate): Refusal | null {
  return account === undefined ? null : refusalByRate(`token ${account}`, "token", gate);
}

function refusalByRate(bucket: string, whose: string, gate: Gate): Refusal | null {
  const { clock, buckets } = gate;
  const { commandsPerSecond, commandsBurst } = gate.limits;
  if (buckets.take(bucket, clock.monotonicMs(), commandsPerSecond, commandsBurst)) return null;
  return { code: "rate_limited", message: `${commandsPerSecond} commands a second for one ${whose}` };
}
