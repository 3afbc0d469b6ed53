import type { ControlClient, SendResult } from "../../control/client/index.ts";
import { messageOf } from "../../core/index.ts";
import type { Commander, CommandOutcome } from "../../router/index.ts";

export interface CommanderOptions {
  /** Names this router as the issuer, and gives each command an id of its own. */
  readonly client: ControlClient;
  /** Whose pins and leases; the same for all routers of a fleet: any may go on with them. */
  readonly owner?: string;
  readonly inFlightMax?: number;
  readonly deadlineMs?: number;
  /** How long an agent that is not there is waited for. */
  readonly absentMs?: number;
}

/** Commands over a control client. An agent that does not answer costs no more than a deadline. */
export function createCommander(options: CommanderOptions): Commander {
  const { client, owner = "router", inFlightMax = 512 } = options;
  const { deadlineMs = 30_000, absentMs = 2_000 } = options;
  let inFlight = 0;
  return {
    async send(worker, command): Promise<CommandOutcome> {
      if (inFlight >= inFlightMax) {
        return { kind: "refused", why: `${inFlightMax} commands wait for their receipts` };
      }
      inFlight++;
      try {
        return outcomeOf(
          await client.send(worker, { owner, ...command }, { deadlineMs, absentMs }),
        );
      } catch (thrown) {
        return { kind: "refused", why: messageOf(thrown) };
      } finally {
        inFlight--;
      }
    },
  };
}

function outcomeOf(result: SendResult): CommandOutcome {
  if (result.kind === "unanswered") return { kind: "no_answer" };
  if (result.kind !== "receipt") return { kind: "refused", why: result.why };
  const { status, reason, counts, bytes = 0, ttl_seconds: ttlSeconds = null } = result.receipt;
  if (status === "rejected") return { kind: "refused", why: reason ?? "rejected" };
  return { kind: "receipt", counts: { ...counts }, bytes, ttlSeconds };
}
