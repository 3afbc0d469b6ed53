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
    name: "fsck",
    summary: "check the block files of an SSD folder, and repair it",
    load: () => import("./commands/fsck.ts"),
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
    name: "bench policy",
    summary: "hit ratios of eviction policies on traces",
    load: () => import("./commands/bench-policy.ts"),
  },
  {
    name: "bench sessions",
    summary: "whole sessions freed at once, against blocks that age one by one",
    load: () => import("./commands/bench-sessions.ts"),
  },
  {
    name: "reference",
    summary: "print a reference page as Markdown",
    load: () => import("./commands/reference.ts"),
  },
];
