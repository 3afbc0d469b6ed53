import type { Command } from "./command.ts";

/** One subcommand. Its module is imported when it is run or its help is asked for, never before. */
export interface Entry {
  /** One word, or two: `bench index`. */
  readonly name: string;
  /** One line for the list of `hearth --help`. */
  readonly summary: string;
  load(): Promise<{ readonly command: Command }>;
}

/** All subcommands of this release, in the order of `hearth --help`. */
export const CATALOGUE: readonly Entry[] = [
  {
    name: "agent",
    summary: "run the agent of this host",
    load: () => import("./commands/agent.ts"),
  },
  {
    name: "router",
    summary: "choose the worker for each request, by what workers hold",
    load: () => import("./commands/router.ts"),
  },
  {
    name: "demo",
    summary: "watch real traffic flow through an agent of its own",
    load: () => import("./commands/demo.ts"),
  },
  {
    name: "replay",
    summary: "play an engine: send a trace through an agent",
    load: () => import("./commands/replay.ts"),
  },
  {
    name: "check",
    summary: "tell whether a configuration file would be accepted",
    load: () => import("./commands/check.ts"),
  },
  {
    name: "doctor",
    summary: "tell what this host offers, and what to do about the rest",
    load: () => import("./commands/doctor.ts"),
  },
  {
    name: "ctl pin",
    summary: "keep blocks on the host",
    load: () => import("./commands/ctl-pin.ts"),
  },
  {
    name: "ctl unpin",
    summary: "take one owner's pins back",
    load: () => import("./commands/ctl-unpin.ts"),
  },
  {
    name: "ctl retain",
    summary: "prefer blocks, without a promise",
    load: () => import("./commands/ctl-retain.ts"),
  },
  {
    name: "ctl prune",
    summary: "drop what builds upon a block",
    load: () => import("./commands/ctl-prune.ts"),
  },
  {
    name: "ctl think",
    summary: "mark blocks as transient, or purge those that are",
    load: () => import("./commands/ctl-think.ts"),
  },
  {
    name: "ctl pause",
    summary: "move blocks to SSD under a lease",
    load: () => import("./commands/ctl-pause.ts"),
  },
  {
    name: "ctl renew",
    summary: "let a lease run on",
    load: () => import("./commands/ctl-renew.ts"),
  },
  {
    name: "ctl revoke",
    summary: "end a lease and purge what only it held",
    load: () => import("./commands/ctl-revoke.ts"),
  },
  {
    name: "ctl warm",
    summary: "bring blocks up to RAM before they are asked for",
    load: () => import("./commands/ctl-warm.ts"),
  },
  {
    name: "ctl flush",
    summary: "empty the tiers of all that nothing holds",
    load: () => import("./commands/ctl-flush.ts"),
  },
  {
    name: "ctl unfence",
    summary: "let an issuer start over, whatever epoch it had shown",
    load: () => import("./commands/ctl-unfence.ts"),
  },
  {
    name: "ctl send",
    summary: "send a command as it stands in a file",
    load: () => import("./commands/ctl-send.ts"),
  },
  {
    name: "ctl tree",
    summary: "show blocks, their tiers and who holds them",
    load: () => import("./commands/ctl-tree.ts"),
  },
  {
    name: "ctl explain",
    summary: "tell what of a prompt hits, and why the rest does not",
    load: () => import("./commands/ctl-explain.ts"),
  },
  {
    name: "ctl pins",
    summary: "list pins and the room for more",
    load: () => import("./commands/ctl-pins.ts"),
  },
  {
    name: "ctl leases",
    summary: "list leases of what was paused",
    load: () => import("./commands/ctl-leases.ts"),
  },
  {
    name: "ctl peers",
    summary: "list other hosts, and how blocks come from them",
    load: () => import("./commands/ctl-peers.ts"),
  },
  {
    name: "ctl trace-pull",
    summary: "show how a block came from another host, or did not",
    load: () => import("./commands/ctl-trace-pull.ts"),
  },
  {
    name: "ctl events",
    summary: "print what happened to holds, peers and commands",
    load: () => import("./commands/ctl-events.ts"),
  },
  {
    name: "ctl status",
    summary: "tell what an agent is and holds",
    load: () => import("./commands/ctl-status.ts"),
  },
  {
    name: "ctl workers",
    summary: "list the workers that a NATS server reaches",
    load: () => import("./commands/ctl-workers.ts"),
  },
  {
    name: "ctl loads",
    summary: "list the workers of a router, and what they are at work on",
    load: () => import("./commands/ctl-loads.ts"),
  },
  {
    name: "ctl route",
    summary: "ask a router which worker it would choose",
    load: () => import("./commands/ctl-route.ts"),
  },
  {
    name: "ctl explain-route",
    summary: "tell how a router came to a decision",
    load: () => import("./commands/ctl-explain-route.ts"),
  },
  {
    name: "fsck",
    summary: "check the block files of an SSD folder, and repair it",
    load: () => import("./commands/fsck.ts"),
  },
  {
    name: "ca init",
    summary: "make an authority for the certificates of a cluster",
    load: () => import("./commands/ca-init.ts"),
  },
  {
    name: "ca issue",
    summary: "make the certificate and the key of a host",
    load: () => import("./commands/ca-issue.ts"),
  },
  {
    name: "ca show",
    summary: "tell what is in a certificate, and who would believe it",
    load: () => import("./commands/ca-show.ts"),
  },
  {
    name: "bench engine",
    summary: "measure the engine plane between two processes",
    load: () => import("./commands/bench-engine.ts"),
  },
  {
    name: "bench index",
    summary: "measure the block table",
    load: () => import("./commands/bench-index.ts"),
  },
  {
    name: "bench hash",
    summary: "measure hashing of prompts",
    load: () => import("./commands/bench-hash.ts"),
  },
  {
    name: "bench ssd",
    summary: "measure the SSD tier beside fio, or with many files",
    load: () => import("./commands/bench-ssd.ts"),
  },
  {
    name: "bench gpu",
    summary: "measure copies between the arena and a GPU beside a plain loop",
    load: () => import("./commands/bench-gpu.ts"),
  },
  {
    name: "bench ttft",
    summary: "measure the first token of prompts computed and restored to a GPU",
    load: () => import("./commands/bench-ttft.ts"),
  },
  {
    name: "bench peer",
    summary: "measure pulls between two hosts beside bare programs",
    load: () => import("./commands/bench-peer.ts"),
  },
  {
    name: "bench control",
    summary: "measure commands over NATS, and a prune of many blocks",
    load: () => import("./commands/bench-control.ts"),
  },
  {
    name: "bench pin",
    summary: "what pins keep under a flood, and how fast it comes back",
    load: () => import("./commands/bench-pin.ts"),
  },
  {
    name: "bench policy",
    summary: "hit ratios of eviction policies on traces",
    load: () => import("./commands/bench-policy.ts"),
  },
  {
    name: "bench prefix",
    summary: "measure the router's index of who holds what",
    load: () => import("./commands/bench-prefix.ts"),
  },
  {
    name: "bench decide",
    summary: "measure decisions of the router",
    load: () => import("./commands/bench-decide.ts"),
  },
  {
    name: "bench route",
    summary: "hit ratios and spread of routing policies on traces",
    load: () => import("./commands/bench-route.ts"),
  },
  {
    name: "bench policies",
    summary: "what the router's policies do to agents, on a trace of conversations",
    load: () => import("./commands/bench-policies.ts"),
  },
  {
    name: "reference",
    summary: "print a reference page as Markdown",
    load: () => import("./commands/reference.ts"),
  },
];
