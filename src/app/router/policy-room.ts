import type { Bus } from "../../bus/index.ts";
import type { RouterConfig } from "../../config/index.ts";
import { type ControlClient, connectControl } from "../../control/client/index.ts";
import type { Clock, Random } from "../../core/index.ts";
import type { Native } from "../../native/index.ts";
import {
  createDigestNamer,
  createPolicies,
  type Policies,
  type Router,
  type WorkerTable,
} from "../../router/index.ts";
import { readSigningSeed } from "../nats-files.ts";
import { createCommander } from "./commander.ts";
import { policyModes, policySettings } from "./policy-settings.ts";

export interface PolicyRoomParts {
  readonly config: RouterConfig;
  readonly native: Native;
  readonly clock: Clock;
  readonly random: Random;
  readonly router: Router;
  readonly table: WorkerTable;
  /** Where agents take commands; not closed here. */
  readonly bus: Bus;
}

/** The policies, and the commands that they send over the bus. */
export class PolicyRoom implements AsyncDisposable {
  readonly policies: Policies;
  readonly #client: ControlClient;

  constructor({ config, native, clock, random, router, table, bus }: PolicyRoomParts) {
    const issuer = `router-${config.router.id}`;
    const { commandProof, signNkeyFile } = config.nats;
    this.#client = connectControl({
      ...{ bus, clock, random, issuer },
      ownSubject: commandProof === "subject",
      ...(commandProof === "signature" ? { signingSeed: readSigningSeed(signNkeyFile!) } : {}),
    });
    this.policies = createPolicies({
      ...{ clock, router, table, settings: policySettings(config) },
      commander: createCommander({ client: this.#client }),
      namer: createDigestNamer(native),
    });
  }

  /** Takes the switches of a new configuration. */
  configure(config: RouterConfig): void {
    for (const [policy, mode] of policyModes(config)) this.policies.setMode(policy, mode);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.policies[Symbol.dispose]();
    await this.#client[Symbol.asyncDispose]();
  }
}
