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

/** The least role that may send it. */
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
 * Why this sender's command does not get in; null where it does, and then one token is gone: of the
 * account where the transport knows it, so that claiming other issuers wins nothing, else of the
 * issuer, as over NATS, where the broker knows who may publish and does not tell.
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
      word: "forbidden",
      words: `${command.type} needs the role ${role}${fixOf(sender, role)}`,
    };
  }
  if (sender.broadcast && !limits.broadcast.includes(command.type)) {
    return { word: "broadcast_refused", words: `${command.type} does not come by broadcast here` };
  }
  const { notAfterS } = command;
  if (notAfterS !== null && clock.wallMs() / 1_000 > notAfterS) {
    return { word: "expired", words: `not_after was ${notAfterS}` };
  }
  for (const name of ["epoch", "seq"] as const) {
    const number = command[name];
    if (number === null || isPlausible(number, clock.wallMs())) continue;
    const words = `${name} ${number} leaves no room: count up to 2^40, or use the time`;
    return { word: "implausible", words };
  }
  const { account } = sender;
  const whose = account === undefined ? "issuer" : "token";
  return refusalByRate(`${whose} ${account ?? issuer}`, whose, gate);
}

function fixOf({ role, roleKey }: Sender, needed: Role): string {
  if (roleKey === undefined) return "";
  return `, and ${roleKey} gives ${role}: ${roleFix(roleKey, needed)}`;
}

/** Whether a command of this sender that has got in may delete blocks, and how to let it. */
export function grantOf(sender: Sender): Grant {
  return { mayPurge: mayDo(sender.role, "purge"), fix: fixOf(sender, "purge") };
}

/** The same of a body that is no command: it names no issuer, and an account may be known. */
export function refusalOfUnreadable({ account }: Sender, gate: Gate): Refusal | null {
  return account === undefined ? null : refusalByRate(`token ${account}`, "token", gate);
}

function refusalByRate(bucket: string, whose: string, gate: Gate): Refusal | null {
  const { clock, buckets } = gate;
  const { commandsPerSecond, commandsBurst } = gate.limits;
  if (buckets.take(bucket, clock.monotonicMs(), commandsPerSecond, commandsBurst)) return null;
  return { word: "rate_limited", words: `${commandsPerSecond} commands a second for one ${whose}` };
}
