import type { Command } from "./command.ts";

/** One subcommand. Its module is imported when it is run or its help is asked for, never before. */
export interface Entry {
  /** One word, or two: `bench index`. */
  readonly name: string;
  /** One line for the list of `hearth --help`. */
  readonly summary: string;
  load(): Promise<Command>;
}

/** All subcommands of this release, in the order of `hearth --help`. */
export const CATALOGUE: readonly Entry[] = [
  {
    name: "agent",
    summary: "run the agent of this host",
    load: async () => (await import("./commands/agent-and-router.ts")).agentCommand,
  },
  {
    name: "router",
    summary: "choose the worker for each request, by what workers hold",
    load: async () => (await import("./commands/agent-and-router.ts")).routerCommand,
  },
  {
    name: "demo",
    summary: "watch real traffic flow through an agent of its own",
    load: async () => (await import("./commands/demo.ts")).command,
  },
  {
    name: "replay",
    summary: "play an engine: send a trace through an agent",
    load: async () => (await import("./commands/replay.ts")).command,
  },
  {
    name: "check",
    summary: "tell whether a configuration file would be accepted",
    load: async () => (await import("./commands/check.ts")).command,
  },
  {
    name: "doctor",
    summary: "tell what this host offers, and what to do about the rest",
    load: async () => (await import("./commands/doctor.ts")).command,
  },
  {
    name: "ctl pin",
    summary: "keep blocks on the host",
    load: async () => (await import("./commands/ctl-commands.ts")).ctlPinCommand,
  },
  {
    name: "ctl unpin",
    summary: "take one owner's pins back",
    load: async () => (await import("./commands/ctl-commands.ts")).ctlUnpinCommand,
  },
  {
    name: "ctl retain",
    summary: "prefer blocks, without a promise",
    load: async () => (await import("./commands/ctl-commands.ts")).ctlRetainCommand,
  },
  {
    name: "ctl prune",
    summary: "drop what builds upon a block",
    load: async () => (await import("./commands/ctl-commands.ts")).ctlPruneCommand,
  },
  {
    name: "ctl think",
    summary: "mark blocks as transient, or purge those that are",
    load: async () => (await import("./commands/ctl-commands.ts")).ctlThinkCommand,
  },
  {
    name: "ctl pause",
    summary: "move blocks to SSD under a lease",
    load: async () => (await import("./commands/ctl-commands.ts")).ctlPauseCommand,
  },
  {
    name: "ctl renew",
    summary: "let a lease run on",
    load: async () => (await import("./commands/ctl-commands.ts")).ctlRenewCommand,
  },
  {
    name: "ctl revoke",
    summary: "end a lease and purge what only it held",
    load: async () => (await import("./commands/ctl-commands.ts")).ctlRevokeCommand,
  },
  {
    name: "ctl warm",
    summary: "bring blocks up to RAM before they are asked for",
    load: async () => (await import("./commands/ctl-commands.ts")).ctlWarmCommand,
  },
  {
    name: "ctl flush",
    summary: "empty the tiers of all that nothing holds",
    load: async () => (await import("./commands/ctl-commands.ts")).ctlFlushCommand,
  },
  {
    name: "ctl unfence",
    summary: "let an issuer start over, whatever epoch it had shown",
    load: async () => (await import("./commands/ctl-commands.ts")).ctlUnfenceCommand,
  },
  {
    name: "ctl send",
    summary: "send a command as it stands in a file",
    load: async () => (await import("./commands/ctl-commands.ts")).ctlSendCommand,
  },
  {
    name: "ctl tree",
    summary: "show blocks, their tiers and who holds them",
    load: async () => (await import("./commands/ctl-blocks.ts")).ctlTreeCommand,
  },
  {
    name: "ctl explain",
    summary: "tell what of a prompt hits, and why the rest does not",
    load: async () => (await import("./commands/ctl-blocks.ts")).ctlExplainCommand,
  },
  {
    name: "ctl pins",
    summary: "list pins and the room for more",
    load: async () => (await import("./commands/ctl-blocks.ts")).ctlPinsCommand,
  },
  {
    name: "ctl leases",
    summary: "list leases of what was paused",
    load: async () => (await import("./commands/ctl-blocks.ts")).ctlLeasesCommand,
  },
  {
    name: "ctl peers",
    summary: "list other hosts, and how blocks come from them",
    load: async () => (await import("./commands/ctl-agent.ts")).ctlPeersCommand,
  },
  {
    name: "ctl trace-pull",
    summary: "show how a block came from another host, or did not",
    load: async () => (await import("./commands/ctl-agent.ts")).ctlTracePullCommand,
  },
  {
    name: "ctl events",
    summary: "print what happened to holds, peers and commands",
    load: async () => (await import("./commands/ctl-agent.ts")).ctlEventsCommand,
  },
  {
    name: "ctl status",
    summary: "tell what an agent is and holds",
    load: async () => (await import("./commands/ctl-agent.ts")).ctlStatusCommand,
  },
  {
    name: "ctl workers",
    summary: "list the workers that a NATS server reaches",
    load: async () => (await import("./commands/ctl-agent.ts")).ctlWorkersCommand,
  },
  {
    name: "ctl loads",
    summary: "list the workers of a router, and what they are at work on",
    load: async () => (await import("./commands/ctl-router.ts")).ctlLoadsCommand,
  },
  {
    name: "ctl route",
    summary: "ask a router which worker it would choose",
    load: async () => (await import("./commands/ctl-router.ts")).ctlRouteCommand,
  },
  {
    name: "ctl explain-route",
    summary: "tell how a router came to a decision",
    load: async () => (await import("./commands/ctl-router.ts")).ctlExplainRouteCommand,
  },
  {
    name: "fsck",
    summary: "check the block files of an SSD folder, and repair it",
    load: async () => (await import("./commands/fsck.ts")).command,
  },
  {
    name: "ca init",
    summary: "make an authority for the certificates of a cluster",
    load: async () => (await import("./commands/ca.ts")).caInitCommand,
  },
  {
    name: "ca issue",
    summary: "make the certificate and the key of a host",
    load: async () => (await import("./commands/ca.ts")).caIssueCommand,
  },
  {
    name: "ca show",
    summary: "tell what is in a certificate, and who would believe it",
    load: async () => (await import("./commands/ca.ts")).caShowCommand,
  },
  {
    name: "bench engine",
    summary: "measure the engine plane between two processes",
    load: async () => (await import("./commands/bench-node.ts")).benchEngineCommand,
  },
  {
    name: "bench index",
    summary: "measure the block table",
    load: async () => (await import("./commands/bench-node.ts")).benchIndexCommand,
  },
  {
    name: "bench hash",
    summary: "measure hashing of prompts",
    load: async () => (await import("./commands/bench-node.ts")).benchHashCommand,
  },
  {
    name: "bench ssd",
    summary: "measure the SSD tier beside fio, or with many files",
    load: async () => (await import("./commands/bench-node.ts")).benchSsdCommand,
  },
  {
    name: "bench gpu",
    summary: "measure copies between the arena and a GPU beside a plain loop",
    load: async () => (await import("./commands/bench-gpu.ts")).benchGpuCommand,
  },
  {
    name: "bench ttft",
    summary: "measure the first token of prompts computed and restored to a GPU",
    load: async () => (await import("./commands/bench-gpu.ts")).benchTtftCommand,
  },
  {
    name: "bench peer",
    summary: "measure pulls between two hosts beside bare programs",
    load: async () => (await import("./commands/bench-network.ts")).benchPeerCommand,
  },
  {
    name: "bench control",
    summary: "measure commands over NATS, and a prune of many blocks",
    load: async () => (await import("./commands/bench-network.ts")).benchControlCommand,
  },
  {
    name: "bench pin",
    summary: "what pins keep under a flood, and how fast it comes back",
    load: async () => (await import("./commands/bench-policies.ts")).benchPinCommand,
  },
  {
    name: "bench policy",
    summary: "hit ratios of eviction policies on traces",
    load: async () => (await import("./commands/bench-policies.ts")).benchPolicyCommand,
  },
  {
    name: "bench prefix",
    summary: "measure the router's index of who holds what",
    load: async () => (await import("./commands/bench-router.ts")).benchPrefixCommand,
  },
  {
    name: "bench decide",
    summary: "measure decisions of the router",
    load: async () => (await import("./commands/bench-router.ts")).benchDecideCommand,
  },
  {
    name: "bench route",
    summary: "hit ratios and spread of routing policies on traces",
    load: async () => (await import("./commands/bench-router.ts")).benchRouteCommand,
  },
  {
    name: "bench policies",
    summary: "what the router's policies do to agents, on a trace of conversations",
    load: async () => (await import("./commands/bench-policies.ts")).benchPoliciesCommand,
  },
  {
    name: "reference",
    summary: "print a reference page as Markdown",
    load: async () => (await import("./commands/reference.ts")).command,
  },
];
