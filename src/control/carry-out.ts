import type { CommandOrigin } from "../core/index.ts";
import type { Grant, Lifecycle, LifecycleReport, OnProgress, Remember } from "../store/index.ts";
import type { Command } from "./command.ts";
import type { Place } from "./issuer-order.ts";

export interface CarryOutOptions {
  readonly issuer: string;
  readonly grant: Grant;
  /** Called in the turn in which holds or marks change; see the port of the lifecycle. */
  readonly remember: Remember;
  readonly onProgress: OnProgress;
  /** Ends long commands early. */
  readonly signal: AbortSignal;
}

/** The lane of commands on blocks that are pinned and marked in it. */
const BLOCKS = "blocks";

/**
 * Where it stands among the commands of its issuer. A pause holds its blocks once they are on SSD,
 * and a purge walks over them: meanwhile commands on another lease, and pins while it is a pause,
 * do not wait. What removes or marks waits for all that may hold before it; nothing waits for what
 * is long.
 */
export function placeOf(command: Command): Place {
  switch (command.type) {
    case "Cache":
      return { lanes: [BLOCKS], behind: [] };
    case "Think":
      return { lanes: [BLOCKS], behind: "all" };
    case "RenewLease":
      return { lanes: [`lease ${command.leaseId}`], behind: [] };
    case "Pause":
    case "RevokeLease":
      return { lanes: [`lease ${command.leaseId}`], behind: [BLOCKS] };
    case "Warm":
    case "Prune":
    case "Flush":
      return { lanes: [], behind: "all" };
    default:
      return command satisfies never;
  }
}

/**
 * Whether a repetition would count or reach further than the first: it has to be known from the
 * moment holds change. Of the others, which bring about a state, one that was cut off is carried
 * out again.
 */
export function isCounted({ type }: Command): boolean {
  return type === "Cache" || type === "Pause" || type === "RenewLease";
}

/** Calls the operation that a command means. */
export function carryOut(
  lifecycle: Lifecycle,
  command: Command,
  { issuer, grant, remember, onProgress, signal }: CarryOutOptions,
): Promise<LifecycleReport> {
  const origin: CommandOrigin = { issuer, command: command.id };
  const owner = command.owner ?? issuer;
  switch (command.type) {
    case "Warm": {
      const { target, sources } = command;
      return lifecycle.warm(command.blocks, { target, sources, onProgress, signal });
    }
    case "Prune":
      return lifecycle.prune(command.after, origin, { onProgress, signal });
    case "Cache":
      return cache(lifecycle, command, owner, remember);
    case "Think":
      return command.transient
        ? lifecycle.markTransient(command.blocks, origin, { grant, remember })
        : lifecycle.purgeTransient(command.blocks, origin, { remember });
    case "Pause": {
      const { leaseId: lease, ttlMs } = command;
      return lifecycle.pause(command.blocks, { lease, owner, ttlMs, grant, remember });
    }
    case "RenewLease":
      return lifecycle.renewLease(command.leaseId, command.ttlMs, { owner, grant, remember });
    case "RevokeLease":
      return lifecycle.revokeLease(command.leaseId, origin, { remember });
    case "Flush":
      return lifecycle.flush(origin);
    default:
      return command satisfies never;
  }
}

function cache(
  lifecycle: Lifecycle,
  { blocks, action }: Extract<Command, { type: "Cache" }>,
  owner: string,
  remember: Remember,
): Promise<LifecycleReport> {
  switch (action.kind) {
    case "pin":
      return lifecycle.pin(blocks, { owner, ttlMs: action.ttlMs, remember });
    case "unpin":
      return lifecycle.unpin(blocks, { owner, remember });
    case "retain": {
      const { priority, idleMs } = action;
      return lifecycle.retain(blocks, { owner, priority, idleMs, remember });
    }
    default:
      return action satisfies never;
  }
}
