import { runAgent, runRouter } from "../../app/index.ts";
import type { Overrides } from "../../config/index.ts";
import { choiceKind, durationKind, integerKind, numberKind, textKind } from "../../core/index.ts";
import {
  defineCommand,
  type FlagValues,
  fileKind,
  optional,
  required,
  toggle,
  urlKind,
} from "../command.ts";

export const agentCommand = defineCommand({
  description: [
    "Runs the agent of this host in the foreground: takes the RAM tier's memory, listens for " +
      "engines on a Unix socket and serves the HTTP API.",
    "SIGTERM and SIGINT drain for up to 10 s: the agent serves no new requests, and engines may " +
      "release their blocks. SIGHUP reloads the configuration and applies the keys that may " +
      "change at run time. Under systemd the agent reports readiness, reloads and its watchdog.",
  ],
  arguments: {},
  flags: {
    config: required(fileKind, "configuration, as config/hearth.toml"),
    private: optional(
      textKind("FOLDER"),
      "exit at the end of standard input, then remove FOLDER (used by demo and replay)",
    ),
  },
  examples: [
    { words: "agent --config /etc/hearth/hearth.toml", what: "as the systemd unit starts it" },
    { words: "check /etc/hearth/hearth.toml", what: "check the configuration" },
  ],
  exits: ["configRefused", "hostCannot"],
  async run({ flags, io, build }) {
    await runAgent({
      configPath: flags.config,
      privateFolder: flags.private,
      version: build.version,
      commit: build.commit,
      write: (line) => io.err.write(line),
    });
    return "ok";
  },
});

const share = numberKind({ min: 0, max: 1 });

const flags = {
  config: optional(fileKind, "configuration, as config/router.toml; without it the defaults"),
  listen: optional(textKind("ADDRESS"), "listen address of the HTTP API: api.listen"),
  nats: optional(urlKind, "the NATS server: nats.url"),
  mode: optional(
    choiceKind(["kv", "round-robin", "random", "direct", "least-loaded"]),
    "how to choose a worker: router.mode",
  ),
  temperature: optional(numberKind({ min: 0 }), "0: the lowest cost; above: softmax"),
  cost: optional(choiceKind(["credits", "classic"]), "the formula of kv: router.cost"),
  overlapScoreWeight: optional(numberKind({ min: 0 }), "of prefill blocks, with --cost classic"),
  blockTokens: optional(integerKind({ min: 1 }), "tokens in a block of the cost formula"),
  noKvEvents: toggle("predict the blocks of workers from routed requests"),
  noTrackActiveBlocks: toggle("do not count blocks of live requests"),
  noTrackPrefillTokens: toggle("do not count prompt tokens waiting for prefill"),
  activeDecodeBlocksThreshold: optional(share, "share of KV blocks above which a worker is busy"),
  activePrefillTokensThreshold: optional(
    integerKind(),
    "waiting tokens above which a worker is busy",
  ),
  ttl: optional(durationKind({ min: 1 }), "of predicted blocks, with --no-kv-events"),
  maxTreeSize: optional(integerKind({ min: 1 }), "predicted blocks, with --no-kv-events"),
  pruneTargetRatio: optional(share, "share of --max-tree-size at which pruning stops"),
  sessionAffinityTtl: optional(
    durationKind({ min: 1_000 }),
    "how long a session stays with a worker",
  ),
  replicaSync: toggle("share load with other routers over NATS"),
  resetStates: toggle("start with an empty index; only for the first router of a fleet"),
  snapshotThreshold: optional(integerKind({ min: 1 }), "messages in the stream before a snapshot"),
  private: optional(
    textKind("FOLDER"),
    "exit at the end of standard input, then remove FOLDER (used by demo)",
  ),
};

export const routerCommand = defineCommand({
  description: [
    "Runs a router in the foreground: follows the events of workers, and answers over HTTP " +
      "which worker should serve a prompt.",
    "Flags override the file. On SIGTERM and SIGINT, running streams may finish for a while. " +
      "SIGHUP reloads the file and applies the keys that may change at run time, such as " +
      "workers. Under systemd the router reports readiness, reloads and its watchdog.",
  ],
  arguments: {},
  flags,
  examples: [
    { words: "router --config /etc/hearth/router.toml", what: "as the systemd unit starts it" },
    { words: "router --nats nats://127.0.0.1:4222", what: "with the defaults, on 127.0.0.1:7181" },
    { words: "router --no-kv-events --mode kv", what: "without events from workers" },
    { words: "check --router router.toml", what: "check the configuration" },
  ],
  exits: ["configRefused", "hostCannot"],
  async run({ flags: given, io, build }) {
    await runRouter({
      configPath: given.config,
      overrides: overridesOf(given),
      privateFolder: given.private,
      version: build.version,
      commit: build.commit,
      write: (line) => io.err.write(line),
    });
    return "ok";
  },
});

/** Returns the values of the given flags, under the configuration keys that they override. */
function overridesOf(given: FlagValues<typeof flags>): Overrides {
  const milliseconds = (ms: number | null) => (ms === null ? null : `${ms}ms`);
  const off = (isOff: boolean) => (isOff ? false : null);
  const on = (isOn: boolean) => isOn || null;
  const all = {
    "api.listen": given.listen,
    "nats.url": given.nats,
    "router.mode": given.mode,
    "router.temperature": given.temperature,
    "router.cost": given.cost,
    "router.overlap_score_weight": given.overlapScoreWeight,
    "router.block_tokens": given.blockTokens,
    "router.kv_events": off(given.noKvEvents),
    "router.track_active_blocks": off(given.noTrackActiveBlocks),
    "router.track_prefill_tokens": off(given.noTrackPrefillTokens),
    "router.active_decode_blocks_threshold": given.activeDecodeBlocksThreshold,
    "router.active_prefill_tokens_threshold": given.activePrefillTokensThreshold,
    "router.ttl": milliseconds(given.ttl),
    "router.max_tree_size": given.maxTreeSize,
    "router.prune_target_ratio": given.pruneTargetRatio,
    "router.session_affinity_ttl": milliseconds(given.sessionAffinityTtl),
    "replicas.sync": on(given.replicaSync),
    "replicas.reset_states": on(given.resetStates),
    "replicas.snapshot_threshold": given.snapshotThreshold,
  };
  const said = Object.entries(all).filter(([, value]) => value !== null);
  return Object.fromEntries(said) as Overrides;
}
