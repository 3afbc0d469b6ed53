import type { Bus } from "../../bus/index.ts";
import type { RouterConfig } from "../../config/index.ts";
import { type ControlClient, connectControl, type SendResult } from "../../control/client/index.ts";
import { type Clock, messageOf, type Random } from "../../core/index.ts";
import type { Native } from "../../native/index.ts";
import {
  type Commander,
  type CommandOutcome,
  createDigestNamer,
  POLICY_DEFAULTS,
  Policies,
  type PolicyMode,
  type PolicyName,
  type PolicySettings,
  type Router,
  type WorkerTable,
} from "../../router/index.ts";
import { readSigningSeed } from "../credentials.ts";

interface PoliciesServiceParts {
  readonly config: RouterConfig;
  readonly native: Native;
  readonly clock: Clock;
  readonly random: Random;
  readonly router: Router;
  readonly table: WorkerTable;
  /** Bus on which agents accept commands. The caller owns it and closes it. */
  readonly bus: Bus;
}

/** Runs the cache policies and sends their commands over the bus. */
export class PoliciesService implements AsyncDisposable {
  readonly policies: Policies;
  readonly #client: ControlClient;

  constructor({ config, native, clock, random, router, table, bus }: PoliciesServiceParts) {
    const issuer = `router-${config.router.id}`;
    const { commandProof, signNkeyFile } = config.nats;
    this.#client = connectControl({
      ...{ bus, clock, random, issuer },
      ownSubject: commandProof === "subject",
      ...(commandProof === "signature" ? { signingSeed: readSigningSeed(signNkeyFile!) } : {}),
    });
    this.policies = new Policies({
      ...{ clock, router, table, settings: policySettings(config) },
      commander: createCommander({ client: this.#client }),
      namer: createDigestNamer(native),
    });
  }

  /** Applies the modes of cache policies from a new configuration. */
  configure(config: RouterConfig): void {
    for (const [policy, mode] of policyModes(config)) this.policies.setMode(policy, mode);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.policies[Symbol.dispose]();
    await this.#client[Symbol.asyncDispose]();
  }
}

/** Returns the settings of cache policies from the router's configuration. */
function policySettings({ policies }: RouterConfig): PolicySettings {
  const { coldWorker, idleSession, cacheControl, reasoning, contextRewrite } = POLICY_DEFAULTS;
  return {
    ...POLICY_DEFAULTS,
    coldWorker: { ...coldWorker, mode: policies.coldWorker },
    idleSession: { ...idleSession, mode: policies.idleSession },
    cacheControl: { ...cacheControl, mode: policies.cacheControl },
    reasoning: { ...reasoning, mode: policies.reasoning },
    contextRewrite: { ...contextRewrite, mode: policies.contextRewrite },
  };
}

/** Returns the mode of each cache policy. A reload can change modes. */
function policyModes({ policies }: RouterConfig): readonly [PolicyName, PolicyMode][] {
  return [
    ["cold_worker", policies.coldWorker],
    ["idle_session", policies.idleSession],
    ["cache_control", policies.cacheControl],
    ["reasoning", policies.reasoning],
    ["context_rewrite", policies.contextRewrite],
  ];
}

export interface CommanderOptions {
  /** Client that sends commands. It sets each command's issuer and id. */
  readonly client: ControlClient;
  /**
   * Owner of the pins and leases. All routers of a fleet use the same owner, so any router can
   * renew them.
   */
  readonly owner?: string;
  readonly inFlightMax?: number;
  readonly deadlineMs?: number;
  /** Time in ms to wait for an agent that is not registered. */
  readonly absentMs?: number;
}

/**
 * Creates a commander that sends commands through a control client. An agent that does not answer
 * delays a command by at most its deadline.
 */
export function createCommander(options: CommanderOptions): Commander {
  const { client, owner = "router", inFlightMax = 512 } = options;
  const { deadlineMs = 30_000, absentMs = 2_000 } = options;
  let inFlight = 0;
  return {
    async send(worker, command): Promise<CommandOutcome> {
      if (inFlight >= inFlightMax) {
        return { kind: "refused", why: `${inFlightMax} commands are waiting for receipts` };
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
