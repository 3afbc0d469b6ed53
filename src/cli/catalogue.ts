import type { Command } from "./command.ts";

/** One subcommand. Its module is imported only when it runs or its help is printed. */
export interface Entry {
  /** Name of the subcommand: one word, or two such as `bench index`. */
  readonly name: string;
  /** One-line summary for the list of `hearth --help`. */
  readonly summary: string;
  load(): Promise<Command>;
}

/**
 * Returns the catalogue entries of one module's commands. `commands` gives the export and the
 * summary of each subcommand, by its name.
 */
function commandsOf<Module extends object>(
  load: () => Promise<Module>,
  commands: Readonly<Record<string, readonly [exported: keyof Module, summary: string]>>,
): Entry[] {
  return Object.entries(commands).map(([name, [exported, summary]]) => ({
    name,
    summary,
    load: async () => (await load())[exported] as Command,
  }));
}

/** All subcommands of this release, in the order of `hearth --help`. */
export const CATALOGUE: readonly Entry[] = [
  ...commandsOf(() => import("./commands/agent-and-router.ts"), {
    agent: ["agentCommand", "run the agent of this host"],
    router: ["routerCommand", "route each request to a worker, by the blocks that workers hold"],
  }),
  ...commandsOf(() => import("./commands/demo.ts"), {
    demo: ["command", "run a demo: replay real traffic through a temporary agent"],
  }),
  ...commandsOf(() => import("./commands/replay.ts"), {
    replay: ["command", "replay a trace against an agent, in place of an engine"],
  }),
  ...commandsOf(() => import("./commands/check.ts"), {
    check: ["command", "check a configuration file"],
  }),
  ...commandsOf(() => import("./commands/doctor.ts"), {
    doctor: ["command", "check the host and suggest fixes"],
  }),
  ...commandsOf(() => import("./commands/ctl-commands.ts"), {
    "ctl pin": ["ctlPinCommand", "pin blocks"],
    "ctl unpin": ["ctlUnpinCommand", "remove an owner's pins"],
    "ctl retain": ["ctlRetainCommand", "soft-pin blocks"],
    "ctl prune": ["ctlPruneCommand", "remove the descendants of a block"],
    "ctl think": ["ctlThinkCommand", "mark blocks as transient, or purge transient blocks"],
    "ctl pause": ["ctlPauseCommand", "move blocks to SSD under a lease"],
    "ctl renew": ["ctlRenewCommand", "renew a lease"],
    "ctl revoke": ["ctlRevokeCommand", "end a lease and purge its unprotected blocks"],
    "ctl warm": ["ctlWarmCommand", "prefetch blocks into RAM"],
    "ctl flush": ["ctlFlushCommand", "remove all unprotected blocks from RAM and SSD"],
    "ctl unfence": ["ctlUnfenceCommand", "reset the epoch and sequence of an issuer"],
    "ctl send": ["ctlSendCommand", "send a command from a file"],
  }),
  ...commandsOf(() => import("./commands/ctl-blocks.ts"), {
    "ctl tree": ["ctlTreeCommand", "show the block tree with tiers and holders"],
    "ctl explain": [
      "ctlExplainCommand",
      "explain which blocks of a prompt hit, and why others miss",
    ],
    "ctl pins": ["ctlPinsCommand", "list pins and the pin budget"],
    "ctl leases": ["ctlLeasesCommand", "list leases of paused blocks"],
  }),
  ...commandsOf(() => import("./commands/ctl-agent.ts"), {
    "ctl peers": ["ctlPeersCommand", "list peers and the state of their connections"],
    "ctl trace-pull": ["ctlTracePullCommand", "trace a block's transfer from a peer"],
    "ctl events": ["ctlEventsCommand", "print events of pins, leases, peers and commands"],
    "ctl status": ["ctlStatusCommand", "show the status of an agent"],
    "ctl workers": ["ctlWorkersCommand", "list the workers reachable through a NATS server"],
  }),
  ...commandsOf(() => import("./commands/ctl-router.ts"), {
    "ctl loads": ["ctlLoadsCommand", "list the workers of a router and their load"],
    "ctl route": ["ctlRouteCommand", "query which worker a router would choose"],
    "ctl explain-route": ["ctlExplainRouteCommand", "explain a decision of a router"],
  }),
  ...commandsOf(() => import("./commands/fsck.ts"), {
    fsck: ["command", "check and repair the block files of an SSD folder"],
  }),
  ...commandsOf(() => import("./commands/ca.ts"), {
    "ca init": ["caInitCommand", "create a certificate authority for a cluster"],
    "ca issue": ["caIssueCommand", "issue the certificate and key of a host"],
    "ca show": ["caShowCommand", "show and verify a certificate"],
  }),
  ...commandsOf(() => import("./commands/bench-node.ts"), {
    "bench engine": ["benchEngineCommand", "measure the engine plane between two processes"],
    "bench index": ["benchIndexCommand", "measure the block table"],
    "bench hash": ["benchHashCommand", "measure hashing of prompts"],
    "bench ssd": ["benchSsdCommand", "measure the SSD tier against fio, or with many files"],
  }),
  ...commandsOf(() => import("./commands/bench-gpu.ts"), {
    "bench gpu": ["benchGpuCommand", "measure copies between RAM and a GPU against a plain loop"],
    "bench ttft": [
      "benchTtftCommand",
      "measure time to first token: recomputed against restored prompts",
    ],
  }),
  ...commandsOf(() => import("./commands/bench-network.ts"), {
    "bench peer": ["benchPeerCommand", "measure transfers between peers against bare programs"],
    "bench control": [
      "benchControlCommand",
      "measure commands over NATS, and a prune of many blocks",
    ],
  }),
  ...commandsOf(() => import("./commands/bench-policies.ts"), {
    "bench pin": ["benchPinCommand", "measure pinned blocks under memory pressure"],
    "bench policy": ["benchPolicyCommand", "compare hit ratios of eviction policies on traces"],
  }),
  ...commandsOf(() => import("./commands/bench-router.ts"), {
    "bench prefix": ["benchPrefixCommand", "measure the router's prefix index"],
    "bench decide": ["benchDecideCommand", "measure decisions of the router"],
    "bench route": [
      "benchRouteCommand",
      "compare hit ratios and balance of routing policies on traces",
    ],
  }),
  ...commandsOf(() => import("./commands/bench-policies.ts"), {
    "bench policies": [
      "benchPoliciesCommand",
      "compare the router's lifecycle policies on a trace of conversations",
    ],
  }),
  ...commandsOf(() => import("./commands/reference.ts"), {
    reference: ["command", "print a reference page as Markdown"],
  }),
];
