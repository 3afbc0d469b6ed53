import { booleanKind, choiceKind, durationKind, integerKind, pathKind } from "../kinds.ts";
import { natsUrlKind } from "../nats-url.ts";
import { apiAccessKeys, apiLimitKeys, apiListen } from "../sections/api.ts";
import { natsFileKeys, natsInboxKeys, natsQueueKeys } from "../sections/nats.ts";
import { optional, section, withDefault } from "../spec.ts";

const PATH_BYTES_MAX = 4095;

const url = optional({
  key: "url",
  kind: natsUrlKind,
  reload: false,
  doc:
    "The NATS server over which agents tell what they hold and take commands, and replicas of " +
    "this router agree; several with commas between them, all TCP or all WebSocket. Unset: " +
    "engines' ZMQ events and predictions alone.",
  example: "nats://127.0.0.1:4222",
});

const commandProof = withDefault({
  key: "command_proof",
  kind: choiceKind(["none", "subject", "signature"]),
  standard: "none",
  reload: false,
  doc:
    "How this router proves to agents that a command is its own, where their `control.issuers` " +
    "lists `router-` and its id. `subject`: it publishes on `kv-control-{worker}.{issuer}`. " +
    "`signature`: it signs with `sign_nkey_file`.",
});

const signNkeyFile = optional({
  key: "sign_nkey_file",
  kind: pathKind({ bytesMax: PATH_BYTES_MAX, example: "/etc/hearth/router-sign.nk" }),
  reload: false,
  doc:
    "A file that holds the seed of the nkey (SU...) that signs commands. Agents have its public " +
    "half. Keep it readable for the router alone.",
  example: "/etc/hearth/router-sign.nk",
});

export const natsSection = section("Agents and replicas over NATS.", {
  url,
  ...natsFileKeys("router"),
  ...natsQueueKeys("Messages"),
  ...natsInboxKeys("router"),
  commandProof,
  signNkeyFile,
});

export const apiSection = section("The HTTP server for those who ask, and for monitoring.", {
  listen: apiListen(7181, "decisions, workers, health, metrics"),
  ...apiAccessKeys(
    "`read` shows and asks, `operate` also routes, registers workers and sets thresholds, " +
      "`purge` does the same",
  ),
  ...apiLimitKeys("256MiB"),
  busyStatus: withDefault({
    key: "busy_status",
    kind: integerKind({ min: 400, max: 599 }),
    standard: 529,
    reload: false,
    doc: "What a request is answered with where all workers are busy; other routers use 503.",
  }),
});

export const replicasSection = section("Several routers of one fleet.", {
  sync: withDefault({
    key: "sync",
    kind: booleanKind,
    standard: false,
    reload: false,
    doc: "Whether this router tells its replicas over NATS what it routed, and hears them.",
  }),
  resetStates: withDefault({
    key: "reset_states",
    kind: booleanKind,
    standard: false,
    reload: false,
    doc:
      "Start with an empty picture: streams and snapshots of before are thrown away. For the " +
      "first router of a fleet alone: others would disagree afterwards.",
  }),
  snapshotThreshold: withDefault({
    key: "snapshot_threshold",
    kind: integerKind({ min: 1, max: Number.MAX_SAFE_INTEGER }),
    standard: 1_000_000,
    reload: false,
    doc: "Changes after which the picture is written to `events.state_dir` before its time.",
  }),
  announceMs: withDefault({
    key: "announce",
    kind: durationKind({ min: 100, max: 600_000, example: "1s" }),
    standard: "1s",
    reload: false,
    doc:
      "How often this router says that it is there and what it counts, so that replicas find out " +
      "where they differ. One that missed five is gone.",
  }),
});
