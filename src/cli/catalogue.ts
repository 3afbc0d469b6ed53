import type { Command } from "./command.ts";

/** One subcommand. Its module is imported only when it runs or its help is printed. */
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
    summary: "route each request to a worker, by the blocks that workers hold",
    load: async () => (await import("./commands/agent-and-router.ts")).routerCommand,
  },
  {
    name: "demo",
    summary: "run a demo: replay real traffic through a temporary agent",
    load: async () => (await import("./commands/demo.ts")).command,
  },
  {
    name: "replay",
    summary: "replay a trace against an agent, in place of an engine",
    load: async () => (await import("./commands/replay.ts")).command,
  },
  {
    name: "check",
    summary: "check a configuration file",
    load: async () => (await import("./commands/check.ts")).command,
  },
  {
    name: "doctor",
    summary: "check the host and suggest fixes",
    load: async () => (await import("./commands/doctor.ts")).command,
  },
  {
    name: "ctl pin",
    summary: "pin blocks",
    load: async () => (await import("./commands/ctl-commands.ts")).ctlPinCommand,
  },
  {
    name: "ctl unpin",
    summary: "remove an owner's pins",
    load: async () => (await import("./commands/ctl-commands.ts")).ctlUnpinCommand,
  },
  {
    name: "ctl retain",
    summary: "soft-pin blocks",
    load: async () => (await import("./commands/ctl-commands.ts")).ctlRetainCommand,
  },
  {
    name: "ctl prune",
    summary: "remove the descendants of a block",
    load: async () => (await import("./commands/ctl-commands.ts")).ctlPruneCommand,
  },
  {
    name: "ctl think",
    summary: "mark blocks as transient, or purge transient blocks",
    load: async () => (await import("./commands/ctl-commands.ts")).ctlThinkCommand,
  },
  {
    name: "ctl pause",
    summary: "move blocks to SSD under a lease",
    load: async () => (await import("./commands/ctl-commands.ts")).ctlPauseCommand,
  },
  {
    name: "ctl renew",
    summary: "renew a lease",
    load: async () => (await import("./commands/ctl-commands.ts")).ctlRenewCommand,
  },
  {
    name: "ctl revoke",
    summary: "end a lease and purge its unprotected blocks",
    load: async () => (await import("./commands/ctl-commands.ts")).ctlRevokeCommand,
  },
  {
    name: "ctl warm",
    summary: "prefetch blocks into RAM",
    load: async () => (await import("./commands/ctl-commands.ts")).ctlWarmCommand,
  },
  {
    name: "ctl flush",
    summary: "remove all unprotected blocks from RAM and SSD",
    load: async () => (await import("./commands/ctl-commands.ts")).ctlFlushCommand,
  },
  {
    name: "ctl unfence",
    summary: "reset the epoch and sequence of an issuer",
    load: async () => (await import("./commands/ctl-commands.ts")).ctlUnfenceCommand,
  },
  {
    name: "ctl send",
    summary: "send a command from a file",
    load: async () => (await import("./commands/ctl-commands.ts")).ctlSendCommand,
  },
  {
    name: "ctl tree",
    summary: "show the block tree with tiers and holders",
    load: async () => (await import("./commands/ctl-blocks.ts")).ctlTreeCommand,
  },
  {
    name: "ctl explain",
    summary: "explain which blocks of a prompt hit, and why others miss",
    load: async () => (await import("./commands/ctl-blocks.ts")).ctlExplainCommand,
  },
  {
    name: "ctl pins",
    summary: "list pins and the pin budget",
    load: async () => (await import("./commands/ctl-blocks.ts")).ctlPinsCommand,
  },
  {
    name: "ctl leases",
    summary: "list leases of paused blocks",
    load: async () => (await import("./commands/ctl-blocks.ts")).ctlLeasesCommand,
  },
  {
    name: "ctl peers",
    summary: "list peers and the state of their connections",
    load: async () => (await import("./commands/ctl-agent.ts")).ctlPeersCommand,
  },
  {
    name: "ctl trace-pull",
    summary: "trace a block's transfer from a peer",
    load: async () => (await import("./commands/ctl-agent.ts")).ctlTracePullCommand,
  },
  {
    name: "ctl events",
    summary: "print events of pins, leases, peers and commands",
    load: async () => (await import("./commands/ctl-agent.ts")).ctlEventsCommand,
  },
  {
    name: "ctl status",
    summary: "show the status of an agent",
    load: async () => (await import("./commands/ctl-agent.ts")).ctlStatusCommand,
  },
  {
    name: "ctl workers",
    summary: "list the workers reachable through a NATS server",
    load: async () => (await import("./commands/ctl-agent.ts")).ctlWorkersCommand,
  },
  {
    name: "ctl loads",
    summary: "list the workers of a router and their load",
    load: async () => (await import("./commands/ctl-router.ts")).ctlLoadsCommand,
  },
  {
    name: "ctl route",
    summary: "query which worker a router would choose",
    load: async () => (await import("./commands/ctl-router.ts")).ctlRouteCommand,
  },
  {
    name: "ctl explain-route",
    summary: "explain a decision of a router",
    load: async () => (await import("./commands/ctl-router.ts")).ctlExplainRouteCommand,
  },
  {
    name: "fsck",
    summary: "check and repair the block files of an SSD folder",
    load: async () => (await import("./commands/fsck.ts")).command,
  },
  {
    name: "ca init",
    summary: "create a certificate authority for a cluster",
    load: async () => (await import("./commands/ca.ts")).caInitCommand,
  },
  {
    name: "ca issue",
    summary: "issue the certificate and key of a host",
    load: async () => (await import("./commands/ca.ts")).caIssueCommand,
  },
  {
    name: "ca show",
    summary: "show and verify a certificate",
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
    summary: "measure the SSD tier against fio, or with many files",
    load: async () => (await import("./commands/bench-node.ts")).benchSsdCommand,
  },
  {
    name: "bench gpu",
    summary: "measure copies between RAM and a GPU against a plain loop",
    load: async () => (await import("./commands/bench-gpu.ts")).benchGpuCommand,
  },
  {
    name: "bench ttft",
    summary: "measure time to first token: recomputed against restored prompts",
    load: async () => (await import("./commands/bench-gpu.ts")).benchTtftCommand,
  },
  {
    name: "bench peer",
    summary: "measure transfers between peers against bare programs",
    load: async () => (await import("./commands/bench-network.ts")).benchPeerCommand,
  },
  {
    name: "bench control",
    summary: "measure commands over NATS, and a prune of many blocks",
    load: async () => (await import("./commands/bench-network.ts")).benchControlCommand,
  },
  {
    name: "bench pin",
    summary: "measure pinned blocks under memory pressure",
    load: async () => (await import("./commands/bench-policies.ts")).benchPinCommand,
  },
  {
    name: "bench policy",
    summary: "compare hit ratios of eviction policies on traces",
    load: async () => (await import("./commands/bench-policies.ts")).benchPolicyCommand,
  },
  {
    name: "bench prefix",
    summary: "measure the router's prefix index",
    load: async () => (await import("./commands/bench-router.ts")).benchPrefixCommand,
  },
  {
    name: "bench decide",
    summary: "measure decisions of the router",
    load: async () => (await import("./commands/bench-router.ts")).benchDecideCommand,
  },
  {
    name: "bench route",
    summary: "compare hit ratios and balance of routing policies on traces",
    load: async () => (await import("./commands/bench-router.ts")).benchRouteCommand,
  },
  {
    name: "bench policies",
    summary: "compare the router's lifecycle policies on a trace of conversations",
    load: async () => (await import("./commands/bench-policies.ts")).benchPoliciesCommand,
  },
  {
    name: "reference",
    summary: "print a reference page as Markdown",
    load: async () => (await import("./commands/reference.ts")).command,
  },
];
